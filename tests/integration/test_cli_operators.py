"""Queues, dead jobs, schedules, workers, init, completion and help."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import typer

from ropeway.cli.main import app, run
from ropeway.core import cron
from ropeway.core.errors import FieldError
from ropeway.core.fleet import WorkerInfo
from ropeway.core.payload import JobError
from ropeway.core.query import STATE_ALIASES
from ropeway.core.retry import RetryPolicy
from ropeway.core.schedule import NewSchedule
from ropeway.core.states import State
from ropeway.core.unique import Unique
from ropeway.engines.protocol import Engine
from ropeway.testing.conformance.kit import enqueue_many, enqueue_one, lease_some, nack
from tests.engines.pg_kit import migrated
from tests.integration.cli_kit import Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.chdir(tmp_path)
    for variable in ("COLUMNS", "ROPEWAY_URL", "ROPEWAY_APP"):
        monkeypatch.delenv(variable, raising=False)
    return Cli(capsys)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def either(cli: Cli, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cli:
    if request.param == "postgres":
        cli.url = migrated(request.getfixturevalue("postgres_database"))
        monkeypatch.setenv("ROPEWAY_URL", cli.url)
    return cli


async def deaths(engine: Engine) -> list[UUID]:
    """Three dead jobs in `mail`, two in `report`, of different errors."""
    made = []
    for queue, number, text in (("mail", 3, "550 no such user"), ("report", 2, "disk full")):
        made += await enqueue_many(engine, number, queue=queue, type=f"{queue}.run", max_attempts=1)
        for leased in await lease_some(engine, number, queue):
            await nack(engine, leased, error=JobError("OSError", text))
    return made


# ── queues ──


def test_queues_are_listed_paused_and_resumed(either: Cli) -> None:
    either.engine(deaths)
    either.done("enqueue", "t", "--queue", "mail")
    lines = either.done("queues", "list").splitlines()
    assert lines[0].split() == ["QUEUE", "QUEUED", "RUNNING", "RETRYING", "SCHEDULED", "DEAD", "OLDEST"]
    assert lines[1].split()[:6] == ["mail", "1", "0", "0", "0", "3"]
    assert either.done("queues", "pause", "mail") == "paused mail (1 job queued)"
    assert either.done("queues", "list").splitlines()[1].split()[:3] == ["mail", "(paused)", "1"]
    stats = either("queues", "list", "--json").json["queues"][0]
    assert (stats["queue"], stats["paused"], stats["counts"]) == ("mail", True, {"queued": 1, "dead": 3})
    assert either("queues", "resume", "mail", "--json").json["paused"] is False
    assert either.done("queues", "resume", "mail") == "resumed mail (1 job queued)"


def test_a_queue_that_nobody_knows(cli: Cli) -> None:
    cli.done("enqueue", "t", "--queue", "mail")
    said = cli("queues", "pause", "mial")
    assert (said.code, said.out, said.err) == (1, "", "ropeway: no queue 'mial' (did you mean mail?)\n")
    said = cli("queues", "pause", "other")
    assert said.err == "ropeway: no queue 'other' (--force pauses a queue that has no jobs yet)\n"
    assert cli.done("queues", "pause", "other", "--force") == "paused other (0 jobs queued)"
    assert cli.done("queues", "resume", "other") == "resumed other (0 jobs queued)"
    said = cli("queues", "resume", "other")
    assert (said.code, said.err) == (1, "ropeway: no queue 'other' (ropeway queues list shows them)\n")


# ── dead ──


def test_dead_jobs_are_listed_newest_death_first(either: Cli) -> None:
    made = either.engine(deaths)
    listed = either("dead", "list", "--json").json["jobs"]
    assert {job["id"] for job in listed} == {str(id) for id in made}
    assert [job["dead_at"] for job in listed] == sorted((job["dead_at"] for job in listed), reverse=True)
    lines = either.done("dead", "list", "--queue", "report").splitlines()
    assert lines[0].split() == ["ID", "TYPE", "QUEUE", "DIED", "REASON", "ERROR"]
    assert len(lines) == 3
    assert lines[1].endswith("max_attempts  OSError: disk full")
    assert len(either("dead", "list", "--json", "--error", "550").json["jobs"]) == 3
    assert len(either("dead", "list", "--json", "--type", "mail.run", "--since", "1h").json["jobs"]) == 3
    assert either("dead", "list", "--json", "--reason", "rejected").json["jobs"] == []
    page = either("dead", "list", "--limit", "2")
    position = page.err.split()[-1]
    assert len(either.done("dead", "list", "--after", position).splitlines()) == 4


def test_a_dead_job_is_shown_and_a_live_one_is_not(cli: Cli) -> None:
    made = cli.engine(deaths)
    assert "dead: it failed and has no attempts left" in cli.done("dead", "show", str(made[0]))
    live = cli.done("enqueue", "t")
    said = cli("dead", "show", live)
    assert (said.code, said.out) == (1, "")
    assert said.err == f"ropeway: job {live} is not dead but queued (see ropeway jobs show)\n"


def states(cli: Cli, ids: list[UUID]) -> list[str]:
    jobs = cli.engine(lambda engine: engine.get(ids))
    return [job.state.value for job in jobs if job is not None]


def test_dead_jobs_are_retried_by_id(either: Cli) -> None:
    made = either.engine(deaths)
    assert either.done("dead", "retry", str(made[0])) == f"retried {made[0]} (was dead)"
    assert states(either, made) == ["queued", "dead", "dead", "dead", "dead"]


def test_dead_jobs_are_retried_by_filter(either: Cli) -> None:
    made = either.engine(deaths)
    assert either.done("dead", "retry", "--queue", "mail", "--dry-run") == "would retry 3 dead jobs"
    assert states(either, made) == ["dead"] * 5
    plan = either("dead", "retry", "--queue", "mail", "--dry-run", "--json").json
    assert plan == {"matched": 3, "retried": 0, "skipped": [], "more": False, "dry_run": True}
    assert either.done("dead", "retry", "--error", "disk", "--limit", "1", "--yes") == "retried 1 dead job"
    assert either.done("dead", "retry", "--type", "mail.run", "--yes") == "retried 3 dead jobs"
    assert sorted(states(either, made)) == ["dead"] + ["queued"] * 4
    assert either("dead", "retry", "--all", "--yes", "--json").json["retried"] == 1
    said = either("dead", "retry", "--all", "--yes")
    assert (said.code, said.out, said.err) == (0, "", "No dead jobs match.\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "which ones? Give ids, --all, or options such as --queue (ropeway dead list)"),
        (["--all"], "this would retry 5 dead jobs: say --yes (or --dry-run to only count them)"),
        (["--all", "--json"], "this would retry 5 dead jobs: say --yes (or --dry-run to only count them)"),
        (
            ["--error", "disk", "-n", "1"],
            "this would retry 1 dead job: say --yes (or --dry-run to only count them)",
        ),
        (["0198c0de", "--queue", "mail"], "give ids or options, not both"),
        (["0198c0de", "--dry-run"], "--dry-run goes with options, not with ids (ropeway dead show ID)"),
        (["--reason", "max_atempts"], "unknown reason 'max_atempts' (did you mean max_attempts?)"),
        (["--reason", "x"], "unknown reason 'x' (one of max_attempts, rejected, crash_limit, bad_payload)"),
    ],
)
def test_what_a_retry_refuses(cli: Cli, words: list[str], told: str) -> None:
    made = cli.engine(deaths)
    said = cli("dead", "retry", *words)
    assert (said.code, said.out, said.err) == (2, "", f"ropeway: {told}\n")
    assert states(cli, made) == ["dead"] * 5


@pytest.mark.parametrize(("answer", "code", "state"), [(True, 0, "queued"), (False, 1, "dead")])
def test_a_person_is_asked(cli: Cli, answer: bool, code: int, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cli.engine(deaths)
    asked = []

    def confirm(question: str, *, err: bool) -> bool:
        asked.append((question, err))
        return answer

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", confirm)
    said = cli("dead", "retry", "--all")
    assert (said.code, asked) == (code, [("Retry 5 dead jobs?", True)])
    assert set(states(cli, made)) == {state}
    assert said.err == ("" if code == 0 else "Nothing was changed.\n")


# ── schedules, workers ──


def test_schedules_are_listed_shown_paused_resumed_and_run(either: Cli) -> None:
    spec = NewSchedule("nightly", "0 3 * * *", "report", tz="Europe/Paris", payload=b'{"a": 1.50}')
    either.engine(lambda engine: engine.put_schedule(spec))
    lines = either.done("schedules", "list").splitlines()
    assert lines[0].split() == ["NAME", "CRON", "ZONE", "TYPE", "NEXT", "LAST"]
    assert lines[1].startswith("nightly  0 3 * * *  Europe/Paris  report  in ")
    shown = either.done("schedules", "show", "nightly")
    assert '{"a": 1.50}' in shown
    assert len(re.findall(r"\d{4}-\d\d-\d\d 0[12]:00:00\.000Z", shown)) == 5
    assert either.done("schedules", "pause", "nightly") == "paused nightly"
    assert either.done("schedules", "list").splitlines()[1].split()[-2:] == ["paused", "-"]
    assert either("schedules", "list", "--json").json["schedules"][0]["paused"] is True
    assert either.done("schedules", "resume", "nightly").startswith("resumed nightly, next 20")
    id = either.done("schedules", "run", "nightly")
    job = either("jobs", "show", id, "--json").json
    assert (job["type"], job["payload"], job["headers"]) == ("report", {"a": 1.5}, {"ropeway-schedule": "nightly"})
    assert either("schedules", "run", "nightly", "--json").json["type"] == "report"
    assert either("schedules", "show", "nightly", "--json").json["next_run_at"].endswith(":00:00.000000Z")


def test_a_schedule_shows_what_its_jobs_are_like(either: Cli) -> None:
    spec = NewSchedule(
        "nightly", "0 3 * * *", "report", timeout=90.0, retry=RetryPolicy(base=1.0, cap=60.0),
        unique=Unique(within=3600.0), expires_in=600.0, tags=("a", "b"), headers={"team": "[x]"},
    )  # fmt: skip
    either.engine(lambda engine: engine.put_schedule(spec))
    shown = " ".join(either.done("schedules", "show", "nightly").split())
    for told in (
        "runs at most 5 per job, each 90 s at most",
        "retries from 1 s to 60 s, times 2, jitter 0.25 (around)",
        "unique one job with the same arguments, within 3600 s, while queued, retrying, running",
        "expires unless started within 600 s",
        "tags a, b",
        "headers team: [x]",
    ):
        assert told in shown, told
    found = either("schedules", "show", "nightly", "--json").json
    assert (found["timeout"], found["expires_in"], found["tags"]) == (90.0, 600.0, ["a", "b"])
    assert found["retry"] == {"base": 1.0, "factor": 2.0, "cap": 60.0, "jitter": 0.25, "shape": "around"}
    assert found["headers"] == {"team": "[x]"}
    assert (found["unique"]["by"], found["unique"]["within"]) == ("args", 3600.0)
    assert "succeeded" in found["unique"]["states"]
    either.engine(lambda engine: engine.put_schedule(NewSchedule("plain", "0 3 * * *", "report", timeout=0)))
    assert "at most 5 per job, without a timeout" in either.done("schedules", "show", "plain")
    assert either("schedules", "show", "plain", "--json").json["unique"] is None


def test_a_schedule_that_cannot_be_read_here(either: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    either.engine(lambda engine: engine.put_schedule(NewSchedule("nightly", "0 3 * * *", "t", tz="Europe/Paris")))

    def time_zone(tz: str) -> None:
        raise FieldError(f"unknown time zone {tz!r}", pointer="/tz")

    monkeypatch.setattr(cron, "time_zone", time_zone)
    for verb in ("show", "pause", "resume", "run"):
        said = either("schedules", verb, "nightly")
        assert (said.code != 0, said.out) == (True, "")
        assert said.err.startswith("ropeway: the schedule 'nightly' cannot be read here: unknown time zone 'Euro")
        assert said.err.count("\n") == 1, said.err
    assert either.done("schedules", "delete", "nightly") == "deleted nightly"
    assert either("schedules", "show", "nightly").code == 1


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "run", "delete"])
def test_a_schedule_that_is_not_there(cli: Cli, verb: str) -> None:
    cli.engine(lambda engine: engine.put_schedule(NewSchedule("nightly", "0 3 * * *", "report")))
    said = cli("schedules", verb, "nigthly")
    assert (said.code, said.out) == (1, "")
    assert said.err == "ropeway: no schedule 'nigthly' (did you mean nightly?)\n"


def test_workers_are_listed(either: Cli) -> None:
    info = WorkerInfo("host-1/77", "host-1", 77, "0.1.0", ("mail", "default"), ("t",), 100, 3, 52 * 1_048_576)
    either.engine(lambda engine: engine.report_worker(info))
    lines = either.done("workers", "list").splitlines()
    assert lines[0].split() == ["WORKER", "STATE", "BUSY", "QUEUES", "MEMORY", "UP", "SEEN"]
    assert re.match(r"host-1/77  running  3/100  mail, default  52 MiB  ", lines[1])
    (worker,) = either("workers", "list", "--json").json["workers"]
    assert (worker["worker_id"], worker["pid"], worker["queues"]) == ("host-1/77", 77, ["mail", "default"])
    assert worker["last_seen_at"].endswith("Z")


# ── init ──


def test_init_writes_a_file_that_runs(cli: Cli) -> None:
    said = cli.done("init")
    assert "ropeway dev tasks.py" in said
    code = "import tasks, asyncio; print(asyncio.run(tasks.hello('Ada')), tasks.divide(1, 2))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("Hello, Ada! 0.5\n", "")
    assert not Path("ropeway.db").exists()


def test_the_commands_that_init_shows_make_jobs_with_the_task_s_own_options(cli: Cli) -> None:
    shown = [line.split() for line in cli.done("init", "jobs.py").splitlines() if "ropeway enqueue" in line]
    assert len(shown) == 2
    for words in shown:
        cli.done(*(word for word in words[1:] if word != "--wait"))
    newest = cli("jobs", "list", "--json").json["jobs"][0]
    assert (newest["type"], newest["max_attempts"]) == ("divide", 3)


def test_init_never_overwrites(cli: Cli) -> None:
    Path("tasks.py").write_text("mine")
    said = cli("init")
    assert (said.code, said.out, Path("tasks.py").read_text()) == (1, "", "mine")
    told = "tasks.py is there already, nothing was written (name another file: ropeway init jobs.py)"
    assert said.err == f"ropeway: {told}\n"
    assert "ropeway dev jobs.py" in cli.done("init", "jobs.py")
    said = cli("init", "no/such/folder.py")
    assert (said.code, said.err) == (
        1,
        "ropeway: no/such/folder.py cannot be written: No such file or directory\n",
    )


# ── the whole ──


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["jbos"], "No such command 'jbos'. Did you mean 'jobs'? (see ropeway --help)"),
        (["jobs", "lst"], "No such command 'lst'. Did you mean 'list'? (see ropeway jobs --help)"),
        (["queues", "stop"], "No such command 'stop' (see ropeway queues --help)"),
        (["jobs", "show"], "Missing argument 'ID' (see ropeway jobs show --help)"),
        (["jobs", "list", "extra"], "Got unexpected extra argument(s) (extra) (see ropeway jobs list --help)"),
        (
            ["jobs", "list", "--url", "nonsense"],
            (
                "url: the value (not shown: it may hold a password) from --url is not valid:"
                " expected a URL such as sqlite:///ropeway.db or postgresql://user@host/database"
            ),
        ),
    ],
)
def test_commands_that_are_called_wrongly(cli: Cli, words: list[str], told: str) -> None:
    said = cli(*words)
    assert (said.code, said.out, said.err) == (2, "", f"ropeway: {told}\n")


def test_help_names_the_commands_and_the_exit_codes(cli: Cli) -> None:
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", cli.done("--help")).split())
    for word in ("init", "enqueue", "jobs", "queues", "dead", "schedules", "workers", "--install-completion"):
        assert word in text
    codes = (
        "Exit codes: 0 done; 1 it failed, or what was named is not there; 2 called or set up wrongly;"
        " 3 the store is away; 130 Ctrl-C."
    )
    assert codes in text


@pytest.mark.parametrize("group", ["jobs", "queues", "dead", "schedules", "workers"])
def test_a_group_alone_shows_its_commands(cli: Cli, group: str) -> None:
    said = cli(group)
    assert said.code == 2
    assert "list" in said.out + said.err


def test_an_error_of_our_own_is_one_line_too(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh\nno")

    monkeypatch.setattr("ropeway.cli.values.payload_of", broken)
    monkeypatch.delenv("ROPEWAY_DEBUG", raising=False)
    assert run(["enqueue", "t"]) == 1
    told = "this is a bug in Ropeway: ZeroDivisionError: oh no (ROPEWAY_DEBUG=1 shows where)"
    assert capsys.readouterr().err == f"ropeway: {told}\n"
    monkeypatch.setenv("ROPEWAY_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run(["enqueue", "t"])


# ── completion ──


def complete(cli: Cli, line: str) -> list[str]:
    """What bash would offer at the end of a line."""
    words = line.split(" ")
    code = "from ropeway.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "_ROPEWAY_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_the_shell_completes_commands_statuses_and_names(cli: Cli) -> None:
    assert complete(cli, "ropeway que") == ["queues"]
    assert complete(cli, "ropeway jobs list --status de") == ["dead"]
    assert complete(cli, "ropeway queues pause ") == [], "a store that is not there completes nothing"
    assert list(Path.cwd().iterdir()) == []
    cli.done("enqueue", "email.send", "--queue", "mail")
    assert complete(cli, "ropeway queues pause ma") == ["mail"]
    assert complete(cli, "ropeway jobs list --type em") == ["email.send"]
    assert complete(cli, "ropeway jobs list --url sqlite:///other.db --queue ") == []


def test_a_queue_may_hold_any_number_of_each_state(cli: Cli) -> None:
    async def many(engine: Engine) -> None:
        for _ in range(11):
            await enqueue_many(engine, 1000)
        await enqueue_one(engine, delay=60)

    cli.engine(many)
    assert cli.done("queues", "list").splitlines()[1].split()[:2] == ["default", "10,000+"]
    assert cli("queues", "list", "--json").json["queues"][0]["counts"][State.QUEUED] == 10_000


# ── the page about it ──

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command with the words that call it."""
    inner = getattr(command, "commands", {})
    if not inner:
        yield path, command
    for name, one in inner.items():
        yield from commands(one, f"{path} {name}")


def test_every_command_and_option_is_documented() -> None:
    page = PAGE.read_text()
    documented_here = {"init", "enqueue", "jobs", "queues", "dead", "schedules", "workers"}
    documented_here |= {"tenants", "keys", "audit"}
    for path, command in commands(typer.main.get_command(app), "ropeway"):
        assert path in page, f"docs/cli.md does not speak of {path}"
        if path.split()[1] in documented_here:
            for option in (name for parameter in command.params for name in parameter.opts):
                assert not option.startswith("--") or f"`{option}" in page, f"{path} {option}"


def test_every_status_and_every_older_word_is_documented() -> None:
    page = PAGE.read_text()
    for word in (*State, *STATE_ALIASES):
        assert f"`{word}`" in page, word
