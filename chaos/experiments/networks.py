"""Connections that break, hang and crawl: E03, E08, E23."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from chaos import history
from chaos.calls import TimedCall, hung, timed_calls
from chaos.checker import Violation
from chaos.experiment import Experiment, Run, Size
from chaos.facts import Facts
from chaos.following import Follower
from chaos.history import OK
from chaos.proxy import FaultProxy, Trouble
from chaos.snapshot import PAGE, snapshot
from chaos.stage import DRAIN_SECONDS, Member, RunBroken, Stage, finished, said
from ropeway.core.query import JobFilter
from ropeway.core.states import LIVE_STATES
from ropeway.engines.postgres.connection import STATEMENT_TIMEOUT
from ropeway.engines.remote.connection import ANSWER_SECONDS, PATIENCE

KINDS: Final = {"chaos.ok": 10, "chaos.slow": 1, "chaos.flaky": 1}


def note_faults(run: Run, link: str, proxy: FaultProxy, *, kind: str = "network") -> None:
    """All that the proxy does is a fault, written down before it is done; what lasted, once more at its end.

    `kind` is "elsewhere" where no worker is on those lines: nobody's lease may suffer.
    """
    write = partial(run.stage.nemesis.write, "fault", "ok", kind=kind, link=link)

    def noted(trouble: str, began: float) -> None:
        run.faults += 1
        write(trouble=trouble, act=act_of(began))

    def ended(trouble: str, began: float) -> None:
        write(trouble=trouble, act=act_of(began), began=began, until=time.monotonic())

    proxy.noted, proxy.ended = noted, ended


def act_of(began: float) -> int:
    """The number that the lines of one fault share."""
    return int(began * 1_000_000)


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


# ── E03: the answer to an enqueue is lost ──

#: The request arrives and its answer does not: the first one on a line, or one of the next. An answer has some
#: hundred bytes for each job in it.
LOST_REPLIES: Final = (Trouble(after=0), Trouble(after=600), Trouble(after=2_000), Trouble(after=4_000))

#: A quarter, so that a fifth is sure to be lost.
FORGETFUL: Final = "enqueue.committed=raise:0.25"


def fault_points(stage: Stage, points: str) -> dict[str, str]:
    """What switches fault points on in a process of this run, until it is healed."""
    log = stage.histories / "faultpoints.jsonl"
    stage.at_heal(log.with_name(f"{log.name}.healed").touch)
    return {"ROPEWAY_FAULTS": points, "ROPEWAY_FAULTS_LOG": str(log)}


@asynccontextmanager
async def forgetful(stage: Stage) -> AsyncIterator[None]:
    """Commits of enqueues are not told to whoever asked (where the store is reached directly)."""
    stage.producer_env |= fault_points(stage, FORGETFUL)
    yield


async def lost_commits(run: Run) -> None:
    """The load itself brings the faults; the fault points write down each."""
    await run.stage.until(lambda: not run.producing(), "all jobs are accepted", within=600)


@asynccontextmanager
async def forgetful_servers(stage: Stage) -> AsyncIterator[None]:
    """The servers commit, forget the answer and say so; they also lose answers on their way out, of any call."""
    await stage.serve_again(env=fault_points(stage, "enqueue.committed=raise:0.05,api.before_reply=raise:0.02"))
    yield


async def lost_replies(run: Run) -> None:
    """Every line of the producers is cut at one of its first answers; workers have good ones."""
    stage = run.stage
    async with FaultProxy(port_of(stage.url), stage.chance, share=1.0, kinds=LOST_REPLIES) as proxy:
        note_faults(run, "producers to server", proxy, kind="elsewhere")
        half, way = run.size.jobs // 2, proxy.way(stage.url)
        await finished([stage.producer(f"producer-cut-{n}", half, 60.0, KINDS, url=way) for n in (1, 2)])


def each_key_once(facts: Facts, run: Run) -> list[Violation]:
    """As many jobs are accepted, and are there, as there are keys; and a fifth had to be asked for again."""
    keys = {each.key for each in facts.enqueues}
    answered = {each.key for each in facts.enqueues if each.phase == OK}
    again = {each.key for each in facts.enqueues if each.deduplicated}
    run.notes["keys"] = len(keys)
    run.notes["stored, not told and asked for again"] = len(again)
    found = [Violation("E03", "-", f"the key {key} was never accepted") for key in keys - answered]
    if not len(facts.accepted) == len(facts.finals) == len(keys):
        found.append(
            Violation("E03", "-", f"{len(keys)} keys, {len(facts.accepted)} accepted, {len(facts.finals)} there")
        )
    if len(again) < run.size.faults:
        found.append(
            Violation("E03", "-", f"{len(again)} of {run.size.faults} answers were lost: the run proves nothing")
        )
    return found


# ── E08: cut, half-open, slow and dripping lines, wherever there is one ──

#: Bytes that a line carries before its trouble: enough for a session with the database to be opened.
SOUND_BYTES: Final = 1_000

#: What a connection may get into. An answer to an enqueue has some hundred bytes, so many are cut inside one.
TROUBLES: Final = (
    Trouble(after=0),
    Trouble(after=400),
    Trouble(after=5_000),
    Trouble(after=300, questions=True),
    # Nobody gives up a line that answers, so it ends here: no claim gets through with four seconds a question.
    Trouble(delay=2.0, begins=SOUND_BYTES, seconds=10.0),
    Trouble(drip=1.0, begins=SOUND_BYTES),
    Trouble(drip=1.0, begins=SOUND_BYTES, questions=True),
    Trouble(swallow=True, begins=SOUND_BYTES),
    Trouble(swallow=True, begins=SOUND_BYTES, questions=True),
)

#: The share of new lines that get into trouble, and of good ones that are cut every half second or so.
TROUBLED: Final = 0.15
CUT: Final = 0.05

#: Nobody was held up if no call took so many seconds.
HELD_UP: Final = 5.0

#: The proxies of a run, by what they lead to.
Links = dict[str, list[FaultProxy]]


@asynccontextmanager
async def on_bad_lines(stage: Stage) -> AsyncIterator[Links]:
    """Nobody reaches a server, or the database, but through a proxy. They are good until the faults begin."""
    links: Links = {}
    # The one who looks on has a good line.
    stage.direct = stage.direct or stage.url

    async def link(name: str, url: str) -> str:
        proxy = FaultProxy(port_of(url), stage.chance, kinds=TROUBLES)
        await proxy.open()
        # Processes that are told to stop still need it.
        stage.afterwards(proxy.close)
        links.setdefault(name, []).append(proxy)
        return proxy.way(url)

    if stage.store == "postgres":
        way = await link("to the database", stage.direct)
        if stage.over_http:
            await stage.serve_again(target=way)
        else:
            stage.url = way
    if stage.over_http:
        stage.urls = [await link("to a server", url) for url in stage.urls]
    yield links


async def bad_network(run: Run) -> None:
    stage, links = run.stage, run.given
    for name, proxies in links.items():
        for proxy in proxies:
            note_faults(run, name, proxy)
            proxy.share = TROUBLED
    every = [proxy for proxies in links.values() for proxy in proxies]
    while run.faults < run.size.faults or run.producing():
        await asyncio.sleep(stage.chance.uniform(0.3, 0.7))
        for proxy in every:
            proxy.cut(CUT, sound=True)
    for proxy in every:
        proxy.relieve()


def seconds_allowed(stage: Stage) -> float:
    """How long a call may take by its own rules: each of its tries, or its statement, has so much time."""
    return PATIENCE.tries * ANSWER_SECONDS if stage.over_http else STATEMENT_TIMEOUT


def nobody_hung(_facts: Facts, run: Run) -> list[Violation]:
    """No call takes more than twice its time; every kind of trouble was met on every kind of line."""
    lines = history.read(run.stage.histories)
    calls = timed_calls(lines)
    run.notes["longest call, s"] = round(max((call.seconds for call in calls), default=0.0), 2)
    met = {name: sum((proxy.met for proxy in proxies), Counter[str]()) for name, proxies in run.given.items()}
    for name, kinds in met.items():
        run.notes |= {f"{name}: {kind}": number for kind, number in sorted(kinds.items())}
    return too_long(calls, seconds_allowed(run.stage), lines[-1]["t"]) + untried(met)


def too_long(calls: Sequence[TimedCall], allowed: float, until: float) -> list[Violation]:
    found = []
    for call in hung(calls, 2 * allowed, until):
        took = (until if call.ended is None else call.ended) - call.asked
        found.append(Violation("E08", "-", f"a {call.op} took {took:.0f} s, and has {allowed:g}"))
    if not hung(calls, HELD_UP, until):
        found.append(Violation("E08", "-", "no call was held up: the run proves nothing"))
    return found


def untried(met: Mapping[str, Mapping[str, int]]) -> list[Violation]:
    """What no line of a kind has met proves nothing there."""
    return [
        Violation("E08", "-", f"no line {name} met {kind!r}: the run proves nothing")
        for name, kinds in met.items()
        for kind in sorted({trouble.name for trouble in TROUBLES} - kinds.keys())
    ]


# ── E23: a stream that is cut and resumed ──

#: Seconds within which a reader whose line is good again has to have seen all that there is.
CATCH_UP_SECONDS: Final = 60.0

#: Whose jobs are nobody else's business. What it asks for has keys that begin with its name.
OTHER: Final = "other"
OTHER_RATE: Final = 20.0


@dataclass
class Reader:
    """Somebody of one tenant who follows its events."""

    tenant: str
    follower: Follower


@asynccontextmanager
async def with_another_tenant(stage: Stage) -> AsyncIterator[str]:
    """The key of a tenant beside the usual one; empty where there are no keys, which is with a store in memory."""
    if not stage.token:
        yield ""
        return
    said(stage, "tenants", "create", "Other", "--id", OTHER, "--url", stage.direct)
    whose = ("--tenant", OTHER, "--url", stage.direct, "--json")
    made = said(stage, "keys", "create", OTHER, "--scope", "enqueue,work,read,read:payload", *whose)
    yield str(json.loads(made)["token"])


async def cut_streams(run: Run) -> None:
    """Somebody of each tenant reads all events over HTTP, and the lines are cut every moment."""
    stage, key = run.stage, run.given
    busy = [others(stage, key, run.size.jobs // 8)] if key else []
    async with FaultProxy(port_of(stage.url), stage.chance) as proxy:
        note_faults(run, "readers to server", proxy, kind="elsewhere")
        way = proxy.way(stage.url)
        readers = [Reader("default", Follower(way, stage.token))]
        if key:
            readers.append(Reader(OTHER, Follower(way, key)))
        for reader in readers:
            reader.follower.start()
        try:
            while run.faults < run.size.faults or run.producing() or any(each.running for each in busy):
                await asyncio.sleep(stage.chance.uniform(0.05, 0.3))
                proxy.cut()
            await finished(busy)
            await _catch_up(run, readers)
        finally:
            for reader in readers:
                await reader.follower.stop()
    run.given = readers
    run.seen = [event for reader in readers for event in reader.follower.seen]
    run.notes["events seen"] = len(run.seen)
    run.notes["connections"] = sum(reader.follower.connections for reader in readers)
    if key:
        held = await snapshot(await stage.engine(), tenants=(OTHER,))
        # The log is everybody's, and is read with the usual tenant's jobs.
        run.states.append({**held, "events": []})


def others(stage: Stage, key: str, jobs: int) -> Member:
    """The other tenant's worker, and its producer, which is given back."""
    stage.worker(f"worker-{OTHER}", ROPEWAY_TOKEN=key)
    command = [sys.executable, "-m", "chaos.producing", "--url", stage.url, "--token", key, "--name", OTHER]
    command += ["--jobs", str(jobs), "--rate", str(OTHER_RATE), "--seed", str(stage.chance.randrange(2**31))]
    command += ["--kinds", json.dumps({"chaos.ok": 1.0})]
    return stage.add(f"producer-{OTHER}", command, kept=False)


