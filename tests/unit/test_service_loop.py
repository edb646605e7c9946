"""The shape of every loop: when it runs, what stops it, and what it does while the engine is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ropeway.core.errors import ConfigurationError, EngineError, Unavailable
from ropeway.observability import names
from ropeway.runtime.backoff import Backoff
from ropeway.runtime.service import Loop, Outage, patiently, stop_all, wait_for


class Lines:
    """A log that remembers."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda event, **fields: self.told.append((level, event, fields))

    def events(self) -> list[str]:
        return [event for _, event, _ in self.told]


class Clockwork:
    """Stands in for waiting: notes each pause and ends it at once; after the last one the loop is let go."""

    def __init__(self, pauses: int) -> None:
        self.pauses: list[float] = []
        self._wanted = pauses
        self.enough = asyncio.Event()

    async def __call__(self, wake: asyncio.Event, seconds: float) -> None:
        if len(self.pauses) == self._wanted:
            self.enough.set()
            await wake.wait()
            return
        self.pauses.append(seconds)


def raising(*errors: Exception | None) -> Callable[[], Awaitable[bool]]:
    """A `run_once` that raises these in turn, None meaning that it works; then it works."""
    left = list(errors)

    async def run_once() -> bool:
        error = left.pop(0) if left else None
        if error is not None:
            raise error
        return False

    return run_once


async def run(
    run_once: Callable[[], Awaitable[object]], *, pauses: int, **options: Any
) -> tuple[list[float], Lines]:
    """Run a loop for so many pauses; how long they would have been, and what it said."""
    clockwork, lines = Clockwork(pauses), Lines()
    even = {"chance": lambda: 0.5, "backoff": Backoff(chance=lambda: 0.5)}
    options = {"log": lines, "interval": 10.0, "pause": clockwork, **even, **options}
    loop = Loop("sweep", run_once=run_once, **options)
    loop.start()
    await clockwork.enough.wait()
    await loop.stop()
    assert not loop.running
    return clockwork.pauses, lines


class TestWhen:
    async def test_it_runs_every_interval(self) -> None:
        pauses, lines = await run(raising(), pauses=4)
        assert pauses == [0.5, 10, 10, 10], "the first run comes within a second"
        assert lines.told == []

    async def test_a_short_interval_starts_sooner(self) -> None:
        pauses, _ = await run(raising(), pauses=2, interval=0.1)
        assert pauses == [0.05, 0.1]

    async def test_a_patient_loop_starts_anywhere_in_its_interval(self) -> None:
        pauses, _ = await run(raising(), pauses=2, interval=60.0, patient=True)
        assert pauses == [30, 60]

    async def test_the_interval_is_varied(self) -> None:
        chances = iter([0.0, 0.0, 1.0, 0.5])
        pauses, _ = await run(raising(), pauses=4, jitter=0.2, chance=lambda: next(chances, 0.5))
        assert pauses == pytest.approx([0, 8, 12, 10])

    async def test_while_there_is_more_it_does_not_wait(self) -> None:
        calls = 0

        async def run_once() -> bool:
            nonlocal calls
            calls += 1
            return calls < 5

        pauses, _ = await run(run_once, pauses=2)
        assert pauses == [0.5, 10]
        assert calls == 6

    async def test_it_can_be_woken(self) -> None:
        called = asyncio.Event()

        async def run_once() -> None:
            called.set()

        loop = Loop("sweep", 3600, run_once, log=Lines(), chance=lambda: 0.0)
        loop.start()
        await called.wait()
        called.clear()
        loop.wake()
        await called.wait()
        await loop.stop()

    async def test_a_wake_up_during_a_run_is_not_lost(self) -> None:
        running, go_on = asyncio.Event(), asyncio.Event()
        calls = 0

        async def run_once() -> None:
            nonlocal calls
            calls += 1
            running.set()
            await go_on.wait()

        loop = Loop("sweep", 3600, run_once, log=Lines(), chance=lambda: 0.0)
        loop.start()
        await running.wait()
        running.clear()
        loop.wake()
        go_on.set()
        await running.wait()
        assert calls == 2
        await loop.stop()

    async def test_it_is_started_once(self) -> None:
        loop = Loop("sweep", 1, raising(), log=Lines())
        loop.start()
        with pytest.raises(RuntimeError, match="sweep was started before"):
            loop.start()
        await loop.stop()


class TestStop:
    async def test_a_call_under_way_is_finished(self) -> None:
        running, go_on, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def run_once() -> bool:
            running.set()
            await go_on.wait()
            finished.set()
            return True

        loop = Loop("sweep", 0.01, run_once, log=Lines())
        loop.start()
        await running.wait()
        stop = asyncio.create_task(loop.stop(within=60))
        await asyncio.sleep(0)
        assert not stop.done()
        go_on.set()
        await stop
        assert finished.is_set()
        assert not loop.running

    async def test_one_that_never_ends_is_cancelled(self) -> None:
        running, cancelled = asyncio.Event(), asyncio.Event()

        async def run_once() -> None:
            running.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        loop = Loop("sweep", 0.01, run_once, log=Lines())
        loop.start()
        await running.wait()
        await loop.stop(within=0.01)
        assert cancelled.is_set()
        assert not loop.running

    async def test_a_sleeping_loop_stops_at_once_and_may_be_stopped_again(self) -> None:
        loops = [Loop(name, 3600, raising(), log=Lines(), chance=lambda: 1.0) for name in "ab"]
        for loop in loops:
            loop.start()
        await stop_all(loops, within=3600)
        await stop_all(loops)
        assert not any(loop.running for loop in loops)

    async def test_one_that_never_started_may_be_stopped(self) -> None:
        await Loop("sweep", 1, raising(), log=Lines()).stop()


