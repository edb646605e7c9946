"""Enqueue, list, show, cancel, retry, tail: on SQLite files, and the main ones on PostgreSQL."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ropeway.core.job import Progress
from ropeway.core.joblog import LogLine
from ropeway.core.outcome import Lost
from ropeway.core.payload import JobError
from ropeway.core.states import State
from ropeway.engines.protocol import Engine, WorkerRef
from ropeway.runtime import ids
from ropeway.testing.conformance.kit import ack, enqueue_many, enqueue_one, lease_one, nack, settle
from tests.engines.pg_kit import migrated
from tests.integration.cli_kit import Cli

UNKNOWN = "0198c0de-0000-7000-8000-000000000000"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("ROPEWAY_URL", raising=False)
    monkeypatch.delenv("ROPEWAY_APP", raising=False)
    return Cli(capsys)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def either(cli: Cli, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The same commands on both stores."""
    if request.param == "postgres":
        cli.url = migrated(request.getfixturevalue("postgres_database"))
        monkeypatch.setenv("ROPEWAY_URL", cli.url)
    return cli


# ── enqueue ──


def test_enqueue_prints_the_id_and_nothing_else(either: Cli) -> None:
    said = either("enqueue", "hello", "name=Ada")
    assert (said.code, said.err) == (0, "")
    shown = either("jobs", "show", said.out.strip(), "--json").json
    assert (shown["type"], shown["queue"], shown["status"]) == ("hello", "default", "queued")
    assert shown["payload"] == {"name": "Ada"}


@pytest.mark.parametrize(
    ("words", "payload"),
    [
        ([], b"{}"),
        (["a=1", "b=true", "c=null", 'd="x"', "e=[1, 2]", 'f={"g": 1.50}'], None),
        (["name=Ada Lovelace"], b'{"name":"Ada Lovelace"}'),
        (["a="], b'{"a":""}'),
        (["a=NaN", "b=1_000", "c=0x1", "d=01"], b'{"a":"NaN","b":"1_000","c":"0x1","d":"01"}'),
        (["zip==01234", "n==7", "x===y"], b'{"zip":"01234","n":"7","x":"=y"}'),
        (["a:=[1,2]", "price:=1.50"], b'{"a":[1,2],"price":1.50}'),
        (["q=a=b=c", "u=http://x/?a=1"], b'{"q":"a=b=c","u":"http://x/?a=1"}'),
        (["ü=ß", "e=😀"], '{"ü":"ß","e":"😀"}'.encode()),
        (["--payload", " [1, 2.50] \n"], b"[1, 2.50]"),
        (["--payload", '"text"'], b'"text"'),
        (["--payload", "@body.json"], b'{"from": "file"}'),
        (["--payload", "-"], b'{"from": "stdin"}'),
    ],
)
def test_how_words_become_a_payload(
    cli: Cli, words: list[str], payload: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("body.json").write_text('{"from": "file"}\n')
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"from": "stdin"}\n')))
    id = cli.done("enqueue", "t", *words)
    (job,) = cli.engine(lambda engine: engine.get([UUID(id)]))
    assert job is not None
    if payload is None:
        payload = b'{"a":1,"b":true,"c":null,"d":"x","e":[1, 2],"f":{"g": 1.50}}'
    assert job.payload == payload


def test_every_option_of_a_job(cli: Cli) -> None:
    id = cli.done(
        *("enqueue", "t", "--queue", "mail", "--priority", "high", "--delay", "1h30m", "--key", "k1"),
        *("--max-attempts", "7", "--header", "a=b=c", "--header", "x=", "--tag", "one", "--tag", "two"),
        *("--timeout", "10m", "--expires-in", "2d"),
    )
    job = cli("jobs", "show", id, "--json").json
    assert (job["queue"], job["priority"], job["status"]) == ("mail", 3, "scheduled")
    assert (job["idempotency_key"], job["max_attempts"], job["timeout"]) == ("k1", 7, 600)
    assert (job["headers"], job["tags"]) == ({"a": "b=c", "x": ""}, ["one", "two"])
    assert job["expires_at"] is not None


