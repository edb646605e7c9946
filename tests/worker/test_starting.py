"""A worker that cannot work says why in one line and ends; one on memory:// says what it is."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.worker.facts import Facts
from tests.worker.kit import StartWorker, until


async def told(start_worker: StartWorker, target: str, url: str) -> tuple[int, str]:
    """The exit code, and what was said besides log lines."""
    worker = start_worker(target=target, url=url)
    code = await worker.exit_code()
    await until(lambda: not worker.children(), "no child is left")
    return code, worker.other_output()


async def test_an_app_that_cannot_be_loaded(tmp_path: Path, sqlite_url: str, start_worker: StartWorker) -> None:
    code, words = await told(start_worker, str(tmp_path / "nothing.py"), sqlite_url)
    assert code == 2
    assert "there is no file" in words
    (tmp_path / "broken.py").write_text("1 / 0")
    code, words = await told(start_worker, str(tmp_path / "broken.py"), sqlite_url)
    assert code == 2
    assert "ZeroDivisionError" in words
    assert "broken.py:1" in words
    assert "Traceback" not in words


async def test_a_database_without_the_schema(postgres_database: str, start_worker: StartWorker) -> None:
    worker = start_worker(url=postgres_database)
    assert await worker.exit_code() == 2
    assert "ropeway migrate up" in worker.other_output()
    assert "Traceback" not in worker.other_output()


async def test_memory_is_one_process_and_says_so(start_worker: StartWorker, facts: Facts) -> None:
    worker = start_worker(url="memory://")
    line = await worker.says("worker_started", engine="memory")
    assert "without supervision" in line["note"]
    worker.signal(signal.SIGTERM)
    assert await worker.exit_code() == 0
    assert facts.notes("lifespan-left")
