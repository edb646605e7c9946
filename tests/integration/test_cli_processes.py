"""Commands as processes of their own: pipes, Ctrl-C, waiting for a job's end, stores that are away, start-up."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from devtools.private import free_port
from devtools.waiting import wait_until
from ropeway.core.outcome import Done, Failed, Outcome
from ropeway.core.payload import JobError
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Engine
from ropeway.settings import Settings
from ropeway.testing.conformance.kit import enqueue_many, lease_some, settle
from tests.engines.pg_kit import migrated
from tests.integration.cli_kit import SQLITE, Cli

RUN = [sys.executable, "-c", "from ropeway.cli.main import main; main()"]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.chdir(tmp_path)
    for variable in ("COLUMNS", "ROPEWAY_URL", "ROPEWAY_APP"):
        monkeypatch.delenv(variable, raising=False)
    return Cli(capsys)


@contextmanager
def worker(outcome: Outcome, url: str = SQLITE) -> Iterator[None]:
    """Someone who ends every job in the same way."""
    over = threading.Event()

    async def work() -> None:
        async with engine_for(Settings.load({"url": url})) as engine:
            while not over.is_set():
                for leased in await lease_some(engine, 10):
                    await settle(engine, leased, outcome)
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# ── waiting for the end ──


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_the_end_is_waited_for_and_the_result_printed(
    store: str, cli: Cli, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store == "postgres":
        cli.url = migrated(request.getfixturevalue("postgres_database"))
        monkeypatch.setenv("ROPEWAY_URL", cli.url)
    with worker(Done(b'{"n": 1.50}'), cli.url):
        said = cli("enqueue", "t", "--wait", "a=1")
        assert (said.code, said.err) == (0, "")
        id, result = said.out.splitlines()
        assert (str(UUID(id)), result) == (id, '{"n": 1.50}')
        job = cli("enqueue", "t", "--wait", "30", "--json").json
        assert (job["status"], job["result"], job["deduplicated"]) == ("succeeded", {"n": 1.5}, False)
        assert cli("enqueue", "t", "--key", "k", "--wait").out.splitlines()[1] == '{"n": 1.50}'
        again = cli("enqueue", "t", "--key", "k", "--wait")
        assert again.out.splitlines()[1] == '{"n": 1.50}'
        assert again.err == "Not enqueued again: this is the earlier job, status succeeded.\n"


def test_no_result_is_null(cli: Cli) -> None:
    cli.done("enqueue", "t")
    with worker(Done()):
        assert cli("enqueue", "t", "--wait=30").out.splitlines()[1] == "null"


def test_a_death_is_told(cli: Cli) -> None:
    with worker(Failed(JobError("ValueError", "no\nsuch user"), retry=False)):
        said = cli("enqueue", "t", "--wait")
        id = said.out.strip()
        assert (said.code, str(UUID(id))) == (1, id)
        assert said.err == f"ropeway: the job died: ValueError: no such user (ropeway jobs show {id})\n"
        dead = cli("enqueue", "t", "--wait", "--json")
        assert (dead.code, dead.json["status"]) == (1, "dead")


def test_patience_ends(cli: Cli) -> None:
    said = cli("enqueue", "t", "--wait", "50ms")
    id = said.out.strip()
    assert said.code == 1
    assert said.err == f"ropeway: the job has not ended in time: it is queued (ropeway jobs show {id})\n"


def test_someone_who_waits_in_vain_is_told_why(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropeway.cli.enqueue.SOON", 0.01)
    said = cli("enqueue", "t", "--wait", "100ms")
    assert said.err.splitlines()[0] == (
        "Still queued: no worker serves the queue default. Start one with `ropeway worker`."
    )
    said = cli("enqueue", "t", "--delay", "1h", "--wait", "100ms")
    assert said.err.splitlines()[0] == "Still scheduled: it starts in 59m."


# ── pipes and signals ──


@pytest.mark.parametrize("options", ["", "--json"])
def test_a_reader_that_goes_away_is_no_error(cli: Cli, options: str, tmp_path: Path) -> None:
    async def fill(engine: Engine) -> None:
        for _ in range(5):
            await enqueue_many(engine, 1000)

    cli.engine(fill)
    command = " ".join(f"'{part}'" for part in [*RUN, "jobs", "list", "--all"])
    script = f'{command} {options} | head -1; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("0", "")
    assert len(done.stdout.splitlines()) == 2


def test_a_tail_tells_what_happens_and_stops_at_ctrl_c(cli: Cli) -> None:
    cli.done("enqueue", "old")
    with Path("out").open("wb") as out, Path("err").open("wb") as err:
        tail = subprocess.Popen([*RUN, "jobs", "tail"], stdout=out, stderr=err)
        try:
            # A tail begins at the end of the log: enqueue until it has begun.
            wait_until(lambda: cli.done("enqueue", "fresh") and "fresh" in Path("out").read_text(), within=60)
            tail.send_signal(signal.SIGINT)
            assert tail.wait(30) == 130
        finally:
            tail.kill()
    assert "old" not in Path("out").read_text()
    hint = re.fullmatch(r"To go on from here: ropeway jobs tail --after (\S+)\n", Path("err").read_text())
    assert hint, Path("err").read_text()
    cli.done("enqueue", "later")
    assert "later" in cli.done("jobs", "tail", "--after", hint[1], "--type", "later", "-n", "1")


def test_ctrl_c_ends_a_wait(cli: Cli) -> None:
    with Path("out").open("wb") as out:
        waiting = subprocess.Popen([*RUN, "enqueue", "t", "--wait"], stdout=out, stderr=subprocess.PIPE, text=True)
        try:
            wait_until(lambda: Path("out").read_text(), within=60)
            waiting.send_signal(signal.SIGINT)
            _, told = waiting.communicate(timeout=30)
        finally:
            waiting.kill()
    assert (waiting.returncode, told) == (130, "")
    assert cli("jobs", "show", Path("out").read_text().strip(), "--json").json["status"] == "queued"


def test_a_full_disk_is_told_in_one_line(cli: Cli) -> None:
    cli.done("enqueue", "t")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*RUN, "jobs", "list"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, "ropeway: No space left on device\n")


def test_json_is_utf8_whatever_the_terminal_is(cli: Cli) -> None:
    cli.done("enqueue", "t", "a=\N{GRINNING FACE}")
    for command in (["jobs", "list"], ["jobs", "list", "--json"]):
        done = subprocess.run(
            [*RUN, *command],
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["jobs"][0]["payload"] == {"a": "\N{GRINNING FACE}"}


# ── stores ──


def test_a_store_that_is_away_is_told_in_one_line_without_its_password(cli: Cli) -> None:
    url = f"postgresql://someone:s3cret@127.0.0.1:{free_port()}/x"
    for command in (["jobs", "list"], ["enqueue", "t"], ["queues", "list"]):
        said = cli(*command, "--url", url)
        assert (said.code, said.out) == (3, "")
        assert re.fullmatch(r"ropeway: [^\n]*127\.0\.0\.1[^\n]*\n", said.err)
        assert "s3cret" not in said.err


def test_a_schema_that_is_missing_is_told(cli: Cli, postgres_database: str) -> None:
    said = cli("jobs", "list", "--url", postgres_database)
    assert (said.code, said.out) == (2, "")
    assert re.fullmatch(r"ropeway: [^\n]*ropeway migrate up[^\n]*\n", said.err)


def test_a_file_that_is_no_store_is_told(cli: Cli) -> None:
    Path("ropeway.db").write_text("this is no database, and long enough to be read as one" * 100)
    said = cli("jobs", "list")
    assert (said.code, said.out) == (2, "")
    assert re.fullmatch(r"ropeway: [^\n]*ropeway\.db[^\n]*\n", said.err)


# ── start-up ──


def test_help_loads_no_engine_and_no_driver() -> None:
    code = (
        "import sys; from ropeway.cli.main import run; run(['--help']);"
        " print([name for name in sys.modules if name in"
        " ('asyncpg', 'sqlite3', 'ropeway.engines.sqlite', 'ropeway.engines.postgres', 'httpx', 'uvloop')],"
        " file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.stderr == "[]\n"


def test_the_version(cli: Cli) -> None:
    assert re.fullmatch(r"ropeway \d+\.\d+\.\d+", cli.done("--version"))
