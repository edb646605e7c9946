"""Coalescing: many single calls, one batch at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ropeway.runtime.coalesce import Batches, Coalescer


class Flush:
    """A flush that can be held, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.under_way = 0

    async def __call__(self, items: Sequence[int]) -> list[int | Exception]:
        assert self.under_way == 0, "two batches at once"
        self.under_way += 1
        self.batches.append(list(items))
        await self.gate.wait()
        self.under_way -= 1
        if 13 in items:
            raise RuntimeError("the whole batch")
        return [ValueError(f"bad {item}") if item < 0 else item * 10 for item in items]


async def test_what_arrives_during_a_flush_goes_together_in_the_next() -> None:
    flush = Flush()
    coalescer = Coalescer(flush)
    flush.gate.clear()
    first = coalescer.submit(1)
    await asyncio.sleep(0)
    others = [coalescer.submit(n) for n in (2, 3, 4)]
    flush.gate.set()
    assert await asyncio.gather(first, *others) == [10, 20, 30, 40]
    assert flush.batches == [[1], [2, 3, 4]]


async def test_calls_of_one_turn_of_the_loop_go_together() -> None:
    flush = Flush()
    coalescer = Coalescer(flush)
    assert await asyncio.gather(*(coalescer.submit(n) for n in range(5))) == [0, 10, 20, 30, 40]
    assert flush.batches == [[0, 1, 2, 3, 4]]


async def test_a_batch_has_a_limit_and_keeps_the_order() -> None:
    flush = Flush()
    coalescer = Coalescer(flush, limit=3)
    await asyncio.gather(*(coalescer.submit(n) for n in range(7)))
    assert flush.batches == [[0, 1, 2], [3, 4, 5], [6]]


async def test_an_error_in_place_of_an_answer_is_one_callers() -> None:
    coalescer = Coalescer(Flush())
    answers = await asyncio.gather(*(coalescer.submit(n) for n in (1, -2, 3)), return_exceptions=True)
    assert answers[0::2] == [10, 30]
    assert isinstance(answers[1], ValueError)


async def test_a_flush_that_fails_fails_its_callers_and_the_next_goes_on() -> None:
    flush = Flush()
    coalescer = Coalescer(flush, limit=2)
    answers = await asyncio.gather(*(coalescer.submit(n) for n in (13, 1, 2)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [RuntimeError, RuntimeError, int]
    assert await coalescer.submit(5) == 50


async def test_a_flush_that_answers_too_few_is_an_error_not_a_silence() -> None:
    async def short(items: Sequence[int]) -> list[int | Exception]:
        return []

    coalescer: Coalescer[int, int] = Coalescer(short)
    with pytest.raises(RuntimeError, match="0 answers to 1 items"):
        await coalescer.submit(1)


async def test_a_caller_that_gave_up_harms_nobody() -> None:
    flush = Flush()
    coalescer = Coalescer(flush)
    flush.gate.clear()
    first, second = coalescer.submit(1), coalescer.submit(2)
    await asyncio.sleep(0)
    first.cancel()
    flush.gate.set()
    assert await second == 20
    assert flush.batches == [[1, 2]], "what was submitted is flushed, whoever waits for it"


async def test_close_waits_for_what_was_submitted() -> None:
    flush = Flush()
    coalescer = Coalescer(flush, limit=1)
    answers = [coalescer.submit(n) for n in range(3)]
    await coalescer.close()
    assert [answer.result() for answer in answers] == [0, 10, 20]
    await coalescer.close()


async def test_a_cancelled_flush_leaves_no_caller_waiting() -> None:
    async def cancelled(items: Sequence[int]) -> list[int | Exception]:
        raise asyncio.CancelledError

    coalescer: Coalescer[int, int] = Coalescer(cancelled)
    with pytest.raises(asyncio.CancelledError):
        await coalescer.submit(1)


async def test_a_cancelled_flush_leaves_no_later_caller_waiting_either() -> None:
    async def cancelled(items: Sequence[int]) -> list[int | Exception]:
        raise asyncio.CancelledError

    coalescer: Coalescer[int, int] = Coalescer(cancelled, limit=1)
    answers = [coalescer.submit(n) for n in range(3)]
    done, waiting = await asyncio.wait(answers, timeout=1)
    assert not waiting, "the items behind a cancelled batch wait for ever"
    assert all(answer.cancelled() for answer in done)


async def test_who_gave_up_before_the_batch_began_is_not_in_it() -> None:
    flush = Flush()
    coalescer = Coalescer(flush, limit=2)
    flush.gate.clear()
    first = coalescer.submit(1)
    await asyncio.sleep(0)
    others = [coalescer.submit(n) for n in (2, 3, 4, 5)]
    for gone in (0, 2, 3):
        others[gone].cancel()
    flush.gate.set()
    assert await asyncio.gather(first, others[1]) == [10, 30]
    await coalescer.close()
    assert flush.batches == [[1], [3]], "and a batch of nobody is none"


async def test_calls_one_after_the_other_are_batches_of_one() -> None:
    """Each comes when the run before has ended and nobody has noticed yet."""
    flush = Flush()
    coalescer = Coalescer(flush)
    async with asyncio.timeout(5):
        assert [await coalescer.submit(n) for n in range(4)] == [0, 10, 20, 30]
    assert flush.batches == [[0], [1], [2], [3]]


async def test_cancelled_before_its_first_step_it_takes_calls_again() -> None:
    before = asyncio.all_tasks()
    coalescer = Coalescer(Flush())
    lost = coalescer.submit(1)
    (run,) = asyncio.all_tasks() - before
    run.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await lost
        assert await coalescer.submit(2) == 20
        await coalescer.close()


async def test_cancelling_gives_up_all_of_it_and_closing_is_quick_then() -> None:
    flush = Flush()
    flush.gate.clear()
    coalescer = Coalescer(flush, limit=2)
    answers = [coalescer.submit(n) for n in range(5)]
    await asyncio.sleep(0)
    coalescer.cancel()
    async with asyncio.timeout(5):
        await coalescer.close()
    assert all(answer.cancelled() for answer in answers)
    assert flush.batches == [[0, 1]]


async def test_batches_may_be_answered_later() -> None:
    """The next batch does not wait for those that were left to somebody else."""
    kept: list[asyncio.Future[int]] = []

    async def answer(batch: list[tuple[int, asyncio.Future[int]]]) -> None:
        for item, future in batch:
            if item < 0:
                kept.append(future)
            else:
                future.set_result(item * 10)

    batches: Batches[int, int] = Batches(answer)
    later, at_once = batches.submit(-1), batches.submit(1)
    assert await at_once == 10
    assert await batches.submit(2) == 20
    await batches.close()
    assert not later.done()
    kept[0].set_result(-10)
    assert await later == -10