class TestOutage:
    async def test_it_backs_off_and_says_so_once(self) -> None:
        away = Unavailable("cannot connect")
        pauses, lines = await run(raising(away, away, away, away, None), pauses=6)
        # With a chance of one half each delay is three quarters of 0.25, 0.5, 1, 2 seconds.
        assert pauses == pytest.approx([0.5, 0.1875, 0.375, 0.75, 1.5, 10])
        assert lines.events() == ["engine_away", "engine_back"]
        (_, _, first), (_, _, last) = lines.told
        assert first == {"error": "cannot connect", "seen_by": "sweep"}
        assert set(last) == {"away_seconds"}
        assert [level for level, _, _ in lines.told] == ["warning", "info"]

    async def test_the_next_outage_starts_from_the_shortest_delay(self) -> None:
        away = EngineError("away")
        pauses, lines = await run(raising(away, away, None, away, None), pauses=6)
        assert pauses == pytest.approx([0.5, 0.1875, 0.375, 10, 0.1875, 10])
        assert lines.events() == ["engine_away", "engine_back"] * 2

    async def test_loops_that_share_an_engine_tell_of_it_once(self) -> None:
        lines, now = Lines(), [100.0]
        outage = Outage(lines, clock=lambda: now[0])
        outage.worked("a")
        outage.failed("a", Unavailable("gone"))
        now[0] = 105.0
        outage.failed("b", Unavailable("gone"))
        outage.failed("a", Unavailable("gone"))
        assert (outage.away, outage.seconds) == (True, 5.0)
        now[0] = 107.0
        outage.worked("a")
        assert outage.away, "b has not been answered yet"
        outage.worked("b")
        assert (outage.away, outage.seconds) == (False, 0.0)
        assert [(event, fields.get("away_seconds")) for _, event, fields in lines.told] == [
            ("engine_away", None),
            ("engine_back", 7.0),
        ]

    async def test_a_loop_that_was_stopped_keeps_nobody_waiting(self) -> None:
        lines = Lines()
        outage = Outage(lines)
        failed = asyncio.Event()

        async def run_once() -> None:
            failed.set()
            raise Unavailable("gone")

        loop = Loop("sweep", 0.01, run_once, log=lines, outage=outage)
        loop.start()
        await failed.wait()
        await loop.stop()
        assert not outage.away

    async def test_a_defect_is_told_once_with_its_traceback_and_does_not_end_the_loop(self) -> None:
        pauses, lines = await run(raising(KeyError("x"), KeyError("x"), ValueError("y"), None), pauses=5)
        assert len(pauses) == 5
        assert [(level, event) for level, event, _ in lines.told] == [("error", "loop_failed")] * 2
        _, _, fields = lines.told[0]
        assert fields["loop"] == "sweep"
        assert fields["error"] == "KeyError('x')"
        assert isinstance(fields["exc_info"], KeyError)

    def test_the_events_have_promised_names(self) -> None:
        assert {"engine_away", "engine_back", "loop_failed"} <= names.ALL


class TestBackoff:
    def test_it_doubles_up_to_the_cap_and_never_beyond(self) -> None:
        backoff = Backoff(1.0, 8.0, chance=lambda: 1.0)
        assert [backoff.next() for _ in range(6)] == [1, 2, 4, 8, 8, 8]
        backoff.reset()
        assert backoff.next() == 1

    def test_it_is_spread_over_half_of_itself(self) -> None:
        assert Backoff(1.0, chance=lambda: 0.0).next() == 0.5
        delays = {Backoff(1.0).next() for _ in range(100)}
        assert len(delays) > 50
        assert all(0.5 <= delay <= 1.0 for delay in delays)

    def test_it_goes_on_for_ever(self) -> None:
        backoff = Backoff(0.25, 10.0)
        assert all(backoff.next() <= 10.0 for _ in range(5_000))


class TestPatiently:
    async def test_it_tries_until_it_works(self) -> None:
        lines = Lines()
        call = raising(Unavailable("no"), Unavailable("no"), None)
        outage, never = Outage(lines), asyncio.Event()
        assert await patiently(call, name="open", outage=outage, stopping=never, backoff=Backoff(0.001))
        assert lines.events() == ["engine_away", "engine_back"]

    async def test_it_ends_when_asked_to_stop(self) -> None:
        stopping = asyncio.Event()

        async def call() -> None:
            stopping.set()
            raise Unavailable("no")

        assert not await patiently(
            call, name="open", outage=Outage(Lines()), stopping=stopping, backoff=Backoff(3600, 3600)
        )

    async def test_what_waiting_cannot_put_right_is_raised(self) -> None:
        with pytest.raises(ConfigurationError, match="migrate"):
            await patiently(
                raising(ConfigurationError("run ropeway migrate up")),
                name="open",
                outage=Outage(Lines()),
                stopping=asyncio.Event(),
            )


async def test_waiting_ends_with_the_event_or_the_time() -> None:
    event = asyncio.Event()
    await wait_for(event, 0.001)
    event.set()
    await wait_for(event, 3600)
