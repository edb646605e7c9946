"""Real workers on real engines: each test has a store of its own and may start as many workers as it likes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.engines.pg_kit import migrated
from tests.worker.facts import Facts
from tests.worker.kit import TASKS, RealWorker, StartWorker

#: Characters of a worker's log that a failed test shows.
LOG_SHOWN = 6_000


@pytest.fixture(scope="session")
def make_migrated_database(make_postgres_database: Any) -> Callable[[], str]:
    """Copies of one migrated database: 45 ms each instead of 200."""
    template = urlsplit(migrated(make_postgres_database())).path.lstrip("/")
    return lambda: make_postgres_database(template=template)


@pytest.fixture
def postgres_url(make_migrated_database: Callable[[], str]) -> str:
    return make_migrated_database()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ropeway.db'}"


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.slow), "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty store: the test runs once on each engine, on SQLite with the slow ones."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    folder = tmp_path / "facts"
    folder.mkdir()
    return Facts(folder)


@pytest.fixture
def start_worker(request: pytest.FixtureRequest, facts: Facts, tmp_path: Path) -> Iterator[StartWorker]:
    """Starts workers: short leases, a short drain and no port unless the arguments say otherwise."""
    started: list[RealWorker] = []

    def start(
        *arguments: str, env: Mapping[str, str] | None = None, url: str | None = None, target: str = TASKS
    ) -> RealWorker:
        defaults = {"--port": "-1", "--lease-seconds": "2", "--drain-seconds": "5"}
        given = [part for name, value in defaults.items() if name not in arguments for part in (name, value)]
        store = request.getfixturevalue("url") if url is None else url
        log = tmp_path / f"worker-{len(started)}.log"
        worker = RealWorker(target, store, facts, log, [*given, *arguments], env or {})
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.destroy()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows how its workers' logs end: some fail once in a hundred runs, never when watched."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and folder is not None:
        for log in sorted(folder.glob("worker-*.log")):
            end = log.read_text(errors="replace")[-LOG_SHOWN:]
            report.sections.append((f"the end of {log.name}", end))
    return report
