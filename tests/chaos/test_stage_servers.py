"""Who of a run is led to which server, and which of them may die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos import history
from chaos.stage import Stage


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """One whose processes are none; it remembers how they would have been started."""

    def added(self: Stage, name: str, command: list[str], **options: Any) -> Any:
        member = SimpleNamespace(name=name, command=command, running=True, killed=[], **options)
        member.started_with = lambda env, command: member.__dict__.update(env=member.env | env, command=command)
        member.signal_all = member.killed.append
        self.members.append(member)  # type: ignore[arg-type]
        return member

    async def at_once(_self: Stage) -> None:
        return None

    monkeypatch.setattr(Stage, "add", added)
    monkeypatch.setattr(Stage, "serving", at_once)
    made = Stage("http-sqlite", tmp_path, 1, lease_seconds=3.0)
    yield made
    made.nemesis.close()


def _way(member: Any) -> str:
    return str(member.command[member.command.index("--url") + 1])


def _ways(members: list[Any]) -> list[str]:
    return [_way(member) for member in members]


async def test_workers_and_producers_are_spread_over_all_servers(stage: Stage) -> None:
    await stage.serve("sqlite:///a.db", [8001, 8002])
    workers = [stage.worker(f"worker{number}") for number in range(3)]
    producers = [stage.producer(f"producer{number}", 1, 1.0, {}) for number in range(2)]
    first, second = "http://127.0.0.1:8001", "http://127.0.0.1:8002"
    assert _ways(workers) == [first, second, first]
    assert _ways(producers) == [first, second]


async def test_whoever_is_given_one_way_gets_no_other(stage: Stage) -> None:
    await stage.serve("sqlite:///a.db", [8001, 8002])
    stage.url = "http://127.0.0.1:9000"
    assert set(_ways([stage.worker(f"worker{number}") for number in range(3)])) == {"http://127.0.0.1:9000"}
    assert stage.addresses == ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]


async def test_servers_are_started_again_with_another_way_to_the_store(stage: Stage) -> None:
    await stage.serve("sqlite:///a.db", [8001, 8002])
    await stage.serve_again(target="sqlite:///b.db", env={"ROPEWAY_FAULTS": "api.before_reply=raise:0.1"})
    servers: list[Any] = list(stage.servers)
    assert _ways(servers) == ["sqlite:///b.db"] * 2
    assert [server.command[server.command.index("--port") + 1] for server in servers] == ["8001", "8002"]
    assert all(server.env["ROPEWAY_FAULTS"] for server in servers)


async def test_a_server_is_killed_and_it_is_written_down(stage: Stage) -> None:
    await stage.serve("sqlite:///a.db", [8001, 8002])
    assert stage.kill_server()
    servers: list[Any] = list(stage.servers)
    assert sum(len(server.killed) for server in servers) == 1
    assert [line["kind"] for line in history.read(stage.histories) if line["op"] == "fault"] == ["server"]


async def test_a_memory_that_would_be_gone_is_not_killed(stage: Stage) -> None:
    stage.kind = "http-memory"
    await stage.serve("memory://", [8001])
    assert not stage.kill_server()
    assert [server.killed for server in stage.servers] == [[]]  # type: ignore[attr-defined]


def test_without_servers_there_is_none_to_kill(stage: Stage) -> None:
    stage.url = "sqlite:///a.db"
    assert not stage.kill_server()
    assert _way(stage.worker("worker0")) == "sqlite:///a.db"