async def _catch_up(run: Run, readers: Sequence[Reader]) -> None:
    """Everything ends, and the readers see it. What they have not seen in time the checker names (C11)."""
    stage = run.stage
    await stage.until(lambda: _ended(stage, readers), "everything has ended", within=DRAIN_SECONDS)
    log = await _log(stage)
    began = time.monotonic()
    with contextlib.suppress(RunBroken):
        await stage.until(
            lambda: all(log[reader.tenant] <= set(reader.follower.seen) for reader in readers),
            "everything was seen",
            within=CATCH_UP_SECONDS,
        )
    run.notes["until all was seen, s"] = round(time.monotonic() - began, 1)


async def _ended(stage: Stage, readers: Sequence[Reader]) -> bool:
    engine = await stage.engine()
    live = [await engine.count(JobFilter(states=LIVE_STATES), cap=1, tenant=each.tenant) for each in readers]
    return not any(each.number for each in live)


async def _log(stage: Stage) -> dict[str, set[tuple[str, int]]]:
    """All events that there are, by tenant: job and seq."""
    engine = await stage.engine()
    found: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
    position = None
    while True:
        page = await engine.tail(position, limit=PAGE)
        for event in page.events:
            found[event.tenant].add((str(event.job_id), event.seq))
        position = page.position
        if page.whole and len(page.events) < PAGE:
            return found


