"""What a service needs of the SQLite engine, where the suite cannot look: real processes, old files, plans."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ropeway.core.access import NewKey, NewTenant, Scope
from ropeway.core.auditlog import NewAction
from ropeway.core.job import NewJob
from ropeway.core.query import QueueSettings
from ropeway.engines import migrate
from ropeway.engines.protocol import EngineRules
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite import SqliteEngine, auditing, inspecting
from ropeway.engines.sqlite.migrating import MIGRATIONS
from ropeway.engines.sqlite.writer import Transaction, one_by_one
from ropeway.runtime.clock import ManualClock

DAY = 86_400.0
RATE, BURST, TAKES = 50.0, 100.0, 200

TAKER = """
import asyncio, sys
from ropeway.engines.sqlite import SqliteEngine

async def main(file, rate, burst, takes):
    async with SqliteEngine(file) as engine:
        granted = 0.0
        for _ in range(takes):
            granted += (await engine.take_tokens("requests", 1.0, rate=rate, burst=burst)).granted
        print(granted, (await engine.secret()).hex())

asyncio.run(main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ropeway.db"


async def take_elsewhere(file: Path) -> tuple[float, str]:
    """What another process gets that takes as fast as it can, and the secret it sees."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", TAKER, str(file), str(RATE), str(BURST), str(TAKES)),
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        told, _ = await process.communicate()
    assert process.returncode == 0
    granted, secret = told.decode().split()
    return float(granted), secret


async def test_processes_never_get_more_than_the_bucket_has(file: Path) -> None:
    started = time.monotonic()
    answers = await asyncio.gather(*(take_elsewhere(file) for _ in range(3)))
    passed = time.monotonic() - started
    granted = sum(one for one, _ in answers)
    assert BURST <= granted <= BURST + RATE * passed
    assert len({secret for _, secret in answers}) == 1, "all processes sign with the same secret"


async def test_the_secret_stays_with_the_file(file: Path) -> None:
    async with SqliteEngine(file) as engine:
        secret = await engine.secret()
    async with SqliteEngine(file) as again, SqliteEngine(file.with_name("other.db")) as other:
        assert await again.secret() == secret
        assert await other.secret() != secret


async def test_a_file_from_before_gets_its_default_tenant(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = migrate.shipped(MIGRATIONS)
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "shipped", lambda _: everything[:3])
        async with SqliteEngine(file) as engine:
            (old,) = await engine.enqueue([NewJob("task")])
            await engine.pause("default")
    async with SqliteEngine(file) as engine:
        (tenant,) = await engine.tenants()
        assert tenant.id == "default"
        assert abs(tenant.created_at - datetime.now(UTC)) < timedelta(minutes=1)
        await engine.set_queue("default", QueueSettings(depth_limit=5))
        (stats,) = await engine.queue_stats()
        assert (stats.paused, stats.settings.depth_limit) == (True, 5)
        place = await engine.place(old.id)
        assert place is not None
        assert place.number == 0
        await engine.create_key(NewKey("k", "k", frozenset({Scope.READ}), b"d" * 32))
        assert await engine.find_key("k") is not None


async def test_a_scope_of_a_newer_version_allows_nothing(file: Path) -> None:
    def add_scope(tx: Transaction, _: None) -> None:
        tx.db.execute('UPDATE api_keys SET scopes = \'["read","fly"]\'')

    async with SqliteEngine(file) as engine:
        await engine.create_key(NewKey("k", "k", frozenset({Scope.READ}), b"d" * 32))
        await engine.write(one_by_one(add_scope), None)
        assert [key.scopes for key in await engine.keys()] == [frozenset({Scope.READ})]


async def test_many_events_in_a_short_time_tell_the_rate_of_that_time(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspecting, "RATE_EVENTS", 10)
    clock = ManualClock()
    async with SqliteEngine(file, clock=clock) as engine:
        for _ in range(20):
            clock.advance(0.5)
            await engine.enqueue([NewJob("task")])
        clock.advance(0.5)
        (stats,) = await engine.queue_stats()
        assert stats.enqueued_per_minute == pytest.approx(120), "ten in the last five seconds"
        for _ in range(10):
            await engine.enqueue([NewJob("task")])
        (stats,) = await engine.queue_stats()
        assert stats.enqueued_per_minute == pytest.approx(600), "at once is taken for within a second"


async def test_old_actions_go_a_little_at_a_time(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "BATCH", 10)
    clock = ManualClock()
    async with SqliteEngine(file, EngineRules(keep_actions=DAY), clock) as engine:
        for target in range(25):
            await engine.note_actions([NewAction("a", "b", f"old {target}")])
        clock.advance(3 * DAY)
        await engine.note_actions([NewAction("a", "b", "young")])
        await engine.prune()
        assert [action.target for action in await engine.actions()] == ["young"]


async def test_questions_walk_an_index_and_sort_nothing(file: Path) -> None:
    walked = {
        ("inspecting", "queued_job"): "jobs_by_id",
        ("inspecting", "ahead"): "jobs_free",
        ("inspecting", "come_and_gone"): "events",
        ("auditing", "actions"): "actions_of_tenant (tenant=? AND rowid<?)",
        ("tenancy", "keys"): "api_keys_of_tenant",
        ("tenancy", "key"): "PRIMARY KEY (id=?)",
        ("limiting", "bucket"): "PRIMARY KEY (tenant=? AND name=?)",
    }
    async with SqliteEngine(file) as engine:
        await engine.enqueue([NewJob("task")] * 1_000)
        await engine.create_tenant(NewTenant(id="other", name="other"))
        for (part, name), index in walked.items():
            statement = statements("ropeway.engines.sqlite", f"sql/{part}.sql")[name]
            names = dict.fromkeys(re.findall(r":([a-z_]+)", statement), 1)
            plan = await engine.read(
                lambda db, statement=statement, names=names: [  # type: ignore[misc]
                    row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", names)
                ]
            )
            assert any(index in step for step in plan), (name, plan)
            assert not any("TEMP B-TREE FOR ORDER BY" in step or "SCAN j" in step for step in plan), (name, plan)
