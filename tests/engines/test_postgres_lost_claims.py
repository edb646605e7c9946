"""A claim whose answer was lost is looked for until the store has been asked, however long it is away."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from ropeway.core.errors import Unavailable
from ropeway.core.states import State
from ropeway.engines.postgres import outcomes
from ropeway.runtime.backoff import Backoff
from ropeway.testing.conformance.kit import enqueue_one, state_of, worker
from tests.engines.pg_kit import connected, eventually, opened


async def test_an_outage_longer_than_all_looks(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "LOOK_FOR_LOST", (0.0, 0.01, 0.01))
    monkeypatch.setattr(outcomes, "Backoff", lambda *_: Backoff(0.01, 0.01), raising=False)
    asked: list[bool] = []
    take_back = outcomes.take_back

    async def away_for_a_while(*args: Any) -> Any:
        asked.append(len(asked) >= 10)
        if not asked[-1]:
            raise Unavailable("away")
        return await take_back(*args)

    monkeypatch.setattr(outcomes, "take_back", away_for_a_while)
    async with opened(database) as engine, connected(database) as other:
        id = await enqueue_one(engine)
        tokens: list[UUID] = []
        await engine._lease("default", ["default"], 1, worker(), 30.0, tokens)
        assert await state_of(engine, id) is State.RUNNING
        engine.give_back(tokens)

        async def free_again() -> bool:
            return await state_of(engine, id) is State.QUEUED

        await eventually(free_again, within=10, what="it is given back")
        assert len(asked) > 10
        assert await other.fetchval("SELECT count(*) FROM ropeway.grants") == 0
