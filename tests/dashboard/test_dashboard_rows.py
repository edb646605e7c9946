"""Rows that are updated are known by what they show, not by their place, which others may take."""

from __future__ import annotations

import re

import pytest

from tests.dashboard.dashboard_kit import Page, enqueued, house, with_schedule, with_worker


def row_ids(shown: Page) -> list[str]:
    return [given["id"] for given in shown.all("tr") if "id" in given]


@pytest.mark.parametrize("path", ["/", "/ui/queues"])
async def test_a_new_queue_leaves_the_rows_of_others_as_they_are(memory_store: str, path: str) -> None:
    async with house(memory_store) as there:
        person = await there.person()
        await enqueued(there.engine, queue="mails")
        await there.server.dashboard._live.refresh("default")
        assert row_ids(await person.see(path)) == ["queue-mails"]
        await enqueued(there.engine, queue="alpha")
        await there.server.dashboard._live.refresh("default")
        assert row_ids(await person.see(path)) == ["queue-alpha", "queue-mails"]


async def test_a_new_schedule_leaves_the_rows_of_others_as_they_are(memory_store: str) -> None:
    async with house(memory_store) as there:
        person = await there.person()
        await with_schedule(there.engine, "nightly")
        assert row_ids(await person.see("/ui/schedules")) == ["schedule-nightly"]
        await with_schedule(there.engine, "hourly")
        assert sorted(row_ids(await person.see("/ui/schedules"))) == ["schedule-hourly", "schedule-nightly"]


async def test_workers_of_any_name_have_rows_of_their_own(memory_store: str) -> None:
    """A worker may be called what an id cannot hold, and what looks like that after it was escaped."""
    names = ["web-1:4711", "a b", "a%20b", "a+b", "\"'<b>", "é", "#&;", "\u2028x", "x"]
    async with house(memory_store) as there:
        for name in names:
            await with_worker(there.engine, name)
        ids = row_ids(await (await there.person()).see("/ui/workers"))
        assert len(set(ids)) == len(names)
        assert all(re.fullmatch(r"worker-[A-Za-z0-9%._~-]+", id) for id in ids), ids
