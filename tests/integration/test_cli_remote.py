"""The commands, with a server's URL instead of a store's: they do the same, or say why not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeway.core.payload import JobError
from ropeway.engines.protocol import Engine
from ropeway.testing.conformance.kit import enqueue_many, lease_some, nack
from tests.api.served import Served, server, sqlite_url
from tests.integration.cli_kit import Cli


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("server")
    with server(sqlite_url(folder), folder) as served:
        yield served


@pytest.fixture
def cli(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cli:
    monkeypatch.chdir(tmp_path)
    for variable in ("COLUMNS", "ROPEWAY_APP"):
        monkeypatch.delenv(variable, raising=False)
    url = f"http://127.0.0.1:{served.port}"
    monkeypatch.setenv("ROPEWAY_URL", url)
    monkeypatch.setenv("ROPEWAY_TOKEN", served.key("enqueue", "read", "read:payload", "admin"))
    return Cli(capsys, url)


def test_a_job_from_enqueue_to_the_end(cli: Cli) -> None:
    id = cli.done("enqueue", "email.send", "to=a", "-q", "mail")
    assert cli("enqueue", "email.send", "-q", "mail", "--key", "once").code == 0
    assert "earlier job" in cli("enqueue", "email.send", "-q", "mail", "--key", "once").err
    listed = cli("jobs", "list", "-q", "mail", "--json").json
    assert id in [job["id"] for job in (listed["jobs"] if isinstance(listed, dict) else listed)]
    shown = cli("jobs", "show", id, "--json").json
    assert (shown["status"], shown["payload"]) == ("queued", {"to": "a"})
    assert cli("jobs", "show", id[:18]).code == 0
    assert cli("jobs", "explain", id).code == 0
    assert cli("jobs", "cancel", id).code == 0
    assert cli("jobs", "cancel", id).code == 1
    assert cli("jobs", "show", id, "--json").json["cancel_reason"] == "requested"
    assert cli("jobs", "retry", id).code == 0
    assert "job.retried" in cli("jobs", "tail", "--all", "-n", "4", "--json").out


def test_queues_dead_jobs_and_workers(cli: Cli, served: Served) -> None:
    async def deaths(engine: Engine) -> None:
        await enqueue_many(engine, 3, queue="fatal", type="fatal.run", max_attempts=1)
        for leased in await lease_some(engine, 3, "fatal"):
            await nack(engine, leased, error=JobError("OSError", "disk full"))

    served.on_engine(deaths)
    assert "fatal" in cli.done("queues", "list")
    cli.done("queues", "pause", "fatal")
    assert served.on_engine(lambda engine: engine.queue_stats(["fatal"]))[0].paused
    cli.done("queues", "resume", "fatal")
    cli.done("queues", "set", "fatal", "--depth-limit", "100")
    assert served.on_engine(lambda engine: engine.queue_settings())["fatal"].depth_limit == 100
    assert "disk full" in cli.done("dead", "list", "-q", "fatal")
    assert cli("dead", "groups").code == 0
    assert cli("dead", "retry", "-q", "fatal", "--yes").code == 0
    assert served.on_engine(lambda engine: engine.queue_stats(["fatal"]))[0].counts["queued"] == 3
    assert cli("workers", "list").code == 0
    assert cli("schedules", "list").code == 0


@pytest.mark.parametrize(
    "command",
    [("upkeep",), ("migrate", "up"), ("server",), ("tenants", "list"), ("keys", "list"), ("audit",)],
    ids=" ".join,
)
def test_what_only_the_store_itself_can_do_is_refused_in_one_line(cli: Cli, command: tuple[str, ...]) -> None:
    said = cli(*command)
    assert said.code == 2, said
    assert len(said.err.strip().splitlines()) == 1, said.err
    assert "server" in said.err
    assert "Traceback" not in said.err


def test_a_key_of_another_tenant_is_not_taken_for_granted(
    cli: Cli, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key says whose jobs; to name another tenant beside it is a mistake, and told as one."""
    monkeypatch.setenv("ROPEWAY_TOKEN", served.key("enqueue", "read", tenant="acme"))
    id = cli.done("enqueue", "t")
    assert cli("jobs", "show", id, "--tenant", "acme").code == 0
    said = cli("jobs", "show", id, "--tenant", "other")
    assert said.code == 2
    assert "acme" in said.err


def test_without_a_good_key_or_a_server(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROPEWAY_TOKEN")
    said = cli("jobs", "list")
    assert said.code == 2
    assert "key" in said.err
    monkeypatch.setenv("ROPEWAY_URL", "http://127.0.0.1:1")
    said = cli("jobs", "list")
    assert said.code == 3
    assert "Traceback" not in said.err