def nothing_foreign(facts: Facts, run: Run) -> list[Violation]:
    """Each sees events of its own tenant's jobs alone, and where there are two tenants both have some."""
    found = []
    for reader in run.given:
        own = {id for id, final in facts.finals.items() if _of_the_other(final.key) is (reader.tenant == OTHER)}
        found += foreign(reader.follower.seen, own, reader.tenant)
    return found


def _of_the_other(key: str | None) -> bool:
    return key is not None and key.startswith(f"{OTHER}-")


def foreign(seen: Iterable[tuple[str, int]], own: set[str], tenant: str) -> list[Violation]:
    jobs = {job for job, _ in seen}
    if not jobs & own:
        return [Violation("E23", "-", f"nothing of the tenant {tenant} was seen: the run proves nothing")]
    return [
        Violation("E23", job, f"is not of the tenant {tenant}, who was told of it") for job in sorted(jobs - own)
    ]


EXPERIMENTS = (
    Experiment(
        id="E03L",
        title="commits of enqueues that nobody is told of, asked for again",
        small=Size(6_000, 1_200),
        full=Size(20_000, 4_000),
        faults=lost_commits,
        bar=each_key_once,
        around=forgetful,
        engines=("sqlite", "postgres"),
        rate=300.0,
        kinds=KINDS,
    ),
    Experiment(
        id="E03",
        title="answers to enqueues are lost and asked for again",
        small=Size(4_000, 800),
        full=Size(10_000, 2_000),
        faults=lost_replies,
        bar=each_key_once,
        around=forgetful_servers,
        engines=("http-sqlite", "http-postgres", "http-memory"),
        rate=0.0,
    ),
    Experiment(
        id="E08",
        title="connections cut, held, dripping and swallowed",
        small=Size(3_600, 100),
        full=Size(20_000, 1_000),
        faults=bad_network,
        bar=nobody_hung,
        around=on_bad_lines,
        engines=("postgres", "http-sqlite", "http-postgres", "http-memory"),
        kinds=KINDS,
        rate=40.0,
        # Longer than a call may take, as it is by default: who is heard of late is still heard of.
        lease_seconds=12.0,
    ),
    Experiment(
        id="E23",
        title="event streams cut and resumed",
        small=Size(4_000, 150),
        full=Size(12_000, 1_000),
        faults=cut_streams,
        bar=nothing_foreign,
        around=with_another_tenant,
        engines=("http-sqlite", "http-postgres", "http-memory"),
    ),
)