def test_a_time_to_run_at(cli: Cli) -> None:
    id = cli.done("enqueue", "t", "--run-at", "2030-01-31T09:00:00+02:00")
    assert cli("jobs", "show", id, "--json").json["run_at"] == "2030-01-31T07:00:00.000000Z"


def test_the_settings_say_what_the_command_does_not(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWAY_RETRY_MAX_ATTEMPTS", "9")
    Path("pyproject.toml").write_text("[tool.ropeway]\njob_timeout = 33\n")
    job = cli("jobs", "show", cli.done("enqueue", "t"), "--json").json
    assert (job["max_attempts"], job["timeout"]) == (9, 33)


def test_the_url_of_a_flag_goes_before_the_environments(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWAY_URL", "sqlite:///environment.db")
    cli.done("enqueue", "t", "--url", "sqlite:///flag.db")
    assert [path.exists() for path in (Path("flag.db"), Path("environment.db"))] == [True, False]
    cli.done("enqueue", "t")
    assert Path("environment.db").exists()


def test_a_second_job_with_the_key_is_the_first_one(either: Cli) -> None:
    first = either("enqueue", "t", "--key", "k")
    second = either("enqueue", "t", "--key", "k")
    assert second.out == first.out
    assert second.err == "Not enqueued again: this is the earlier job, status queued.\n"
    answer = either("enqueue", "t", "--key", "k", "--json").json
    assert answer == {
        "id": first.out.strip(),
        "run_id": first.out.strip(),
        "status": "queued",
        "deduplicated": True,
    }


@pytest.mark.parametrize("options", [["--unique"], ["--unique-key", "u"], ["--unique", "--unique-within", "1h"]])
def test_a_unique_job_is_made_once(cli: Cli, options: list[str]) -> None:
    assert cli.done("enqueue", "t", "a=1", *options) == cli.done("enqueue", "t", "a=1", *options)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["t", "name"],
            "argument 'name' is not key=value (for example name=Ada count=3 tags:='[\"a\"]' zip==01234)",
        ),
        (["t", "=x"], "argument '=x' is not key=value (for example name=Ada count=3 tags:='[\"a\"]' zip==01234)"),
        (["t", "a=1", "a=2"], "argument 'a' is given twice"),
        (["t", "a:=nope"], "argument 'a': 'nope' is not JSON (a=nope sends it as text)"),
        (
            ["t", "a=1", "--payload", "{}"],
            "give key=value arguments or --payload, not both ('a=1' was given beside --payload)",
        ),
        (
            ["t", "--payload", "{"],
            "payload: not valid JSON: Expecting property name enclosed in double quotes, character 1",
        ),
        (["t", "--payload", " "], "--payload is empty (JSON such as '{}', @file.json, or - for stdin)"),
        (["t", "--payload", "@no.json"], "--payload: no.json cannot be read: No such file or directory"),
        (
            ["t", "a=123456789012345678901"],
            "payload at /a: the number does not fit a 64-bit integer or a finite double (send it as a string)",
        ),
        (["a b"], "type must be 1 to 128 of A-Z a-z 0-9 . _ : -"),
        (
            ["t", "--priority", "urgent"],
            (
                "--priority: 'urgent' is not a priority"
                " (1 (first) to 9, or critical=1, high=3, default=5, low=7, bulk=9)"
            ),
        ),
        (
            ["t", "--delay", "soon"],
            "--delay: 'soon' is not a length of time (seconds, or such as 45s, 10m, 1h30m, 7d)",
        ),
        (["t", "--run-at", "soon"], "--run-at: 'soon' is not a time (for example 2026-01-31T09:00:00Z)"),
        (
            ["t", "--run-at", "2030-01-01T00:00"],
            "--run-at: '2030-01-01T00:00' does not say its time zone (add Z for UTC, or an offset such as +01:00)",
        ),
        (["t", "--delay", "1", "--run-at", "2030-01-01T00:00Z"], "give run_at or delay, not both"),
        (["t", "--max-attempts", "26"], "max_attempts must be an integer from 1 to 25"),
        (["t", "--header", "x"], "--header: 'x' is not a pair (write name=value)"),
        (["t", "--header", "x=1", "--header", "x=2"], "--header: 'x' is given twice"),
        (["t", "--unique-within", "1h"], "--unique-within goes with --unique or --unique-key"),
        (["t", "--timeout", "0.5"], "timeout must be a number of seconds from 1 to 86400"),
        (["t", "--tenant", "a b"], "tenant must be 1 to 128 of A-Z a-z 0-9 . _ : -"),
        (
            ["t", "--url", "memory://"],
            (
                "memory:// lives inside one process, so no command can see it"
                " (use sqlite:///ropeway.db to share jobs between processes)"
            ),
        ),
        ([], "Missing argument 'TYPE' (see ropeway enqueue --help)"),
    ],
)
def test_what_enqueue_refuses(cli: Cli, words: list[str], told: str) -> None:
    said = cli("enqueue", *words)
    assert (said.code, said.out, said.err) == (2, "", f"ropeway: {told}\n")
    assert not Path("ropeway.db").exists()


