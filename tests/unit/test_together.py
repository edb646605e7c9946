"""Calls in one request: who is told what, and when, if the request or a part of it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ropeway.core.errors import (
    ConfigurationError,
    FieldError,
    Indeterminate,
    MissingScope,
    QueueFull,
    RopewayError,
    Unavailable,
)
from ropeway.wire import gathering
from ropeway.wire.calls import InDoubt, NotUnderstood
from ropeway.wire.gathering import ALONE_AT_ONCE, Together


class Sender:
    """Sends words. A word that is in `trouble` fails, and every request with it; one in `held` waits alone."""

    def __init__(self) -> None:
        self.trouble: dict[str, Exception] = {}
        self.held: dict[str, asyncio.Event] = {}
        self.requests: list[list[str]] = []
        self.alone_after: dict[str, RopewayError] = {}
        self._under_way = self.most_at_once = 0

    async def together(self, words: Sequence[str]) -> list[str]:
        self.requests.append(list(words))
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        await asyncio.sleep(0)
        self._under_way -= 1
        for word in words:
            if word in self.trouble:
                raise self.trouble[word]
        return [word.upper() for word in words]

    async def alone(self, word: str, after: RopewayError) -> str:
        self.alone_after[word] = after
        if word in self.held:
            await self.held[word].wait()
        if word in self.trouble:
            raise self.trouble[word]
        return word.upper()


Futures = dict[str, "asyncio.Future[str]"]


def together(sender: Sender, *, keyed: bool = True) -> Together[str, str]:
    return Together(sender.together, sender.alone, size=len, keyed=keyed)


def waiting(*words: str) -> Futures:
    return {word: asyncio.get_running_loop().create_future() for word in words}


async def told(futures: Futures) -> list[str | BaseException]:
    async with asyncio.timeout(5):
        return await asyncio.gather(*futures.values(), return_exceptions=True)


async def test_all_is_well() -> None:
    sender = Sender()
    futures = waiting("a", "b")
    await together(sender).answer(list(futures.items()))
    assert [future.result() for future in futures.values()] == ["A", "B"]
    assert sender.requests == [["a", "b"]]


async def test_who_waits_alone_keeps_nobody_waiting() -> None:
    sender = Sender()
    sender.trouble["mail"] = QueueFull("full", retry_in=5.0)
    gate = sender.held["mail"] = asyncio.Event()
    company = together(sender)
    futures = waiting("a", "mail", "b")
    async with asyncio.timeout(5):
        await company.answer(list(futures.items()))
        assert await asyncio.gather(futures["a"], futures["b"]) == ["A", "B"]
        assert not futures["mail"].done()
        closing = asyncio.create_task(company.close())
        await asyncio.sleep(0)
        assert not closing.done(), "closing waits for those that are sent alone"
        gate.set()
        with pytest.raises(QueueFull):
            await futures["mail"]
        await closing
    assert sender.requests == [["a", "mail", "b"], ["a"], ["mail"], ["b"]]
    assert list(sender.alone_after) == ["mail"]


async def test_only_so_many_are_sent_alone_at_once_and_those_that_wait_do_not_count() -> None:
    sender = Sender()
    words = [f"mail-{n}" for n in range(3 * ALONE_AT_ONCE)]
    gate = asyncio.Event()
    for word in words:
        sender.trouble[word] = QueueFull("full")
        sender.held[word] = gate
    company = together(sender)
    futures = waiting(*words, "last")
    await company.answer(list(futures.items()))
    async with asyncio.timeout(5):
        assert await futures["last"] == "LAST"
    assert list(sender.alone_after) == words, "all of them wait for their next try"
    assert sender.most_at_once == ALONE_AT_ONCE
    gate.set()
    assert [type(answer) for answer in await told(futures)] == [QueueFull] * len(words) + [str]


async def test_a_single_call_goes_on_from_its_refusal() -> None:
    sender = Sender()
    sender.trouble["mail"] = full = QueueFull("full", retry_in=5.0)
    futures = waiting("mail")
    await together(sender).answer(list(futures.items()))
    (answer,) = await told(futures)
    assert isinstance(answer, QueueFull)
    after = sender.alone_after["mail"]
    assert isinstance(after, QueueFull)
    assert (str(after), after.retry_in) == (str(full), 5.0)


@pytest.mark.parametrize("error", [InDoubt("500"), NotUnderstood("403"), FieldError("bad")])
async def test_what_may_be_of_one_of_them_is_of_one_of_them(error: RopewayError) -> None:
    sender = Sender()
    sender.trouble["poison"] = error
    futures = waiting("a", "poison", "b")
    await together(sender).answer(list(futures.items()))
    a, poison, b = await told(futures)
    assert (a, type(poison), b) == ("A", type(error), "B")


async def test_whoever_may_have_been_stored_keeps_that_doubt() -> None:
    sender = Sender()
    sender.trouble["poison"] = InDoubt("500")
    futures = waiting("a", "poison")
    await together(sender).answer(list(futures.items()))
    await told(futures)
    doubts = list(sender.alone_after.values())
    assert [type(doubt) for doubt in doubts] == [InDoubt, InDoubt]
    assert doubts[0] is not doubts[1], "nobody shares an error"


@pytest.mark.parametrize(
    "error", [Unavailable("x"), Indeterminate("x"), ConfigurationError("x"), MissingScope("x")]
)
async def test_what_would_be_said_to_each_is_said_to_each(error: RopewayError) -> None:
    sender = Sender()
    sender.trouble["b"] = error
    futures = waiting("a", "b", "c")
    await together(sender).answer(list(futures.items()))
    answers = await told(futures)
    assert [type(answer) for answer in answers] == [type(error)] * 3
    assert len({id(answer) for answer in answers}) == 3
    assert not sender.alone_after


async def test_without_keys_nothing_is_sent_that_may_have_been_stored() -> None:
    sender = Sender()
    sender.trouble["b"] = InDoubt("500")
    futures = waiting("a", "b")
    await together(sender, keyed=False).answer(list(futures.items()))
    assert [type(answer) for answer in await told(futures)] == [InDoubt, InDoubt]
    assert not sender.alone_after


async def test_each_part_is_told_at_its_own_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MOST_BYTES", 2)
    sender = Sender()
    sender.trouble["d"] = ValueError("unheard of")
    futures = waiting("a", "b", "c", "d", "e")
    await together(sender).answer(list(futures.items()))
    answers = await told(futures)
    assert sender.requests == [["a", "b"], ["c", "d"], ["e"]]
    assert [answers[0], answers[1], answers[4]] == ["A", "B", "E"]
    assert [type(answer) for answer in answers[2:4]] == [ValueError, ValueError]


async def test_who_gave_up_meanwhile_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MOST_BYTES", 1)
    sender = Sender()
    futures = waiting("a", "b", "c")
    futures["b"].cancel()
    await together(sender).answer(list(futures.items()))
    assert sender.requests == [["a"], ["c"]]


async def test_who_gives_up_while_sent_alone_is_sent_no_more() -> None:
    sender = Sender()
    sender.trouble["mail"] = QueueFull("full")
    sender.held["mail"] = asyncio.Event()
    company = together(sender)
    futures = waiting("a", "mail")
    await company.answer(list(futures.items()))
    assert await futures["a"] == "A"
    futures["mail"].cancel()
    async with asyncio.timeout(5):
        await company.close()


async def test_cancelling_cancels_those_that_are_sent_alone() -> None:
    sender = Sender()
    sender.trouble["mail"] = QueueFull("full")
    sender.held["mail"] = asyncio.Event()
    company = together(sender)
    futures = waiting("a", "mail")
    await company.answer(list(futures.items()))
    company.cancel()
    async with asyncio.timeout(5):
        await company.close()
    assert futures["mail"].cancelled()
