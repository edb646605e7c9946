"""Lines that break, hang and fall silent, and the bars of the experiments on them: E03, E08, E10, E23."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest

from chaos.calls import TimedCall, hung
from chaos.experiment import Run, Size
from chaos.experiments import networks, waking
from chaos.facts import Enqueue, Facts, Final, Start
from chaos.proxy import FaultProxy, Trouble
from chaos.stage import Stage

# ── the proxy ──


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1_000):
        writer.write(data)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def _proxy(*kinds: Trouble) -> AsyncIterator[FaultProxy]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, FaultProxy(port, random.Random(1), share=1.0, kinds=kinds) as proxy:
        yield proxy


@asynccontextmanager
async def _line(proxy: FaultProxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def _say(line: tuple[asyncio.StreamReader, asyncio.StreamWriter], words: bytes) -> bytes | str:
    """What comes back of it within half a second."""
    reader, writer = line
    writer.write(words)
    try:
        async with asyncio.timeout(0.5):
            return await reader.readexactly(len(words))
    except TimeoutError:
        return "silence"
    except (ConnectionError, asyncio.IncompleteReadError):
        return "cut"


@pytest.mark.parametrize(
    ("trouble", "outcomes"),
    [
        (Trouble(after=7), [b"hello", "cut"]),
        (Trouble(after=7, questions=True), [b"hello", "cut"]),
        (Trouble(after=0, begins=5), [b"hello", "cut"]),
        (Trouble(swallow=True, begins=5), [b"hello", "silence"]),
        (Trouble(swallow=True, begins=5, questions=True), [b"hello", "silence"]),
        (Trouble(drip=1.0, begins=5), [b"hello", "silence"]),
        (Trouble(drip=1.0, begins=5, questions=True), [b"hello", "silence"]),
        (Trouble(delay=2.0, begins=5), [b"hello", "silence"]),
        (Trouble(delay=0.01, begins=5, seconds=0.0), [b"hello", "cut"]),
    ],
)
async def test_trouble_begins_where_it_was_asked_to_and_is_told_once(
    trouble: Trouble, outcomes: list[bytes | str]
) -> None:
    told: list[str] = []
    async with _proxy(trouble) as proxy:
        proxy.noted = lambda kind, _began: told.append(kind)
        async with _line(proxy) as line:
            for number, outcome in enumerate(outcomes):
                assert len(told) == 0, number
                assert await _say(line, b"hello") == outcome
    assert told == [trouble.name]
    assert proxy.met == {trouble.name: 1}


async def test_what_lasted_is_told_again_when_it_is_over() -> None:
    over = asyncio.Event()
    async with _proxy(Trouble(swallow=True)) as proxy:
        began: list[tuple[str, float]] = []
        ended: list[tuple[str, float]] = []

        def note_end(kind: str, at: float) -> None:
            ended.append((kind, at))
            over.set()

        proxy.noted = lambda kind, at: began.append((kind, at))
        proxy.ended = note_end
        async with _line(proxy) as line:
            assert await _say(line, b"hello") == "silence"
            assert (len(began), ended) == (1, [])
        proxy.relieve()
        async with asyncio.timeout(5):
            await over.wait()
    assert ended == began[:1]


async def test_a_drip_is_as_slow_as_it_was_asked_to_be() -> None:
    async with _proxy(Trouble(drip=50.0)) as proxy, _line(proxy) as line:
        loop = asyncio.get_running_loop()
        at = loop.time()
        assert await _say(line, b"0123456789") == b"0123456789"
        assert loop.time() - at >= 0.19


async def test_who_is_hushed_says_nothing_on_old_lines_and_new_ones() -> None:
    async with _proxy() as proxy, _line(proxy) as old:
        assert await _say(old, b"hello") == b"hello"
        proxy.hushed = True
        assert await _say(old, b"hello") == "silence"
        async with _line(proxy) as new:
            assert await _say(new, b"hello") == "silence"


async def test_a_cut_of_sound_lines_leaves_the_hanging_ones_hanging() -> None:
    async with _proxy(Trouble(swallow=True, begins=5)) as proxy, _line(proxy) as hanging:
        assert await _say(hanging, b"hello") == b"hello"
        proxy.share = 0.0
        async with _line(proxy) as sound:
            assert await _say(sound, b"hello") == b"hello"
            assert proxy.cut(sound=True) == 1
            assert await _say(sound, b"hello") == "cut"
        assert await _say(hanging, b"hello") == "silence"
        proxy.relieve()
        assert await _say(hanging, b"hello") == "cut"


async def test_every_kind_comes_before_one_comes_again() -> None:
    kinds = [Trouble(after=0), Trouble(after=0, questions=True), Trouble(swallow=True), Trouble(drip=1.0)]
    async with _proxy(*kinds) as proxy:
        for _ in kinds * 2:
            async with _line(proxy) as line:
                await _say(line, b"hello")
    assert proxy.met == {kind.name: 2 for kind in kinds}


# ── the bars ──


def _run(size: Size) -> Run:
    """As much of a run as a bar looks at."""
    return Run(cast(Stage, None), size, lambda: False)


def _asked(key: str, id: str | None, *, again: bool = False) -> Enqueue:
    return Enqueue(key, "chaos.ok", 1.0, None if id is None else 2.0, "info" if id is None else "ok", id, again)


def _final(id: str, key: str) -> Final:
    return Final(id, "chaos.ok", "succeeded", 1, 1, 5, 0, key)


def _facts(enqueues: Sequence[Enqueue], finals: Sequence[Final]) -> Facts:
    return Facts(enqueues=list(enqueues), finals={final.id: final for final in finals})


LOST_ONCE = [_asked("a", None), _asked("a", "1", again=True), _asked("b", "2")]


@pytest.mark.parametrize(
    ("facts", "faults", "words"),
    [
        (_facts(LOST_ONCE, [_final("1", "a"), _final("2", "b")]), 1, []),
        (_facts(LOST_ONCE, [_final("1", "a"), _final("2", "b")]), 2, ["1 of 2 answers"]),
        (_facts([*LOST_ONCE, _asked("c", None)], [_final("1", "a"), _final("2", "b")]), 1, ["never", "3 keys"]),
        (_facts(LOST_ONCE, [_final("1", "a"), _final("2", "b"), _final("3", "c")]), 1, ["2 keys"]),
    ],
)
def test_each_key_is_accepted_once_and_answers_were_lost(facts: Facts, faults: int, words: list[str]) -> None:
    found = networks.each_key_once(facts, _run(Size(3, faults)))
    assert len(found) == len(words)
    assert all(word in violation.words for word, violation in zip(words, found, strict=True))


def _call(asked: float, ended: float | None) -> TimedCall:
    return TimedCall("settle", asked, ended, "info" if ended is None else "ok")


def test_a_call_hangs_when_it_takes_too_long_or_was_never_answered() -> None:
    quick, slow, unanswered = _call(0.0, 1.0), _call(0.0, 30.0), _call(10.0, None)
    assert hung([quick, slow, unanswered], 20.0, 40.0) == [slow, unanswered]
    assert hung([quick, slow, unanswered], 35.0, 40.0) == []


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ([_call(0.0, 12.0), _call(90.0, None)], []),
        ([_call(0.0, 25.0), _call(0.0, 12.0)], ["a settle took 25 s, and has 10"]),
        ([_call(0.0, 12.0), _call(50.0, None)], ["a settle took 50 s, and has 10"]),
        ([_call(0.0, 1.0)], ["no call was held up: the run proves nothing"]),
    ],
)
def test_no_call_takes_more_than_twice_its_time(calls: list[TimedCall], words: list[str]) -> None:
    assert [violation.words for violation in networks.too_long(calls, 10.0, 100.0)] == words


def test_what_no_line_has_met_proves_nothing_there() -> None:
    every = Counter(trouble.name for trouble in networks.TROUBLES)
    assert networks.untried({"to a server": every}) == []
    (found,) = networks.untried({"to a server": every, "to the database": every - Counter({"delay": 9})})
    assert "no line to the database met 'delay'" in found.words


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ([("1", 1), ("1", 2), ("2", 1)], []),
        ([("1", 1), ("3", 1)], ["is not of the tenant other, who was told of it"]),
        ([], ["nothing of the tenant other was seen: the run proves nothing"]),
    ],
)
def test_nobody_is_told_of_another_tenants_jobs(seen: list[tuple[str, int]], words: list[str]) -> None:
    assert [violation.words for violation in networks.foreign(seen, {"1", "2"}, "other")] == words


def _picked_up(waits: dict[str, Sequence[float]]) -> Facts:
    """Jobs of two producers that waited for so long between their acceptance and their start."""
    facts = Facts()
    for producer, seconds in waits.items():
        for number, wait in enumerate(seconds):
            id = f"{producer}-{number}"
            facts.enqueues.append(_asked(id, id))
            facts.starts[id].append(Start(id, 1, None, 2.0 + wait, 7))
    return facts


@pytest.mark.parametrize(
    ("heard", "unheard", "words"),
    [
        ([0.01] * 9, [0.1, 0.4, 1.1], []),
        ([0.01] * 9, [0.4] * 50 + [1.9, 1.9], ["pickup p99 1.90 s"]),
        ([0.01] * 9, [0.01, 0.02, 0.03], ["0.020 s at most: the run proves nothing"]),
        ([0.3] * 9, [0.3, 0.4, 0.5], ["0.400 s at most: the run proves nothing"]),
        ([], [0.4], ["no job's start was seen"]),
    ],
)
def test_jobs_are_found_by_polling_and_by_nothing_else(
    heard: list[float], unheard: list[float], words: list[str]
) -> None:
    facts = _picked_up({waking.HEARD: heard, waking.UNHEARD: unheard})
    found = waking.found_by_polling(facts, _run(Size(9, 3)))
    assert len(found) == len(words)
    assert all(word in violation.words for word, violation in zip(words, found, strict=True))
