"""Schedules of unique jobs on PostgreSQL, where someone's open transaction may hold their key."""

from __future__ import annotations

import logging

import pytest

from ropeway.core.schedule import NewSchedule, job_for
from ropeway.core.unique import Unique
from tests.engines.pg_kit import connected, opened

EVERY_HOUR = NewSchedule("report", "0 * * * *", "make-report", unique=Unique())


@pytest.mark.parametrize("commits", [True, False])
async def test_an_instant_whose_key_is_held_stays_due(
    database: str, commits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(database) as engine, connected(database) as other:
        await engine.put_schedule(EVERY_HOUR)
        await engine.put_schedule(NewSchedule("free", "0 * * * *", "make-report"))
        await other.execute("UPDATE ropeway.schedules SET next_run_at = '2026-01-01Z'")
        holding = other.transaction()
        await holding.start()
        (theirs,) = await engine.enqueue_in(other, [job_for(EVERY_HOUR, None)])
        with caplog.at_level(logging.DEBUG, logger="ropeway.schedules"):
            assert [fired.name for fired in await engine.fire_due()] == ["free"], "it keeps nobody else waiting"
        assert not caplog.records, "nothing is wrong with it"
        await (holding.commit() if commits else holding.rollback())
        (fired,) = await engine.fire_due()
        assert fired.name == "report"
        assert (fired.deduplicated, fired.job_id == theirs) == (commits, commits)
        assert (await engine.count()).number == 2
        assert await engine.fire_due() == []
