"""A worker stores the schedules of its code, and works without them when its key may not."""

from __future__ import annotations

from typing import Any

from ropeway.core.errors import MissingScope
from ropeway.core.schedule import NewSchedule, Schedule
from ropeway.engines.memory import MemoryEngine
from ropeway.observability import names
from ropeway.worker.declaring import declare

SCHEDULES = [NewSchedule(name, "0 3 * * *", type="report", source="code") for name in ("a", "b")]


class Told:
    """What a log is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, /, **fields: Any) -> None:
        self.lines.append((event, fields))


class Refusing(MemoryEngine):
    """As an engine over HTTP with a key that may only work."""

    async def put_schedule(self, *given: Any, **named: Any) -> Schedule:
        raise MissingScope("this key may not do that: it needs the scope enqueue")


async def test_schedules_of_the_code_are_stored() -> None:
    log: Any = Told()
    async with MemoryEngine() as engine:
        await declare(engine, SCHEDULES, tenant="default", log=log)
        assert [schedule.name for schedule in await engine.schedules()] == ["a", "b"]
    assert log.lines == []


async def test_a_key_that_may_not_keeps_nobody_from_work() -> None:
    log: Any = Told()
    async with Refusing() as engine:
        await declare(engine, SCHEDULES, tenant="default", log=log)
    ((event, fields),) = log.lines
    assert event == names.SCHEDULES_REFUSED
    assert fields["schedule"] == "a"
    assert "enqueue" in fields["hint"]
