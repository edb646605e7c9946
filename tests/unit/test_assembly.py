"""What is put together for a running worker."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ropeway import assembly
from ropeway.settings import Settings
from ropeway.worker.options import WorkerOptions
from ropeway.worker.program import Chores


@contextlib.asynccontextmanager
async def _beside(*_given: object) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("port", "beside", "counted"),
    [(0, None, True), (-1, None, False), (-1, _beside, True)],
    ids=["its own page", "no page", "a server beside it"],
)
async def test_queues_are_counted_where_somebody_can_see_it(
    port: int, beside: Chores | None, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    surveys: list[bool] = []

    def upkeep(*_given: object, survey: bool, **_named: object) -> Any:
        surveys.append(survey)
        return contextlib.nullcontext()

    class Supervisor:
        def __init__(self, _target: str, _options: WorkerOptions, *, chores: Any, **_named: object) -> None:
            self._chores = chores

        async def run(self) -> int:
            async with self._chores(None, Settings(worker_http_port=port), None, None):
                return 0

    monkeypatch.setattr(assembly, "Upkeep", upkeep)
    monkeypatch.setattr(assembly, "Supervisor", Supervisor)
    assert await assembly.run_worker("tasks:app", WorkerOptions(), {}, beside=beside) == 0
    assert surveys == [counted]
