"""Connections that break, hang and crawl: E03, E08."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from chaos.checker import Violation
from chaos.experiment import Experiment, Run, Size
from chaos.facts import Facts
from chaos.following import Follower
from chaos.proxy import FaultProxy, Trouble
from chaos.stage import DRAIN_SECONDS, Stage

#: What a connection may get into. An answer to an enqueue has some hundred bytes, so many are cut inside one.
TROUBLES = (
    Trouble(after=0),
    Trouble(after=400),
    Trouble(after=20_000),
    Trouble(delay=0.5),
    Trouble(drip=200.0),
    Trouble(swallow=True),
)

#: The request arrives and its answer does not.
LOST_REPLIES = (Trouble(after=0), Trouble(after=100), Trouble(after=600))


async def between(run: Run, troubles: tuple[Trouble, ...], share: float) -> None:
    """Producers of this experiment go through a proxy; some of their connections get into trouble."""
    stage = run.stage
    address = urlsplit(stage.url)
    assert address.port is not None
    async with FaultProxy(address.port, stage.chance, share=share, kinds=troubles) as proxy:

        def noted() -> None:
            run.faults += 1
            stage.nemesis.write("fault", "ok", kind="network")

        proxy.noted = noted
        through = address._replace(netloc=address.netloc.replace(str(address.port), str(proxy.port))).geturl()
        half = run.size.jobs // 2
        producers = [
            stage.producer(f"producer{name}", half, 60.0, KINDS, url=through) for name in ("-cut-1", "-cut-2")
        ]
        while any(producer.running for producer in producers):
            await asyncio.sleep(stage.chance.uniform(0.2, 0.8))
            cut = proxy.cut(0.3)
            run.faults += cut
            if cut:
                stage.nemesis.write("fault", "ok", kind="network")
        proxy.share = 0.0


KINDS = {"chaos.ok": 10, "chaos.slow": 1, "chaos.flaky": 1}


async def lost_replies(run: Run) -> None:
    await between(run, LOST_REPLIES, 0.4)


@asynccontextmanager
async def forgetful(stage: Stage) -> AsyncIterator[None]:
    """A fifth of all commits of enqueues is not told to whoever asked (where the store is reached directly)."""
    log = stage.histories / "faultpoints.jsonl"
    stage.producer_env |= {"ROPEWAY_FAULTS": "enqueue.committed=raise:0.2", "ROPEWAY_FAULTS_LOG": str(log)}
    yield


async def lost_commits(run: Run) -> None:
    """The load itself brings the faults; the fault points write down each."""
    await run.stage.until(lambda: not run.producing(), "all jobs are accepted", within=600)


async def bad_network(run: Run) -> None:
    await between(run, TROUBLES, 0.3)


# ── E23: a stream that is cut and resumed ──

#: A follower has seen all there was when it has heard nothing new for so long.
QUIET_SECONDS = 3.0


async def cut_streams(run: Run) -> None:
    """Somebody reads all events over HTTP, and the line is cut every moment."""
    stage = run.stage
    address = urlsplit(stage.url)
    assert address.port is not None
    async with FaultProxy(address.port, stage.chance) as proxy:
        follower = Follower(f"http://127.0.0.1:{proxy.port}", stage.token)
        follower.start()
        try:
            while run.faults < run.size.faults or run.producing():
                await asyncio.sleep(stage.chance.uniform(0.05, 0.3))
                if proxy.cut():
                    run.faults += 1
            await stage.until(
                lambda: _seen_all(stage, follower), "everything has ended and was seen", within=DRAIN_SECONDS
            )
        finally:
            await follower.stop()
    run.seen = follower.seen
    run.notes["events seen"] = len(follower.seen)
    run.notes["connections"] = follower.connections


async def _seen_all(stage: Stage, follower: Follower) -> bool:
    return await stage.live() == 0 and time.monotonic() - follower.heard_at > QUIET_SECONDS


def nothing_foreign(facts: Facts, _run: Run) -> list[Violation]:
    """Only events of jobs that are there."""
    strange = {job for job, _ in facts.seen or ()} - facts.finals.keys()
    return [Violation("E23", job, "was told of and is not there") for job in strange]


EXPERIMENTS = (
    Experiment(
        id="E03L",
        title="commits of enqueues that nobody is told of, asked for again",
        small=Size(6_000, 1_000),
        full=Size(20_000, 4_000),
        faults=lost_commits,
        around=forgetful,
        engines=("sqlite", "postgres"),
        rate=300.0,
        kinds=KINDS,
    ),
    Experiment(
        id="E03",
        title="answers to enqueues are lost and asked for again",
        small=Size(4_000, 100),
        full=Size(10_000, 2_000),
        faults=lost_replies,
        engines=("http-sqlite", "http-postgres"),
        rate=0.0,
    ),
    Experiment(
        id="E08",
        title="connections cut, held, dripping and swallowed",
        small=Size(4_000, 100),
        full=Size(12_000, 1_000),
        faults=bad_network,
        engines=("postgres", "http-sqlite", "http-postgres"),
        rate=0.0,
    ),
    Experiment(
        id="E23",
        title="event streams cut and resumed",
        small=Size(4_000, 150),
        full=Size(12_000, 1_000),
        faults=cut_streams,
        bar=nothing_foreign,
        engines=("http-sqlite", "http-postgres", "http-memory"),
    ),
)