def test_a_key_with_another_body_is_refused(cli: Cli) -> None:
    cli.done("enqueue", "t", "a=1", "--key", "k")
    said = cli("enqueue", "t", "a=2", "--key", "k")
    assert (said.code, said.out) == (2, "")
    assert re.fullmatch(r"ropeway: .*key.*\n", said.err)


APP = """
from ropeway import Ropeway
app = Ropeway()

@app.task(name="mail", queue="post", priority="high", max_attempts=2, timeout=60)
def mail(to: str, copies: int = 1) -> None: ...
"""


def test_with_an_app_the_tasks_own_options_and_arguments_count(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("tasks_for_cli.py").write_text(APP)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    app = ("--app", "tasks_for_cli.py")
    job = cli("jobs", "show", cli.done("enqueue", "mail", "to=ada", *app), "--json").json
    assert (job["queue"], job["priority"], job["max_attempts"], job["timeout"]) == ("post", 3, 2, 60)
    monkeypatch.setenv("ROPEWAY_APP", "tasks_for_cli.py")
    job = cli("jobs", "show", cli.done("enqueue", "mail", "to=ada", "-q", "other"), "--json").json
    assert (job["queue"], job["priority"]) == ("other", 3)
    said = cli("enqueue", "mial", "to=ada")
    assert (said.code, said.err) == (1, "ropeway: no task is named 'mial' (did you mean mail?)\n")
    said = cli("enqueue", "mail", "too=ada")
    assert said.code == 2
    assert re.fullmatch(r"ropeway: mail\(\): argument 'too' .*did you mean 'to'\?\)\n", said.err), said.err
    said = cli("enqueue", "mail", "--app", "nowhere.py")
    assert (said.code, said.err[:34]) == (2, "ropeway: there is no file nowhere.")


# ── list ──


def test_a_look_makes_no_store(cli: Cli) -> None:
    for command in (
        ["jobs", "list"],
        ["jobs", "show", UNKNOWN],
        ["jobs", "cancel", UNKNOWN],
        ["jobs", "tail"],
        ["queues", "list"],
        ["queues", "pause", "q"],
        ["dead", "list"],
        ["dead", "retry", "--all", "--yes"],
        ["schedules", "list"],
        ["workers", "list"],
    ):
        said = cli(*command)
        assert (said.code, said.out) == (2, ""), command
        assert said.err == (
            "ropeway: there is no store at sqlite:///ropeway.db (the first `ropeway enqueue` or `ropeway worker`"
            " makes it; if your jobs are elsewhere, say so with --url or ROPEWAY_URL)\n"
        )
    assert list(Path.cwd().iterdir()) == []
    said = cli("jobs", "list", "--url", "sqlite:///there.db")
    assert said.err == (
        "ropeway: there is no store at sqlite:///there.db (the first `ropeway enqueue` or `ropeway worker`"
        " makes it; that URL comes from --url)\n"
    )


def fill(engine: Engine) -> Any:
    """One job in each of several states, each in a queue and of a type of its own."""

    async def work() -> dict[str, UUID]:
        made = {"queued": await enqueue_one(engine, type="t.queued", queue="q1", tags=("nightly",))}
        made["scheduled"] = await enqueue_one(engine, type="t.scheduled", queue="q2", delay=3_600)
        made["running"] = await enqueue_one(engine, type="t.running", queue="q3")
        await lease_one(engine, "q3", by=WorkerRef("host/1", ids.token()))
        made["retrying"] = await enqueue_one(engine, type="t.retrying", queue="q4")
        await nack(engine, await lease_one(engine, "q4"), retry_after=3_600.0)
        made["succeeded"] = await enqueue_one(engine, type="t.succeeded", queue="q5", idempotency_key="k")
        await ack(engine, await lease_one(engine, "q5"), b'{"n": 1.50}')
        made["dead"] = await enqueue_one(engine, type="t.dead", queue="q6", max_attempts=1)
        await nack(engine, await lease_one(engine, "q6"), error=JobError("E", "no such user"))
        return made

    return work()


def test_jobs_are_listed_newest_first_and_narrowed(either: Cli) -> None:
    made = either.engine(fill)
    listed = either("jobs", "list", "--json").json
    assert [job["id"] for job in listed["jobs"]] == [str(id) for id in reversed(made.values())]
    assert listed["next_cursor"] is None

    def found(*options: str) -> set[str]:
        return {job["status"] for job in either("jobs", "list", "--json", *options).json["jobs"]}

    assert found("--queue", "q1") == {"queued"}
    assert found("--type", "t.dead") == {"dead"}
    assert found("--status", "dead", "--state", "queued") == {"dead", "queued"}
    assert found("--status", "dead,queued") == {"dead", "queued"}
    assert found("--status", "pending") == {"queued"}
    assert found("--status", "failed,dlq") == {"retrying", "dead"}
    assert found("--key", "k") == {"succeeded"}
    assert found("--tag", "nightly") == {"queued"}
    assert found("--error", "no such") == {"dead"}
    assert found("--since", "1h") == set(made)
    assert found("--until", "1h") == set()
    assert found("--since", "2099-01-01T00:00:00Z") == set()
    assert found("--tenant", "other") == set()


def test_a_table_for_people(either: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    made = either.engine(fill)
    wide = either.done("jobs", "list").splitlines()
    assert wide[0].split() == ["ID", "STATUS", "TYPE", "QUEUE", "RUNS", "WHEN"]
    assert wide[1].split()[:5] == [str(made["dead"]), "dead", "t.dead", "q6", "1/1"]
    assert [line.split()[1] for line in wide[1:]] == list(reversed(made))
    assert wide[-2].split()[-2:] == ["in", "59m"]
    monkeypatch.setenv("COLUMNS", "80")
    narrow = either.done("jobs", "list").splitlines()
    assert max(map(len, narrow)) <= 80
    for line in narrow[1:]:
        short = line.split()[0]
        assert either("jobs", "show", short).code == 0, "what a table shows is accepted"


def test_long_names_are_cut_to_the_terminal_and_whole_in_a_pipe(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    type, queue = "t" * 128, "q" * 128
    cli.done("enqueue", type, "--queue", queue)
    assert f"{type}  {queue}" in cli.done("jobs", "list")
    monkeypatch.setenv("COLUMNS", "80")
    for line in cli.done("jobs", "list").splitlines():
        assert len(line) <= 80
    assert "tttt…" in cli.done("jobs", "list")
    for command in (["queues", "list"], ["dead", "list"], ["jobs", "show", cli.done("jobs", "list").split()[6]]):
        said = cli(*command)
        assert max(map(len, said.out.splitlines() or [""])) <= 80, said.out


def test_ids_in_a_table_tell_its_jobs_apart(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    made = cli.engine(lambda engine: enqueue_many(engine, 5))
    cli.engine(lambda engine: enqueue_many(engine, 5))
    shown = [line.split()[0] for line in cli.done("jobs", "list").splitlines()[1:]]
    assert len(set(shown)) == 10
    assert cli("jobs", "show", shown[-1], "--json").json["id"] == str(made[0])


def test_pages(cli: Cli) -> None:
    cli.engine(lambda engine: enqueue_many(engine, 7))
    first = cli("jobs", "list", "--limit", "3")
    assert len(first.out.splitlines()) == 4
    hint = re.fullmatch(r"3 jobs shown, there are more: --all, or --after (\w+)\n", first.err)
    assert hint
    second = cli("jobs", "list", "--limit", "3", "--after", hint[1])
    assert not set(first.out.splitlines()[1:]) & set(second.out.splitlines()[1:])
    everything = cli("jobs", "list", "--all", "--limit", "3")
    assert (len(everything.out.splitlines()), everything.err) == (8, "")
    page = cli("jobs", "list", "--limit", "3", "--json").json
    rest = cli("jobs", "list", "--after", page["next_cursor"], "--json").json
    assert len(page["jobs"]) + len(rest["jobs"]) == 7


def test_all_of_many_is_one_document_and_one_table(cli: Cli) -> None:
    for _ in range(3):
        cli.engine(lambda engine: enqueue_many(engine, 400))
    assert len(cli("jobs", "list", "--all", "--json").json["jobs"]) == 1200
    lines = cli.done("jobs", "list", "--all").splitlines()
    assert (len(lines), sum(line.startswith("ID") for line in lines)) == (1201, 1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "No jobs match."),
        (["--queue", "mial"], "No jobs match: there is no queue 'mial', did you mean mail?"),
        (
            ["--type", "emial.send"],
            "No jobs match: no job of type 'emial.send' is known, did you mean email.send?",
        ),
        (["--queue", "zzz"], "No jobs match."),
    ],
)
def test_nothing_found_is_no_failure(cli: Cli, options: list[str], told: str) -> None:
    cli.done("enqueue", "email.send", "--queue", "mail")
    said = cli("jobs", "list", "--status", "dead", *options)
    assert (said.code, said.out, said.err) == (0, "", f"{told}\n")
    assert cli("jobs", "list", "--status", "dead", "--json").json == {"jobs": [], "next_cursor": None}


def test_an_empty_store_says_so(cli: Cli) -> None:
    cli.engine(lambda engine: engine.now())
    assert cli("jobs", "list").err == "No jobs.\n"
    assert cli("dead", "list").err == "No dead jobs.\n"
    assert cli("queues", "list").err == "No queues: none holds jobs, is paused or has settings.\n"
    assert cli("workers", "list").err == "No workers. Start one with `ropeway worker`.\n"
    assert cli("schedules", "list").err == (
        "No schedules. @app.cron declares one; a worker that runs the app stores it.\n"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--status", "ded"], "unknown status 'ded' (did you mean dead?)"),
        (
            ["--status", "xyz"],
            (
                "unknown status 'xyz'"
                " (one of scheduled, queued, running, retrying, waiting, succeeded, dead, cancelled)"
            ),
        ),
        (
            ["--since", "soon"],
            "--since: 'soon' is neither a time nor how long ago (for example 2h, 7d or 2026-01-31T09:00:00Z)",
        ),
        (
            ["--until", "2026-01-01"],
            "--until: '2026-01-01' does not say its time zone (add Z for UTC, or an offset such as +01:00)",
        ),
        (["--since", "99999999999d"], "--since: 99999999999d is too long ago"),
        (["--after", "nonsense"], "this is not a position in a list of jobs"),
        (["--queue", "a b"], "queue must be 1 to 128 of A-Z a-z 0-9 . _ : -"),
        (["--quue", "x"], "No such option: --quue. Did you mean --queue? (see ropeway jobs list --help)"),
    ],
)
def test_what_list_refuses(cli: Cli, words: list[str], told: str) -> None:
    cli.done("enqueue", "t")
    said = cli("jobs", "list", *words)
    assert (said.code, said.out, said.err) == (2, "", f"ropeway: {told}\n")


# ── show ──


async def hard_life(engine: Engine) -> UUID:
    """A job that failed, lost its worker and died, and spoke meanwhile."""
    id = await enqueue_one(
        engine, type="boom", payload=b'{"a": [1.50]}', max_attempts=2, tags=("x",), headers={"h": "v"}
    )
    by = WorkerRef("host-1/77", ids.token())
    leased = await lease_one(engine, by=by)
    await engine.log([(leased.lease, LogLine("hello \x1b[31mred")), (leased.lease, LogLine("late", "warning"))])
    await engine.progress([(leased.lease, Progress(3, 10, "third"))])
    error = JobError("ValueError", "no [bold]user[/bold]", "Traceback (most recent call last):\nValueError: no")
    await nack(engine, leased, error=error, retry_after=0.0)
    await settle(engine, await lease_one(engine, by=by), Lost("crashed", signal=9))
    return id


def test_everything_about_a_job(either: Cli) -> None:
    id = either.engine(hard_life)
    text = either.done("jobs", "show", str(id))
    for part in (
        str(id),
        "dead: it failed and has no attempts left (max_attempts)",
        "2 of 2 used, 1 worker lost",
        "default, priority 5",
        "h: v",
        "  1.50",
        "ValueError: no [bold]user[/bold]",
        "Traceback (most recent call last):",
        "host-1/77",
        "killed by SIGKILL",
        "warning  late",
        "hello \N{REPLACEMENT CHARACTER}[31mred",
        "job.enqueued",
        "job.failed",
        "again in 0ms",
        "job.dlq",
    ):
        assert part in text, part
    assert "\x1b" not in text
    assert re.search(r"^created +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z  \(.+\)", text, re.MULTILINE)


def test_everything_about_a_job_for_programs(either: Cli) -> None:
    id = either.engine(hard_life)
    said = either("jobs", "show", str(id), "--json")
    job = said.json
    assert '"a": [\n      1.50' in said.out, "numbers stay as they were written"
    assert (job["status"], job["dead_reason"], job["dead_at"]) == ("dead", "max_attempts", job["finished_at"])
    assert job["last_error"] == {"type": "ValueError", "message": "no [bold]user[/bold]", "truncated": False}
    first, second = job["attempt_history"]
    assert (first["outcome"], first["worker_id"], first["retry_in_ms"]) == ("failed", "host-1/77", 0)
    assert first["error"]["traceback"].startswith("Traceback")
    assert (second["outcome"], second["signal"]) == ("crashed", 9)
    assert [event["event"] for event in job["events"]] == [
        "job.enqueued",
        "job.started",
        "job.failed",
        "job.started",
        "job.dlq",
    ]
    assert [(line["level"], line["attempt"]) for line in job["logs"]] == [("info", 1), ("warning", 1)]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", job["created_at"])


def test_a_running_job_shows_progress_and_worker(cli: Cli) -> None:
    async def start(engine: Engine) -> UUID:
        id = await enqueue_one(engine)
        leased = await lease_one(engine, by=WorkerRef("host-1/77", ids.token()))
        await engine.progress([(leased.lease, Progress(3, 10, "third"))])
        return id

    text = cli.done("jobs", "show", str(cli.engine(start)))
    assert "[######--------------] 3 of 10 (30%), third" in text
    assert "host-1/77, lease until" in text


def test_a_result_is_shown(cli: Cli) -> None:
    async def finish(engine: Engine) -> UUID:
        id = await enqueue_one(engine)
        await ack(engine, await lease_one(engine), b'{"total": 1.50}')
        return id

    text = cli.done("jobs", "show", str(cli.engine(finish)))
    assert 'Result\n  {\n    "total": 1.50\n  }' in text


def test_a_large_payload_is_cut_for_people_only(cli: Cli) -> None:
    id = cli.done("enqueue", "t", "--payload", str(list(range(1000))))
    assert "… 972 more lines, see --json" in cli.done("jobs", "show", id)
    assert len(cli("jobs", "show", id, "--json").json["payload"]) == 1000


@pytest.mark.parametrize(
    ("id", "code", "told"),
    [
        (UNKNOWN, 1, f"no job {UNKNOWN} (ended jobs are removed when their time is over: see the keep_ settings)"),
        ("0198c0de-0000", 1, "no job whose id starts with 0198c0de-0000 (ropeway jobs list shows the newest)"),
        (
            "hello",
            2,
            (
                "'hello' is not a job id"
                " (ids look like 0198c0de-4242-7000-8000-0123456789ab; the beginning is enough)"
            ),
        ),
        (
            "019",
            2,
            (
                "'019' is too short for the beginning of a job id"
                " (give at least 6 digits, as `ropeway jobs list` shows them)"
            ),
        ),
    ],
)
def test_a_job_that_is_not_there(cli: Cli, id: str, code: int, told: str) -> None:
    cli.done("enqueue", "t")
    for group in ("jobs", "dead"):
        said = cli(group, "show", id)
        assert (said.code, said.out, said.err) == (code, "", f"ropeway: {told}\n")


def test_a_beginning_of_several_ids_is_told(cli: Cli) -> None:
    first, second = cli.engine(lambda engine: enqueue_many(engine, 2))
    start = str(first)[:13]
    said = cli("jobs", "show", start)
    assert (said.code, said.out, said.err) == (
        2,
        "",
        f"ropeway: more than one job's id starts with {start} (give more of it: {first}, {second} ...)\n",
    )


# ── cancel, retry ──


def test_jobs_are_cancelled_and_retried(either: Cli) -> None:
    id, other = either.done("enqueue", "t"), either.done("enqueue", "t")
    assert either.done("jobs", "cancel", id) == f"cancelled {id} (was queued)"
    assert either.done("jobs", "retry", id) == f"retried {id} (was cancelled)"
    said = either("jobs", "cancel", id, other, "--json").json
    assert said == {
        "results": [{"id": one, "ok": True, "status": "cancelled", "was": "queued"} for one in (id, other)]
    }


def test_one_refusal_does_not_stop_the_others(cli: Cli) -> None:
    id = cli.done("enqueue", "t")
    said = cli("jobs", "cancel", UNKNOWN, id, "hello", id)
    assert (said.code, said.out) == (1, f"cancelled {id} (was queued)\n")
    assert len(said.err.splitlines()) == 2
    assert all(line.startswith("ropeway: ") for line in said.err.splitlines())
    again = cli("jobs", "cancel", id)
    assert (again.code, again.out) == (1, "")
    assert re.fullmatch(r"ropeway: .*cancelled.*\n", again.err)
    results = cli("jobs", "retry", UNKNOWN, "--json")
    assert results.code == 1
    (result,) = results.json["results"]
    assert (result["ok"], result["error"]["code"]) == (False, "not_found")
    assert cli("jobs", "cancel", "hello").code == 2


# ── tail ──


def test_the_tail_of_a_job_that_has_ended_is_its_life(either: Cli) -> None:
    id = either.engine(hard_life)
    lines = either.done("jobs", "tail", str(id)).splitlines()
    words = [line.split()[1] for line in lines]
    assert words == ["enqueued", "started", "info", "warning", "failed", "started", "dlq"]
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3}  started      attempt 1 by host-1/77", lines[1])


