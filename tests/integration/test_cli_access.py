"""Tenants, keys, the log of actions and what queues are set to, by commands, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import getpass
import re
from pathlib import Path
from typing import Any

import pytest

from ropeway.cli import acting
from ropeway.core.access import Limits, Scope
from ropeway.core.errors import Unauthenticated, Unavailable
from ropeway.core.query import QueueSettings
from ropeway.core.schedule import NewSchedule
from ropeway.core.states import State
from ropeway.engines.protocol import Engine
from ropeway.service.access import Access, Principal
from ropeway.testing.conformance.kit import enqueue_many, enqueue_one, lease_some, nack
from tests.engines.pg_kit import migrated
from tests.integration.cli_kit import Cli

ME = f"cli:{getpass.getuser()}"
TOKEN = re.compile(r"rw_live_[a-z2-7]{12}_[0-9A-Za-z]{43}_[0-9a-z]{7}")


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


def holder(cli: Cli, token: str) -> Principal:
    async def ask(engine: Engine) -> Principal:
        access = Access(engine)
        try:
            return await access.authenticate(token)
        finally:
            await access.close()

    return cli.engine(ask)


def actions(cli: Cli, *options: str) -> list[tuple[str, str, str]]:
    entries: list[dict[str, Any]] = cli("audit", "--json", *options).json["entries"]
    return [(entry["actor"], entry["action"], entry["target"]) for entry in entries]


# ── keys ──


def test_a_key_is_made_and_its_token_is_all_that_stdout_has(either: Cli) -> None:
    said = either("keys", "create", "website")
    assert said.code == 0
    token = said.out.removesuffix("\n")
    assert TOKEN.fullmatch(token)
    principal = holder(either, token)
    assert (principal.tenant, principal.name, principal.scopes) == ("default", "website", {Scope.ENQUEUE})
    assert "shown only now" in said.err
    assert token not in said.err
    assert principal.key_id in said.err


def test_keys_are_listed_without_anything_secret(either: Cli) -> None:
    token = either.done("keys", "create", "ops", "--scope", "admin,work", "-s", "read", "--expires-in", "30d")
    id, secret = token.split("_")[2:4]
    table, document = either.done("keys", "list"), either("keys", "list", "--json")
    line = table.splitlines()[1].split("  ")
    assert line[0] == id
    assert "admin, read, work" in table
    assert ("in 29d" in table) or ("in 30d" in table)
    (key,) = document.json["keys"]
    assert (key["id"], key["scopes"], key["last_used_at"]) == (id, ["admin", "read", "work"], None)
    digest = either.engine(lambda engine: engine.find_key(id))
    assert digest is not None
    for text in (table, document.out):
        assert secret not in text
        assert digest[0].digest.hex() not in text
        assert "digest" not in text


def test_a_key_is_rotated_and_revoked(either: Cli) -> None:
    made = either("keys", "create", "k", "--json").json
    said = either("keys", "rotate", made["id"], "--overlap", "2h")
    assert said.code == 0
    assert "ends in 2h" in said.err
    new = said.out.removesuffix("\n")
    assert holder(either, new).name == "k"
    assert holder(either, made["token"]).name == "k"
    new_id = new.split("_")[2]
    assert either.done("keys", "revoke", new_id) == f"revoked {new_id} (k)"
    with pytest.raises(Unauthenticated):
        holder(either, new)
    assert "revoked now" in either.done("keys", "list") or "revoked 1s ago" in either.done("keys", "list")
    assert either("keys", "revoke", new_id, "--json").json["revoked_at"] is not None
    rotated = either("keys", "rotate", made["id"], "--overlap", "0", "--json").json
    assert TOKEN.fullmatch(rotated["token"])
    assert [action for _, action, _ in actions(either)] == [
        "key.rotate",
        "key.revoke",
        "key.revoke",
        "key.rotate",
        "key.create",
    ]


def test_keys_of_another_tenant(either: Cli) -> None:
    assert either.done("tenants", "create", "Acme Ltd", "--id", "acme") == "acme"
    made = either("keys", "create", "k", "--tenant", "acme", "--json").json
    assert holder(either, made["token"]).tenant == "acme"
    assert either("keys", "list", "--json").json == {"keys": []}
    assert [key["id"] for key in either("keys", "list", "--tenant", "acme", "--json").json["keys"]] == [made["id"]]
    # Nobody reaches over: the same words as for a key that is not there.
    foreign, missing = either("keys", "revoke", made["id"]), either("keys", "revoke", "aaaaaaaaaaaa")
    assert (foreign.code, foreign.err) == (missing.code, missing.err) == (1, foreign.err)
    assert "no such key" in foreign.err
    assert actions(either, "--tenant", "acme") == [(ME, "key.create", made["id"])]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["create", "k", "--scope", "enqeue"], "unknown scope 'enqeue' (did you mean enqueue?)"),
        (
            ["create", "k", "--scope", "everything"],
            "one of enqueue, work, read, read:payload, admin, tenant-admin",
        ),
        (["create", "k", "--expires-in", "soon"], "'soon' is not a length of time"),
        (["create", "k", "--expires-in", "0"], "expires_at must be ahead"),
        (["create", "k", "--expires-in", "1d", "--expires-at", "2030-01-01T00:00:00Z"], "not both"),
        (["create", "k", "--expires-at", "2030-01-01T00:00:00"], "does not say its time zone"),
        (["create", "k", "--expires-in", "99999999d"], "too long"),
        (["create", ""], "name must be 1 to 128 characters"),
        (["create", "k", "--environment", "Live"], "environment must be 1 to 16 of a-z 0-9"),
        (["rotate", "aaaaaaaaaaaa", "--overlap", "x"], "'x' is not a length of time"),
    ],
)
def test_keys_called_wrongly(cli: Cli, arguments: list[str], told: str) -> None:
    cli.done("keys", "create", "first")
    said = cli("keys", *arguments)
    assert (said.code, said.out) == (2, "")
    assert told in said.err
    assert said.err.count("\n") == 1
    assert len(cli("keys", "list", "--json").json["keys"]) == 1


def test_a_tenant_that_was_mistyped(cli: Cli) -> None:
    cli.done("tenants", "create", "Acme", "--id", "acme")
    for command in (["create", "k"], ["list"]):
        said = cli("keys", *command, "--tenant", "amce")
        assert (said.code, said.err) == (1, "ropeway: no tenant 'amce' (did you mean acme?)\n")


def test_no_keys_yet(cli: Cli) -> None:
    assert cli("keys", "list").code == 2  # there is no store
    cli.done("tenants", "create", "Acme")
    said = cli("keys", "list")
    assert (said.code, said.out) == (0, "")
    assert "ropeway keys create" in said.err


# ── tenants ──


def test_tenants_are_made_listed_shown_and_changed(either: Cli) -> None:
    said = either(
        "tenants", "create", "Acme Ltd", "--email", "ops@acme.example", "--rate", "100", "--burst", "1,000"
    )
    assert (said.code, said.out) == (0, "acme-ltd\n")
    assert "ropeway keys create NAME --tenant acme-ltd" in said.err
    table = either.done("tenants", "list").splitlines()
    assert [line.split()[0] for line in table] == ["ID", "acme-ltd", "default"]
    assert "rate_per_second 100, burst 1,000" in table[1]
    assert (
        either.done("tenants", "set", "acme-ltd", "--rate", "default", "--max-leases", "5") == "changed acme-ltd"
    )
    found = either("tenants", "show", "acme-ltd", "--json").json
    assert found["limits"] == {
        "rate_per_second": None,
        "burst": 1000,
        "max_queued": None,
        "max_payload_bytes": None,
        "max_leases": 5,
    }
    shown = " ".join(either.done("tenants", "show", "acme-ltd").split())
    assert "rate per second the server's default requests and new jobs per second" in shown
    assert "max leases 5 jobs leased at once" in shown
    assert "email ops@acme.example" in shown
    changed = either("tenants", "set", "acme-ltd", "--name", "Acme", "--email", "", "--inactive", "--json").json
    assert (changed["name"], changed["email"], changed["is_active"]) == ("Acme", None, False)
    assert "not active" in either.done("tenants", "show", "acme-ltd")
    either.done("tenants", "set", "acme-ltd", "--active")
    assert either.engine(lambda engine: engine.tenants())[0].limits == Limits(burst=1000, max_leases=5)
    assert {(who, action) for who, action, _ in actions(either)} == {(ME, "tenant.create"), (ME, "tenant.change")}


def test_a_tenant_switched_off_is_refused(either: Cli) -> None:
    either.done("tenants", "create", "Acme", "--id", "acme")
    token = either.done("keys", "create", "k", "--tenant", "acme")
    assert holder(either, token).tenant == "acme"
    either.done("tenants", "set", "acme", "--inactive")
    with pytest.raises(Unauthenticated):
        holder(either, token)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["create", "Acme"], 1, "there is a tenant of that id or name already"),
        (["create", "Other", "--id", "not an id"], 2, "id must be 1 to 128 of"),
        (["create", "Other", "--rate", "fast"], 2, "--rate: 'fast' is not a number"),
        (["create", "Other", "--rate", "0"], 2, "must be a number from 0.001"),
        (["create", "Other", "--rate", "nan"], 2, "must be a number from 0.001"),
        (["create", "Other", "--burst", "1.5"], 2, "--burst: '1.5' is not a whole number"),
        (["create", "Other", "--max-queued", "0"], 2, "limits/max_queued must be an integer from 1"),
        (["set", "acme"], 2, "nothing to change"),
        (["set", "acne", "--name", "x"], 1, "did you mean acme?"),
        (["set", "default", "--inactive"], 2, "cannot be switched off"),
        (["show", "acne"], 1, "did you mean acme?"),
    ],
)
def test_tenants_called_wrongly(cli: Cli, arguments: list[str], code: int, told: str) -> None:
    cli.done("tenants", "create", "Acme", "--id", "acme")
    said = cli("tenants", *arguments)
    assert (said.code, said.out) == (code, "")
    assert told in said.err
    assert said.err.count("\n") == 1
    assert len(cli("tenants", "list", "--json").json["tenants"]) == 2


# ── queues ──


def test_a_queue_is_set(either: Cli) -> None:
    either.engine(lambda engine: enqueue_one(engine, queue="mail"))
    assert (
        either.done("queues", "set", "mail", "--depth-limit", "10,000", "--require-key", "--lease-seconds", "2m")
        == "set mail: at most 10,000 jobs, each needs a key, leases of 120 s"
    )
    settings = either.engine(lambda engine: engine.queue_settings())
    assert settings == {"mail": QueueSettings(10_000, True, 120.0)}
    lines = either.done("queues", "list").splitlines()
    assert (lines[0].split()[-1], lines[1].split()[-1]) == ("LIMIT", "10,000")
    assert either("queues", "list", "--json").json["queues"][0]["depth_limit"] == 10_000
    assert (
        either.done("queues", "set", "mail", "--depth-limit", "none", "--no-require-key")
        == "set mail: any number of jobs, no key needed, leases of 120 s"
    )
    assert either("queues", "set", "mail", "--lease-seconds", "none", "--json").json["lease_seconds"] is None
    assert either.engine(lambda engine: engine.queue_settings()) == {}
    assert either("queues", "set", "mial", "--require-key").code == 1
    either.done("queues", "set", "mial", "--require-key", "--force")
    assert actions(either, "--action", "queue.set") == [
        (ME, "queue.set", name) for name in ("mial", *["mail"] * 3)
    ]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "nothing to set"),
        (["--depth-limit", "many"], "--depth-limit: 'many' is not a number"),
        (["--depth-limit", "0"], "depth_limit must be an integer from 1"),
        (["--lease-seconds", "0.5"], "lease_seconds must be a number of seconds from 1"),
        (["--lease-seconds", "long"], "'long' is not a length of time"),
    ],
)
def test_queues_set_wrongly(cli: Cli, options: list[str], told: str) -> None:
    cli.engine(lambda engine: enqueue_one(engine, queue="mail"))
    said = cli("queues", "set", "mail", *options)
    assert (said.code, said.out) == (2, "")
    assert told in said.err
    assert cli.engine(lambda engine: engine.queue_settings()) == {}


# ── what was done is written down ──


def test_every_command_that_changes_something_is_in_the_log(either: Cli) -> None:
    async def fill(engine: Engine) -> list[str]:
        ids = await enqueue_many(engine, 2, max_attempts=1)
        for leased in await lease_some(engine, 2):
            await nack(engine, leased)
        await engine.put_schedule(NewSchedule("nightly", "0 3 * * *", "report"))
        return [str(id) for id in ids]

    one, _ = either.engine(fill)
    either.done("dead", "retry", one)
    either.done("dead", "retry", "--queue", "default", "--yes")
    either.done("jobs", "cancel", one)
    either.done("jobs", "retry", one)
    either.done("queues", "pause", "default")
    either.done("queues", "resume", "default")
    either.done("schedules", "pause", "nightly")
    either.done("schedules", "resume", "nightly")
    either.done("schedules", "run", "nightly")
    assert either("schedules", "delete", "nightly", "--json").json == {"name": "nightly", "deleted": True}
    assert actions(either) == [
        (ME, "schedule.delete", "nightly"),
        (ME, "schedule.run", "nightly"),
        (ME, "schedule.resume", "nightly"),
        (ME, "schedule.pause", "nightly"),
        (ME, "queue.resume", "default"),
        (ME, "queue.pause", "default"),
        (ME, "job.retry", one),
        (ME, "job.cancel", one),
        (ME, "dlq.retry", "queue=default"),
        (ME, "dlq.retry", one),
    ]
    by_filter = either("audit", "--json", "--action", "dlq.retry").json["entries"][0]
    assert (by_filter["count"], by_filter["request_id"]) == (1, None)
    table = either.done("audit", "--limit", "2")
    assert table.splitlines()[1].split()[1:4] == [ME, "schedule.delete", "nightly"] or ME in table
    events = either("jobs", "show", one, "--json").json["events"]
    assert {event["data"]["by"] for event in events if event["event"] == "job.retried"} == {ME}


def test_what_is_refused_or_only_looked_at_is_not_in_the_log(cli: Cli) -> None:
    id = str(cli.engine(lambda engine: enqueue_one(engine)))
    cli("jobs", "retry", id)
    cli("jobs", "cancel", "ffffffff")
    cli("queues", "pause", "nowhere")
    cli("schedules", "delete", "nothing")
    cli("keys", "revoke", "aaaaaaaaaaaa")
    cli("dead", "retry", "--all", "--dry-run")
    for command in (["jobs", "list"], ["queues", "list"], ["keys", "list"], ["tenants", "list"], ["audit"]):
        assert cli(*command).code == 0
    assert actions(cli) == []


def test_the_log_is_paged_and_filtered(either: Cli) -> None:
    either.engine(lambda engine: enqueue_one(engine))
    for name in "abcde":
        either.done("queues", "pause", name, "--force")
    first = either("audit", "--limit", "2", "--json").json
    assert [entry["target"] for entry in first["entries"]] == ["e", "d"]
    rest = either("audit", "--after", first["next_cursor"], "--json").json
    assert ([entry["target"] for entry in rest["entries"]], rest["next_cursor"]) == (["c", "b", "a"], None)
    said = either("audit", "-n", "2")
    assert f"--after {first['next_cursor']}" in said.err
    assert len(actions(either, "--actor", ME, "--since", "1h")) == 5
    assert actions(either, "--until", "1h") == []
    said = either("audit", "--actor", "nobody")
    assert (said.code, said.out, said.err) == (0, "", "No actions match.\n")


def test_a_change_that_could_not_be_written_down_is_still_told(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from ropeway.engines.sqlite import SqliteEngine

    async def fail(*_: object, **__: object) -> None:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(SqliteEngine, "note_actions", fail)
    said = cli("tenants", "create", "Acme")
    assert (said.code, said.out) == (0, "acme\n")
    assert "It was done, but not written down in the log of actions: the disk is full" in said.err


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert acting.actor() == "cli:unknown"


# ── groups and explanations ──


def test_the_dead_by_group_and_one_group_retried(either: Cli) -> None:
    async def fill(engine: Engine) -> None:
        from ropeway.core.outcome import Failed
        from ropeway.core.payload import clean_error
        from ropeway.engines.protocol import Settlement

        await enqueue_many(engine, 3, max_attempts=1)
        for number, leased in enumerate(await lease_some(engine, 3)):
            error = (
                clean_error("KeyError", "'x'") if number == 0 else clean_error("ValueError", f"no user {number}")
            )
            await engine.settle([Settlement(leased.lease, Failed(error))])

    either.engine(fill)
    found = either("dead", "groups", "--json").json
    assert [(group["type"], group["message"], group["count"]) for group in found["groups"]] == [
        ("ValueError", "no user <n>", 2),
        ("KeyError", "<text>", 1),
    ]
    assert found["complete"] is True
    print_ = found["groups"][0]["fingerprint"]
    line = either.done("dead", "groups", "--queue", "default").splitlines()[1]
    assert line.split()[:2] == [print_, "2"]
    assert line.endswith("ValueError: no user <n>")
    assert either("dead", "retry", "--group", "x", "--yes").code == 2
    assert either.done("dead", "retry", "--group", print_, "--dry-run") == "would retry 2 dead jobs"
    assert either.done("dead", "retry", "--group", print_, "--yes") == "retried 2 dead jobs"
    assert actions(either) == [(ME, "dlq.retry", f"fingerprint={print_}")]
    assert [job["last_error"]["type"] for job in either("dead", "list", "--json").json["jobs"]] == ["KeyError"]
    said = either("dead", "groups", "--queue", "none")
    assert (said.code, said.out, said.err) == (0, "", "No dead jobs.\n")


def test_a_job_is_explained(either: Cli) -> None:
    id = str(either.engine(lambda engine: enqueue_one(engine)))
    assert either.done("jobs", "explain", id).splitlines() == [
        f"{id} is queued.",
        "No worker is alive; start one with `ropeway worker`.",
    ]
    either.done("queues", "pause", "default")
    found = either("jobs", "explain", id[:20], "--json").json
    assert [reason["code"] for reason in found["reasons"]] == ["queue_paused", "no_worker"]
    assert (found["status"], found["ahead"], found["expected_start"]) == (State.QUEUED, 0, None)
    later = str(either.engine(lambda engine: enqueue_one(engine, queue="later", delay=3_600.0)))
    lines = either.done("jobs", "explain", later).splitlines()
    assert lines[1].startswith("It is scheduled for 20")
    assert lines[2].startswith("It may start 20")
    either.engine(lambda engine: enqueue_one(engine, queue="busy"))
    assert either("jobs", "explain", "ffffffff").code == 1


def test_two_processes_at_once_make_different_keys(cli: Cli) -> None:
    """The ids are drawn, so nobody takes another's."""

    async def many(engine: Engine) -> int:
        from ropeway.service.keys import Keys

        made = await asyncio.gather(*(Keys(engine).create(f"k{number}") for number in range(50)))
        return len({key.id for key, _ in made})

    cli.done("tenants", "create", "Acme")
    assert cli.engine(many) == 50
