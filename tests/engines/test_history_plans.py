"""What the history of a queue costs: its own samples are read, whatever else is kept; and chores stay chores."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from ropeway.core.history import ALL_QUEUES, KEEP_STEPS, STEP, Sample, step_of
from ropeway.core.job import NewJob
from ropeway.engines.protocol import Engine
from ropeway.engines.sqlite import SqliteEngine, remembering
from tests.engines.pg_kit import connected, opened

QUEUES, STEPS = 50, 40
NOW = step_of(datetime.now(UTC), STEP)


async def fill(engine: Engine, *, until: datetime = NOW) -> None:
    """Samples of many queues of two tenants."""
    ats = [until - timedelta(seconds=STEP * (1 + ago)) for ago in range(STEPS)]
    names = [ALL_QUEUES, *(f"q{n}" for n in range(QUEUES))]
    for tenant in ("default", "other"):
        await engine.remember([Sample(tenant, name, at, STEP, enqueued=1) for at in ats for name in names])


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


async def test_postgres_walks_the_samples_of_one_queue(database: str) -> None:
    async with opened(database) as engine, connected(database) as connection:
        await connection.execute("DELETE FROM ropeway.history")
        await fill(engine)
        await connection.execute("ANALYZE ropeway.history")
        since = NOW - timedelta(seconds=STEP * STEPS)
        samples = await engine.history(step=STEP, since=since, queue=ALL_QUEUES)
        assert len(samples) == STEPS
        asked = {
            "history_of_queue": ("default", STEP, since, None, ALL_QUEUES),
            "latest": (STEP, since, NOW, True),
        }
        for name, arguments in asked.items():
            statement = engine.sql("remembering", name)
            rows = await connection.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *arguments)
            walked = list(nodes(json.loads(rows[0][0])[0]["Plan"]))
            assert any(node.get("Index Name") == "history_of_queue" for node in walked), name
            # Those of other queues would be removed by a filter: a thousand and more.
            assert sum(node.get("Rows Removed by Filter", 0) for node in walked) <= QUEUES, name
            assert not any(node["Node Type"] == "Seq Scan" for node in walked), name


async def test_postgres_forgets_by_the_key(database: str) -> None:
    async with opened(database) as engine, connected(database) as connection:
        await connection.execute("DELETE FROM ropeway.history")
        await fill(engine)
        await connection.execute("ANALYZE ropeway.history")
        before = NOW - timedelta(seconds=KEEP_STEPS)
        statement = engine.sql("remembering", "forget_samples")
        rows = await connection.fetch(f"EXPLAIN (FORMAT JSON) {statement}", ["default", "other"], STEP, before)
        walked = list(nodes(json.loads(rows[0][0])[0]["Plan"]))
        assert {node.get("Index Name") for node in walked} & {"history_pkey", "history_of_queue"}
        assert not any(node["Node Type"] == "Seq Scan" for node in walked)


async def test_postgres_counts_depths_as_a_chore(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the connection of requests, whose statements have a timeout."""
    async with opened(database) as engine:
        await engine.enqueue([NewJob("task") for _ in range(3)])

        async def busy(*_: Any, **__: Any) -> list[Any]:
            raise AssertionError("a request waits for its turn")

        for call in ("fetch", "value"):
            monkeypatch.setattr(engine.reads, call, busy)
        (depth,) = await engine.depths(cap=2)
        assert (depth.waiting, depth.capped) == (2, True)


async def test_postgres_looks_at_no_more_than_it_counts(fresh_database: str) -> None:
    """Neither at what is not due nor beyond the bound, whatever the planner believed when it met the table."""

    async def read(connection: asyncpg.Connection) -> tuple[int, int]:
        await engine.chores.value("SELECT pg_stat_force_next_flush()", writes=False)
        row = await connection.fetchrow(
            """SELECT t.seq_scan, i.idx_tup_read
               FROM pg_stat_user_tables t JOIN pg_stat_user_indexes i USING (relid)
               WHERE relid = 'ropeway.jobs'::regclass AND i.indexrelname = 'jobs_ready'"""
        )
        return row[0], row[1]

    async with opened(fresh_database) as engine, connected(fresh_database) as connection:
        for _ in range(7):  # as often as it takes to settle for a plan
            await engine.depths()
        await engine.enqueue([NewJob("task", delay=3_600) for _ in range(2_000)])
        await engine.enqueue([NewJob("task", priority=9) for _ in range(500)])
        before = await read(connection)
        (depth,) = await engine.depths(cap=100)
        after = await read(connection)
        assert (depth.waiting, depth.capped) == (100, True)
        assert after[0] == before[0]
        # A database of its own: entries of rows that other tests removed are read too.
        assert 100 <= after[1] - before[1] <= 150


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ropeway.db"


async def test_sqlite_walks_the_samples_of_one_queue(file: Path) -> None:
    walked = {
        "history_of_queue": "history_of_queue (tenant=? AND step=? AND queue=? AND at>?)",
        "latest": "history_of_queue (tenant=? AND step=? AND queue=? AND at>? AND at<?)",
        "old_samples": "PRIMARY KEY (tenant=? AND step=? AND at<?)",
        "forget_samples": "PRIMARY KEY (tenant=? AND step=? AND at<?)",
    }
    async with SqliteEngine(file) as engine:
        for name, index in walked.items():
            statement = remembering.SQL[name]
            names = dict.fromkeys(re.findall(r":([a-z_]+)", statement), 1)
            plan = await engine.read(
                lambda db, statement=statement, names=names: [  # type: ignore[misc]
                    row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", names)
                ]
            )
            assert any(index in step for step in plan), (name, plan)
            assert not any("SCAN history" in step or "SCAN h" in step for step in plan), (name, plan)
            if name != "latest":  # which sorts tenants, not samples
                assert not any("TEMP B-TREE" in step for step in plan), (name, plan)


async def test_sqlite_asks_for_the_turn_only_if_there_is_something_to_forget(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembering, "BATCH", 1_000)
    async with SqliteEngine(file) as engine:
        await fill(engine)
        writes: list[object] = []
        write = engine.write

        async def noted(*call: Any) -> Any:
            writes.append(call)
            return await write(*call)

        monkeypatch.setattr(engine, "write", noted)
        await engine.forget_samples()
        assert writes == []
        await fill(engine, until=NOW - timedelta(seconds=KEEP_STEPS))
        writes.clear()
        await engine.forget_samples()
        rows = (QUEUES + 1) * STEPS
        assert len(writes) == 2 * -(-rows // 1_000), "batches of each tenant, and no look as a write"
        for tenant in ("default", "other"):
            assert (
                len(await engine.history(step=STEP, since=datetime(2020, 1, 1, tzinfo=UTC), tenant=tenant)) == rows
            )
