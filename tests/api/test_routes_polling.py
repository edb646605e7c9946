"""Long polls: who is woken, by what, how many questions that costs, and what happens to those who hang up."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from ropeway.api.polling import Polls
from ropeway.api.routes import leasing
from ropeway.core.access import Limits, Scope
from ropeway.core.errors import QuotaExceeded
from ropeway.core.job import NewJob
from ropeway.core.states import State
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import LeaseBatch, WorkerRef
from tests.api.routes_kit import (
    Caller,
    Stage,
    on_memory,
    served_from_every_engine,
    served_from_memory,
    until,
)

OWNER = UUID(int=7)
#: Longer than any test: whoever waits this long was not woken by a look of its own.
NEVER = 1_000.0


class Counted(MemoryEngine):
    """Counts questions, and can be deaf."""

    def __init__(self) -> None:
        super().__init__()
        self.questions = 0
        self.subscribed = 0
        self.deaf = False

    async def lease(self, *args: Any, **kwargs: Any) -> LeaseBatch:
        self.questions += 1
        # A question takes a while, as in a real store.
        await asyncio.sleep(0)
        return await super().lease(*args, **kwargs)

    async def subscribe(self, *args: Any, **kwargs: Any) -> Any:
        self.subscribed += 1
        return await super().subscribe(*args, **kwargs)

    def signal(self, tenant: str, queue: str) -> None:
        if not self.deaf:
            super().signal(tenant, queue)


class Someone:
    """A caller that may go away, noticed at once or only when it is asked for."""

    def __init__(self) -> None:
        self.gone = False
        self.noticed = asyncio.Event()

    async def present(self) -> bool:
        return not self.gone

    async def disconnected(self) -> None:
        await self.noticed.wait()


class Hub:
    """Waiters in a hub, without HTTP round them."""

    def __init__(self, engine: Counted, polls: Polls) -> None:
        self.engine = engine
        self.polls = polls
        self.callers: defaultdict[int, Someone] = defaultdict(Someone)

    async def wait(self, *queues: str, count: int = 1, wait: float = 30.0, number: int = 0) -> list[UUID]:
        async def attempt() -> LeaseBatch:
            return await self.engine.lease(queues or ("default",), count, WorkerRef("w", OWNER))

        batch = await self.polls.lease(
            "default",
            queues or ("default",),
            wait,
            attempt,
            full=lambda batch: len(batch.leases) >= count,
            caller=self.callers[number],
        )
        return [] if batch is None else [one.job.id for one in batch.leases]

    def waiters(self, number: int, *queues: str) -> list[asyncio.Task[list[UUID]]]:
        return [asyncio.create_task(self.wait(*queues, number=n)) for n in range(number)]


@contextlib.asynccontextmanager
async def hub(*, poll_seconds: float = NEVER, linger_seconds: float = NEVER) -> AsyncIterator[Hub]:
    async with Counted() as engine:
        polls = Polls(engine, asyncio.Event(), poll_seconds=poll_seconds, linger_seconds=linger_seconds)
        try:
            yield Hub(engine, polls)
        finally:
            await polls.close()


def done(waiters: list[asyncio.Task[list[UUID]]]) -> int:
    return sum(waiter.done() for waiter in waiters)


async def settled() -> None:
    """Let everything that can happen now happen."""
    for _ in range(50):
        await asyncio.sleep(0)


# ── The hub ──


async def test_one_new_job_makes_few_questions_however_many_wait() -> None:
    async with hub() as h:
        waiters = h.waiters(1_000)
        await until(lambda: h.polls.waiting == 1_000)
        await settled()
        assert h.engine.subscribed == 1
        h.engine.questions = 0
        await h.engine.enqueue([NewJob(type="a")])
        await until(lambda: done(waiters) == 1)
        await settled()
        assert done(waiters) == 1
        # The first, the two that its full batch has woken, and one more for a second signal.
        assert h.engine.questions <= 5
        for waiter in waiters:
            waiter.cancel()


async def test_newcomers_do_not_ask_where_others_wait_in_vain() -> None:
    async with hub() as h:
        first = h.waiters(1)
        await until(lambda: h.polls.waiting == 1)
        await settled()
        asked = h.engine.questions
        others = h.waiters(500)
        await until(lambda: h.polls.waiting == 501)
        assert h.engine.questions == asked
        for waiter in first + others:
            waiter.cancel()


async def test_a_burst_reaches_as_many_as_there_are_jobs() -> None:
    async with hub() as h:
        waiters = h.waiters(200)
        await until(lambda: h.polls.waiting == 200)
        await h.engine.enqueue([NewJob(type="a") for _ in range(150)])
        await until(lambda: done(waiters) == 150)
        await settled()
        assert done(waiters) == 150
        got = [id for waiter in waiters if waiter.done() for id in waiter.result()]
        assert len(set(got)) == 150
        for waiter in waiters:
            waiter.cancel()


async def test_the_first_in_line_is_served_first() -> None:
    async with hub() as h:
        waiters = h.waiters(3)
        await until(lambda: h.polls.waiting == 3)
        for number in range(3):
            await h.engine.enqueue([NewJob(type="a")])
            await until(lambda number=number: done(waiters) == number + 1)
            assert waiters[number].done()


async def test_a_waiter_of_several_queues_hears_each_of_them() -> None:
    async with hub() as h:
        for queue in ("a", "b", "c"):
            (waiter,) = h.waiters(1, "a", "b", "c")
            await until(lambda: h.polls.waiting == 1)
            await h.engine.enqueue([NewJob(type="x", queue=queue)])
            assert len(await waiter) == 1


async def test_a_job_that_becomes_due_is_found_without_a_signal() -> None:
    async with hub() as h:
        h.engine.deaf = True
        await h.engine.enqueue([NewJob(type="a", delay=0.05)])
        assert len(await h.wait()) == 1


async def test_a_lost_signal_costs_a_look_not_the_whole_wait() -> None:
    async with hub(poll_seconds=0.02) as h:
        h.engine.deaf = True
        waiters = h.waiters(5)
        await until(lambda: h.polls.waiting == 5)
        await h.engine.enqueue([NewJob(type="a") for _ in range(5)])
        await asyncio.gather(*waiters)


async def test_a_signal_between_the_first_look_and_the_line_is_not_missed() -> None:
    class Slow(Counted):
        async def lease(self, *args: Any, **kwargs: Any) -> LeaseBatch:
            batch = await super().lease(*args, **kwargs)
            if self.questions == 1:
                await self.enqueue([NewJob(type="a")])
                await settled()
            return batch

    async with Slow() as engine:
        polls = Polls(engine, asyncio.Event(), poll_seconds=NEVER)
        assert len(await Hub(engine, polls).wait()) == 1
        await polls.close()


async def test_a_signal_during_a_look_is_followed_by_another_look() -> None:
    class Late(Counted):
        async def lease(self, *args: Any, **kwargs: Any) -> LeaseBatch:
            batch = await super().lease(*args, **kwargs)
            if self.questions == 2:
                # The look has found nothing; before it is answered, there is something.
                await self.enqueue([NewJob(type="a")])
                await settled()
            return batch

    async with Late() as engine:
        polls = Polls(engine, asyncio.Event(), poll_seconds=NEVER)
        (waiter,) = Hub(engine, polls).waiters(1)
        await until(lambda: polls.waiting == 1)
        polls._lanes["default", "default"].poke()
        assert len(await waiter) == 1
        await polls.close()


async def test_a_waiter_of_many_queues_looks_no_more_often_than_one_of_a_single_queue() -> None:
    async with hub(poll_seconds=0.1) as h:
        queues = tuple(f"q{number}" for number in range(100))
        (waiter,) = h.waiters(1, *queues)
        await until(lambda: h.polls.waiting == 1)
        h.engine.questions = 0
        began = asyncio.get_running_loop().time()
        await until(lambda: h.engine.questions >= 10)
        # One look was due when the count began, one may be half over, and on a busy machine late ones come close
        # together; a hundred lanes by themselves would ask a hundred times in the time of one interval.
        elapsed = asyncio.get_running_loop().time() - began
        assert h.engine.questions <= elapsed / (0.5 * 0.1) + 2
        # What comes without a signal is still found.
        h.engine.deaf = True
        await h.engine.enqueue([NewJob(type="a", queue="q77")])
        assert len(await waiter) == 1


async def test_nobody_waits_longer_than_asked() -> None:
    async with hub() as h:
        assert await h.wait(wait=0.02) == []
        assert h.polls.waiting == 0


async def test_one_that_has_gone_passes_its_turn_on() -> None:
    async with hub() as h:
        waiters = h.waiters(3)
        await until(lambda: h.polls.waiting == 3)
        h.callers[0].gone = h.callers[1].gone = True
        await h.engine.enqueue([NewJob(type="a")])
        assert len(await waiters[2]) == 1
        assert [waiters[0].result(), waiters[1].result()] == [[], []]


async def test_one_that_goes_leaves_the_line_without_being_asked_for() -> None:
    async with hub() as h:
        waiters = h.waiters(3)
        await until(lambda: h.polls.waiting == 3)
        h.callers[1].noticed.set()
        assert await waiters[1] == []
        assert h.polls.waiting == 2
        await h.engine.enqueue([NewJob(type="a")])
        assert len(await waiters[0]) == 1


async def test_one_that_is_cut_off_in_its_turn_passes_it_on() -> None:
    async with hub() as h:
        waiters = h.waiters(2)
        await until(lambda: h.polls.waiting == 2)
        waiters[0].cancel()
        await h.engine.enqueue([NewJob(type="a")])
        assert len(await waiters[1]) == 1


async def test_waiting_ends_when_the_server_stops() -> None:
    async with Counted() as engine:
        stopping = asyncio.Event()
        polls = Polls(engine, stopping, poll_seconds=NEVER)
        waiters = Hub(engine, polls).waiters(10)
        await until(lambda: polls.waiting == 10)
        stopping.set()
        assert await asyncio.gather(*waiters) == [[]] * 10
        assert await Hub(engine, polls).wait() == []
        await polls.close()


async def test_a_lane_that_nobody_wants_is_no_longer_listened_to() -> None:
    async with hub(poll_seconds=0.01, linger_seconds=0.03) as h:
        await h.wait(wait=0.01)
        await until(lambda: not h.engine.subscriptions)


async def test_a_hint_is_told_once_and_never_missed_between_two_calls() -> None:
    async with hub() as h:
        waiting = asyncio.create_task(h.polls.hint("default", ["default"], 30, caller=Someone()))
        await until(lambda: h.polls.waiting == 1)
        await h.engine.enqueue([NewJob(type="a")])
        signalled, number = await waiting
        assert signalled
        signalled, number = await h.polls.hint("default", ["default"], 0, caller=Someone(), after=number)
        assert not signalled
        await h.engine.enqueue([NewJob(type="a")])
        await until(lambda: h.polls._lanes["default", "default"].signalled > number)
        signalled, _ = await h.polls.hint("default", ["default"], 30, caller=Someone(), after=number)
        assert signalled


@pytest.mark.parametrize("number", [0, 7, 2**53 - 1, 2**80])
async def test_a_number_of_another_process_loses_no_signal(number: int) -> None:
    async with hub() as h:
        waiting = asyncio.create_task(h.polls.hint("default", ["default"], 30, caller=Someone(), after=number))
        await until(lambda: h.polls.waiting == 1)
        await h.engine.enqueue([NewJob(type="a")])
        signalled, mine = await waiting
        assert signalled
        assert mine != number


async def test_numbers_of_two_processes_differ_and_fit_into_a_double() -> None:
    async with hub() as one, hub() as other:
        _, first = await one.polls.hint("default", ["default"], 0, caller=Someone())
        _, second = await other.polls.hint("default", ["default"], 0, caller=Someone())
        assert abs(first - second) > 1_000_000
        assert 0 <= max(first, second) < 2**53


async def test_a_tenant_may_listen_to_so_many_queues_and_no_more() -> None:
    async with hub() as h:
        h.polls.most_lanes = 5
        waiters = h.waiters(1, "a", "b", "c")
        await until(lambda: h.polls.waiting == 1)
        with pytest.raises(QuotaExceeded):
            await h.wait("d", "e", "f")
        assert len(h.polls._lanes) == 3
        # Queues that are listened to already cost nothing.
        waiters += h.waiters(1, "a", "b", "d", "e")
        await until(lambda: h.polls.waiting == 2)
        for waiter in waiters:
            waiter.cancel()


async def test_lanes_that_nobody_uses_are_few_and_make_room() -> None:
    async with hub() as h:
        h.polls.most_idle_lanes = 4
        for number in range(20):
            await h.wait(f"q{number}", wait=0.001)
        assert list(h.polls._lanes) == [("default", f"q{number}") for number in range(16, 20)]
        await until(lambda: len(h.engine.subscriptions) == 4)


async def test_a_lease_at_once_listens_to_nothing() -> None:
    async with hub() as h:
        assert await h.wait("a", wait=0) == []
        assert not h.polls._lanes


# ── Through HTTP ──


async def poll(caller: Caller, queue: str = "default", **fields: Any) -> Any:
    return await caller.post(f"/v1/queues/{queue}/lease", {"worker_id": "w", "wait": 30, **fields})


@served_from_every_engine
async def test_a_long_poll_gets_the_job_that_comes(stage: Stage) -> None:
    caller = await stage.caller()
    waiting = asyncio.create_task(poll(caller))
    await until(lambda: stage.api.deps.polls.waiting == 1)
    made = await caller.job()
    answer = await waiting
    assert answer.json()["leases"][0]["job"]["id"] == made["id"]


@served_from_memory
async def test_a_hundred_workers_share_what_comes(stage: Stage) -> None:
    caller = await stage.caller()
    waiting = [asyncio.create_task(poll(caller)) for _ in range(100)]
    await until(lambda: stage.api.deps.polls.waiting == 100)
    jobs = {"jobs": [{"type": "a"}] * 100}
    ids = {one["id"] for one in (await caller.post("/v1/jobs/batch", jobs)).json()["jobs"]}
    answers = await asyncio.gather(*waiting)
    assert {answer.json()["leases"][0]["job"]["id"] for answer in answers} == ids


@served_from_every_engine
async def test_a_poll_in_vain_is_answered_with_nothing(stage: Stage) -> None:
    answer = await poll(await stage.caller(), wait=0.05)
    assert (answer.status_code, answer.content) == (204, b"")


@served_from_every_engine
async def test_a_client_that_hangs_up_leaves_no_job_behind(stage: Stage) -> None:
    caller = await stage.caller()
    waiting = [asyncio.create_task(poll(caller)) for _ in range(3)]
    await until(lambda: stage.api.deps.polls.waiting == 3)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    made = await caller.job()
    # Each of the three is found gone in its turn; whoever comes next gets the job, at once and for the first time.
    await until(lambda: stage.api.deps.polls.waiting == 0)
    (lease,) = await caller.lease(wait=10)
    assert lease["job"]["id"] == made["id"]
    assert lease["attempt"] == 1


WAITS = {
    "lease": ("/v1/queues/default/lease", {"worker_id": "w", "wait": 30}),
    "hint": ("/v1/wait", {"queues": ["default", "other"], "wait": 30}),
}


@pytest.mark.parametrize("path_and_body", WAITS.values(), ids=WAITS)
@served_from_memory
async def test_a_client_that_hangs_up_gives_its_place_to_others(
    stage: Stage, path_and_body: tuple[str, dict[str, Any]]
) -> None:
    """At once, not when it would have been answered."""
    caller = await stage.caller()
    places = stage.api.deps.places
    places.most = 4
    waiting = [asyncio.create_task(caller.post(*path_and_body)) for _ in range(3)]
    await until(lambda: stage.api.deps.polls.waiting == 3)
    assert (await caller.post(*path_and_body)).status_code == 429
    for task in waiting[:2]:
        task.cancel()
    await asyncio.gather(*waiting[:2], return_exceptions=True)
    await until(lambda: (stage.api.deps.polls.waiting, places._all) == (1, 1), within=10)
    waiting[2].cancel()
    await asyncio.gather(waiting[2], return_exceptions=True)
    await until(lambda: places._all == 0, within=10)


@served_from_memory
async def test_jobs_leased_for_one_who_left_meanwhile_are_given_back(stage: Stage) -> None:
    """The client hangs up while the store is being asked."""
    caller = await stage.caller()
    engine = stage.engine
    asked, go_on = asyncio.Event(), asyncio.Event()
    lease = type(engine).lease

    async def slow(*args: Any, **kwargs: Any) -> LeaseBatch:
        batch = await lease(engine, *args, **kwargs)
        if batch.leases:
            asked.set()
            await go_on.wait()
        return batch

    engine.lease = slow  # type: ignore[method-assign]
    waiting = asyncio.create_task(poll(caller))
    await until(lambda: stage.api.deps.polls.waiting == 1)
    made = await caller.job()
    await asked.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    go_on.set()
    await until(lambda: _status(caller, made["id"], "queued"))


async def _status(caller: Caller, id: str, status: str) -> bool:
    return (await caller.get(f"/v1/jobs/{id}")).json()["status"] == status


@served_from_memory
async def test_a_stopping_server_answers_those_who_wait(stage: Stage) -> None:
    caller = await stage.caller()
    waiting = [asyncio.create_task(poll(caller)) for _ in range(5)]
    await until(lambda: stage.api.deps.polls.waiting == 5)
    stage.api.end_waiting()
    assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [204] * 5


@served_from_memory
async def test_a_hint_comes_through_http(stage: Stage) -> None:
    caller = await stage.caller()
    waiting = asyncio.create_task(caller.post("/v1/wait", {"queues": ["a", "b"], "wait": 30}))
    await until(lambda: stage.api.deps.polls.waiting == 1)
    await caller.job(queue="b")
    assert (await waiting).json()["signalled"] is True
    nothing = await caller.post("/v1/wait", {"queues": ["c"], "wait": 0})
    assert nothing.json()["signalled"] is False


@pytest.mark.parametrize("wait", [99_999, 30.5])
@on_memory
async def test_a_longer_wait_is_cut(stage: Stage, wait: float, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    polls = stage.api.deps.polls

    async def lease(_tenant: str, _queues: Any, wait: float, *_: Any, **__: Any) -> None:
        asked.append(wait)

    monkeypatch.setattr(polls, "lease", lease)
    answer = await poll(await stage.caller(), wait=wait)
    assert (answer.status_code, asked) == (204, [30.0])


@served_from_every_engine
async def test_a_revoked_key_gets_no_job_in_a_long_poll(stage: Stage) -> None:
    stays, goes = await stage.caller(), await stage.caller(Scope.WORK)
    waiting = [asyncio.create_task(poll(goes)) for _ in range(3)]
    await until(lambda: stage.api.deps.polls.waiting == 3)
    hint = asyncio.create_task(goes.post("/v1/wait", {"queues": ["default"], "wait": 30}))
    await until(lambda: stage.api.deps.polls.waiting == 4)
    (key,) = [one for one in (await stays.get("/v1/keys")).json()["keys"] if one["scopes"] == ["work"]]
    assert (await stays.ask("DELETE", f"/v1/keys/{key['id']}")).status_code == 204
    # The looks of those who wait find it out, one after the other and each within a few seconds.
    answers = await asyncio.gather(*waiting)
    assert [(one.status_code, one.json()["code"]) for one in answers] == [(401, "unauthenticated")] * 3
    made = await stays.job()
    assert (await hint).status_code == 401
    (lease,) = await stays.lease(wait=10)
    assert lease["job"]["id"] == made["id"]


@on_memory
async def test_a_wait_costs_as_much_as_it_has_queues(stage: Stage) -> None:
    caller = await stage.caller()
    # So slow a rate that nothing comes back meanwhile.
    await stage.engine.change_tenant("default", limits=Limits(rate_per_second=0.001, burst=200))
    for path, left in (("/v1/wait", 160), ("/v1/lease", 120)):
        body = {"queues": [f"q{number}" for number in range(40)], "wait": 0}
        before = await caller.post(path, {**body, "worker_id": "w"} if path == "/v1/lease" else body)
        assert int(before.headers["ratelimit-remaining"]) == left
    await stage.engine.change_tenant("default", limits=Limits(rate_per_second=0.001, burst=3))
    stage.api.deps.access._good.clear()
    few = await caller.post("/v1/wait", {"queues": [f"q{number}" for number in range(40)], "wait": 0})
    # Never more than can be paid at once.
    assert few.status_code == 200
    again = await caller.post("/v1/wait", {"queues": ["a"], "wait": 0})
    assert (again.status_code, again.json()["code"]) == (429, "rate_limited")


@on_memory
async def test_a_flooding_producer_keeps_neither_workers_nor_operators_out(stage: Stage) -> None:
    await stage.engine.change_tenant("default", limits=Limits(rate_per_second=0.001, burst=2))
    caller = await stage.caller()
    for _ in range(2):
        await caller.job()
    assert (await caller.post("/v1/jobs", {"type": "a"})).status_code == 429
    assert len(await caller.lease()) == 1
    keys = (await caller.get("/v1/keys")).json()["keys"]
    assert (await caller.post("/v1/queues/default/pause")).status_code == 200
    assert (await caller.get("/v1/keys")).status_code == 429
    # To revoke a key is never refused for rate.
    for key in keys:
        assert (await caller.ask("DELETE", f"/v1/keys/{key['id']}")).status_code == 204


@served_from_memory
async def test_places_for_those_who_wait_are_counted(stage: Stage) -> None:
    caller, other = await stage.caller(), await stage.caller(tenant="other")
    places = stage.api.deps.places
    places.most = 4
    waiting = [asyncio.create_task(poll(caller)) for _ in range(3)]
    await until(lambda: stage.api.deps.polls.waiting == 3)
    for path, body in (
        ("/v1/queues/default/lease", {"worker_id": "w", "wait": 1}),
        ("/v1/wait", {"queues": ["a"], "wait": 1}),
    ):
        refused = await caller.post(path, body)
        assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
        assert refused.headers["retry-after"]
    assert (await caller.get("/v1/events")).status_code == 429
    # Who does not wait needs no place, and one tenant cannot take them all.
    assert (await poll(caller, wait=0)).status_code == 204
    waiting.append(asyncio.create_task(poll(other)))
    await until(lambda: stage.api.deps.polls.waiting == 4)
    assert (await poll(await stage.caller(tenant="third"))).status_code == 429
    stage.api.end_waiting()
    await asyncio.gather(*waiting)
    assert (places._all, dict(places._taken)) == (0, {})


@served_from_memory
async def test_what_was_leased_for_nobody_is_given_back_before_the_server_ends(stage: Stage) -> None:
    caller = await stage.caller()
    engine = stage.engine
    made = await caller.job()
    asked, go_on = asyncio.Event(), asyncio.Event()
    lease = type(engine).lease

    async def slow(*args: Any, **kwargs: Any) -> LeaseBatch:
        asked.set()
        await go_on.wait()
        return await lease(engine, *args, **kwargs)

    engine.lease = slow  # type: ignore[method-assign]
    deps = stage.api.deps
    call = asyncio.create_task(kept(deps, lambda: engine.lease(["default"], 1, WorkerRef("w", OWNER))))
    await asked.wait()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    stopping = asyncio.create_task(stage.api.stop())
    await settled()
    assert not stopping.done()
    go_on.set()
    await stopping
    (job,) = await engine.get([UUID(made["id"])])
    assert job is not None
    assert job.state is State.QUEUED


async def kept(deps: Any, lease: Any) -> Any:
    return await leasing._kept(deps, asyncio.create_task(lease()), "default")