def test_the_tail_of_all_jobs_is_narrowed_and_resumed(either: Cli) -> None:
    either.engine(fill)
    everything = either.done("jobs", "tail", "--all", "-n", "12").splitlines()
    assert len(everything) == 12
    assert "t.queued" in everything[0]
    (died,) = either.done("jobs", "tail", "--all", "-n", "1", "--event", "dlq").splitlines()
    assert died.endswith("t.dead  max_attempts, E: no such user")
    lines = either(
        "jobs", "tail", "--all", "-n", "2", "--queue", "q5", "--status", "running,success", "--json"
    ).out
    events = [json.loads(line) for line in lines.splitlines()]
    assert [(event["event"], event["queue"]) for event in events] == [
        ("job.started", "q5"),
        ("job.completed", "q5"),
    ]
    assert events[1]["data"].keys() == {"duration_ms"}
    position = either.engine(lambda engine: engine.tail_position())
    either.done("enqueue", "fresh")
    assert "fresh" in either.done("jobs", "tail", "--after", position, "-n", "1")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--event", "dql"], "unknown event 'dql' (did you mean dlq?)"),
        (["--status", "ded"], "unknown status 'ded' (did you mean dead?)"),
        (["--all", "--after", "1"], "give --all or --after, not both"),
        (["--after", "x"], "this is not a position in the event log"),
    ],
)
def test_what_tail_refuses(cli: Cli, words: list[str], told: str) -> None:
    cli.done("enqueue", "t")
    said = cli("jobs", "tail", *words)
    assert (said.code, said.out, said.err) == (2, "", f"ropeway: {told}\n")


def test_the_states_of_the_table_are_all_known_to_the_filter(cli: Cli) -> None:
    cli.done("enqueue", "t")
    for state in State:
        assert cli("jobs", "list", "--status", state.value.upper()).code == 0
