"""Schedules that an earlier version has stored: read as they were meant, and not taken for changed code."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ropeway.core.schedule import JobOptions, NewSchedule
from ropeway.engines import migrate
from ropeway.engines.protocol import Engine
from ropeway.engines.sqlite import SqliteEngine
from ropeway.engines.sqlite.migrating import MIGRATIONS
from ropeway.engines.sqlite.writer import Transaction, one_by_one
from tests.engines.pg_kit import connected, migrated, opened

DECLARED = NewSchedule("report", "0 * * * *", "make-report", queue="reports", max_attempts=7, source="code")
#: What that declaration was stored as; an operator has made it urgent and paused it.
DEFINITION = '["0 * * * *","UTC","make-report","reports","{}",5,7,"once"]'
SPEC = (
    '{"name":"report","cron":"0 * * * *","type":"make-report","tz":"UTC","queue":"reports","payload":"e30=",'
    '"priority":1,"max_attempts":7,"missed":"once","paused":false,"source":"code"}'
)


async def check(engine: Engine) -> None:
    (before,) = await engine.schedules()
    assert before.spec.options() == JobOptions()
    assert (before.spec.priority, before.spec.queue, before.spec.paused) == (1, "reports", True)
    again = await engine.put_schedule(DECLARED)
    assert again == before, "the code has not changed, so the operator's wish stands"
    newer = await engine.put_schedule(msgspec.structs.replace(DECLARED, timeout=60))
    assert (newer.spec.timeout, newer.spec.priority, newer.spec.paused) == (60, 5, False)
    assert await engine.schedules() == [newer]


async def test_in_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = migrate.shipped(MIGRATIONS)
    insert = """INSERT INTO schedules (tenant, name, cron, tz, type, queue, payload, priority, max_attempts,
                                       missed, paused, source, definition, next_run_at)
                VALUES ('default', 'report', '0 * * * *', 'UTC', 'make-report', 'reports', x'7b7d', 1, 7,
                        'once', 1, 'code', ?, 4000000000000000)"""

    def store(tx: Transaction, _: None) -> None:
        tx.db.execute(insert, (DEFINITION,))

    with monkeypatch.context() as patch:
        patch.setattr(migrate, "shipped", lambda _: everything[:2])
        async with SqliteEngine(tmp_path / "ropeway.db") as engine:
            await engine.write(one_by_one(store), None)
    async with SqliteEngine(tmp_path / "ropeway.db") as engine:
        await check(engine)


async def test_in_postgres(migrated_database: str) -> None:
    async with opened(migrated_database) as engine, connected(migrated_database) as connection:
        await connection.execute(
            """INSERT INTO ropeway.schedules (tenant, name, spec, definition, paused, next_run_at)
               VALUES ('default', 'report', $1, $2, true, '2090-01-01Z')""",
            SPEC,
            DEFINITION,
        )
        await check(engine)


@pytest.fixture
def migrated_database(postgres_database: str) -> str:
    return migrated(postgres_database)
