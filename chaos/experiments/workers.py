"""Workers that die, sleep and are told to stop: E01, E01D, E01S, E02, E33."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from chaos import nemesis
from chaos.checker import Violation
from chaos.checker.leasing import stale_calls
from chaos.experiment import WITH_EFFECTS, Experiment, Faults, Run, Size
from chaos.facts import EventFact, Facts, Fault
from chaos.stage import Stage
from ropeway.core.query import JobFilter
from ropeway.core.states import EventName, State

#: Where a death is the most awkward: between a commit and whoever has to hear of it.
AWKWARD = (
    "commit.before",
    "lease.committed",
    "lease.received",
    "settle.before",
    "settle.committed",
    "settle.answered",
    "beat.committed",
    "end.committed",
    "rescue.before",
    "rescue.committed",
)
AWKWARD_FOR_SERVERS = (
    "commit.before",
    "lease.committed",
    "settle.committed",
    "beat.committed",
    "end.committed",
    "api.before_reply",
)

#: How often a worker dies there, and a server: that one serves everybody. Seldom where recovery is timed:
#: the kills leave two cores just enough room to start again what died, and each death costs a second of one.
SELDOM, WORKER_SHARE, SERVER_SHARE = 0.0001, 0.0005, 0.0002

#: Where servers are to die, every third fault is the death of one.
SERVER_EVERY = 3

SERVERS = "servers killed"


async def another(run: Run, least: float, most: float) -> bool:
    """Whether there is to be another fault, after a while: one that comes when the load is over shows nothing."""
    if run.faults >= run.size.faults:
        return False
    await asyncio.sleep(run.stage.chance.uniform(least, most))
    return run.producing()


# ── E01: workers are killed ──


@asynccontextmanager
async def dying_at_awkward_points(stage: Stage) -> AsyncIterator[None]:
    """Workers also kill themselves, now and then, at fault points in the code."""
    stage.worker_env |= deadly_points(stage, AWKWARD, SELDOM)
    yield


@asynccontextmanager
async def all_dying_at_awkward_points(stage: Stage) -> AsyncIterator[None]:
    """Workers do, and servers too."""
    stage.worker_env |= deadly_points(stage, AWKWARD, WORKER_SHARE)
    await stage.serve_again(env=deadly_points(stage, AWKWARD_FOR_SERVERS, SERVER_SHARE))
    yield


def deadly_points(stage: Stage, points: Sequence[str], share: float) -> dict[str, str]:
    """What a process is started with that dies there so often, as long as there are faults."""
    log = stage.histories / "faultpoints.jsonl"
    stage.at_heal(log.with_name(f"{log.name}.healed").touch)
    armed = ",".join(f"{point}=kill:{share}" for point in points)
    return {"ROPEWAY_FAULTS": armed, "ROPEWAY_FAULTS_LOG": str(log)}


def kills_every(least: float, most: float, *, servers: bool = False) -> Faults:
    """So often a worker dies: its child alone, or all of it; or a server."""

    async def kills(run: Run) -> None:
        stage = run.stage
        while await another(run, least, most):
            if servers and run.faults % SERVER_EVERY == 0 and stage.kill_server():
                run.notes[SERVERS] = run.notes.get(SERVERS, 0) + 1
                run.faults += 1
                continue
            worker = stage.chance.choice(stage.named("worker"))
            kill = nemesis.kill_child if stage.chance.random() < 0.5 else nemesis.kill_whole
            run.faults += kill(stage, worker)

    return kills


#: As fast as workers are there again.
kill_storm = kills_every(0.4, 1.2)


def servers_died_too(_facts: Facts, run: Run) -> list[Violation]:
    if not run.notes.get(SERVERS):
        return [Violation("E01S", "-", "no server was killed: the run proves nothing")]
    return []


# ── E02: workers stand still ──


async def zombies(run: Run) -> None:
    """Workers stop for longer than their leases last, go on, and report what they did."""
    stage = run.stage
    workers = stage.named("worker")

    async def one() -> None:
        while await another(run, 0.2, 1.0):
            worker = stage.chance.choice(workers)
            if worker in stopped:
                continue
            stopped.add(worker)
            try:
                seconds = stage.lease_seconds * stage.chance.uniform(1.5, 5.0)
                stopped_once = await nemesis.pause(stage, worker, seconds)
                # Not in the same line as the wait: others count meanwhile.
                run.faults += stopped_once
            finally:
                stopped.discard(worker)

    stopped: set[object] = set()
    # At least one of them works at any time.
    await asyncio.gather(*(one() for _ in range(max(1, len(workers) - 1))))


def zombies_were_refused(facts: Facts, run: Run) -> list[Violation]:
    """Zombies report, and are not believed; nobody else has lost a job."""
    sent, accepted = stale_calls(facts)
    run.notes["stale calls sent"], run.notes["stale calls accepted"] = sent, accepted
    found = [] if sent else [Violation("E02", "-", "no stale call was made: the run proves nothing")]
    pauses: defaultdict[int, list[Fault]] = defaultdict(list)
    for fault in facts.faults:
        if fault.kind == "pause":
            pauses[fault.pid].append(fault)
    return found + [
        Violation("E02", id, f"attempt {event.attempt} was taken from a worker that had not stood still")
        for id, events in facts.events.items()
        for event in events
        if "cause" in event.data and not _stood_still(facts, id, event, pauses)
    ]


def _stood_still(facts: Facts, id: str, taken: EventFact, pauses: Mapping[int, list[Fault]]) -> bool:
    """Whether the process that had the attempt was stopped between its lease and that. Which process had one that
    nobody was told of is not known."""
    at = facts.when(taken.at)
    grants = [grant for grant in facts.grants.get(id, ()) if grant.attempt == taken.attempt]
    return not grants or any(
        pause.at <= at and pause.until >= grant.asked for grant in grants for pause in pauses.get(grant.pid, ())
    )


# ── E33: workers are told to stop ──

#: Seconds that a worker has then (--drain-seconds): much less than its jobs take.
DRAIN_SECONDS = 2.0
#: Seconds after that in which everything is given back, and the worker gone.
GRACE = 1.0
#: The workers, and the jobs of each.
STOPPED, SLOTS = 2, 100
#: What counts as full: of all slots when the next one is told to stop, and of its own in the end.
FULL, LEAST_FULL = 0.95, 0.8
#: When slots have not filled after so long, the load is over.
FILL_SECONDS = 30.0

LONGEST = "longest stop, s"


@asynccontextmanager
async def little_patience(stage: Stage) -> AsyncIterator[None]:
    stage.worker_env["ROPEWAY_DRAIN_SECONDS"] = str(DRAIN_SECONDS)
    yield


async def graceful_stops(run: Run) -> None:
    """Workers are told to stop when each slot has a job that takes longer, and are there again at once."""
    stage = run.stage
    run.notes[LONGEST] = 0.0
    while run.faults < run.size.faults and await _filled(stage):
        await asyncio.sleep(stage.chance.uniform(0.0, 1.0))
        worker = stage.chance.choice([each for each in stage.named("worker") if each.running])
        process = worker.process
        stage.nemesis.write("fault", "ok", kind="term", target_pid=process.pid, whole=True, worker=worker.name)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 60)
        run.notes[LONGEST] = round(max(run.notes[LONGEST], time.monotonic() - began), 2)
        run.faults += 1


async def _filled(stage: Stage) -> bool:
    """Wait until the slots have jobs; False: there are no more jobs for that."""
    engine = await stage.engine()
    until = time.monotonic() + FILL_SECONDS
    while time.monotonic() < until:
        running = await engine.count(JobFilter(states=frozenset({State.RUNNING})), cap=1_000)
        if running.number >= FULL * STOPPED * SLOTS:
            return True
        await asyncio.sleep(0.2)
    return False


@dataclass(frozen=True, slots=True)
class Held:
    """One attempt while a worker had it: from its start to its end, and how that was."""

    job: str
    attempt: int
    since: float
    until: float
    how: str


def nothing_wasted(facts: Facts, run: Run) -> list[Violation]:
    """A worker that is told to stop finishes or gives back by its deadline: nobody loses an attempt."""
    by_worker = _held_by_worker(facts)
    stops = [
        (stop.at + DRAIN_SECONDS, [each for each in by_worker[stop.worker] if each.since <= stop.at < each.until])
        for stop in facts.faults
        if stop.kind == "term"
    ]
    given_back = [
        each.until - deadline for deadline, held in stops for each in held if each.how == EventName.RELEASED
    ]
    fewest = min((len(held) for _, held in stops), default=0)
    run.notes["given back"] = len(given_back)
    run.notes["last given back after the deadline, s"] = round(max(given_back, default=0.0), 2)
    run.notes["fewest jobs of a worker told to stop"] = fewest
    found = _wasted(facts) + [
        Violation("E33", each.job, f"attempt {each.attempt} was held until {late:.2f} s after the deadline")
        for deadline, held in stops
        for each in held
        if (late := each.until - deadline) > GRACE
    ]
    if run.notes[LONGEST] > DRAIN_SECONDS + GRACE:
        found.append(Violation("E33", "-", f"a stop took {run.notes[LONGEST]} s"))
    if not given_back:
        found.append(Violation("E33", "-", "nothing had to be given back: the run proves nothing"))
    elif fewest < LEAST_FULL * SLOTS:
        found.append(Violation("E33", "-", f"a worker had {fewest} jobs only: the run proves nothing"))
    return found


def _wasted(facts: Facts) -> list[Violation]:
    found = [
        Violation("E33", id, f"lost attempt {event.attempt} to a graceful stop")
        for id, events in facts.events.items()
        for event in events
        if event.name == EventName.RECLAIMED
    ]
    return found + [
        Violation("E33", id, f"is {final.state} ({final.reason}) although only workers were stopped")
        for id, final in facts.finals.items()
        if final.state != State.SUCCEEDED
    ]


def _held_by_worker(facts: Facts) -> defaultdict[str, list[Held]]:
    """By the worker's name."""
    found: defaultdict[str, list[Held]] = defaultdict(list)
    for id, starts in facts.starts.items():
        ends = {event.attempt: event for event in facts.events.get(id, ()) if event.name != EventName.STARTED}
        for start in starts:
            end = ends.get(start.attempt)
            until, how = (math.inf, "never") if end is None else (facts.when(end.at), end.name)
            found[facts.names.get(start.pid, "")].append(Held(id, start.attempt, start.at, until, how))
    return found


KILLED = Experiment(
    id="E01",
    title="workers killed",
    small=Size(9_000, 45),
    full=Size(60_000, 300),
    faults=kills_every(1.0, 3.0),
    around=dying_at_awkward_points,
    recovery=2.0,
    kinds=WITH_EFFECTS,
    # As long as so many kills take.
    rate=95.0,
)

EXPERIMENTS = (
    KILLED,
    replace(
        KILLED,
        id="E01D",
        title="workers killed, with leases as they are by default",
        full=Size(20_000, 100),
        engines=("sqlite", "postgres", "http-postgres"),
        lease_seconds=30.0,
    ),
    replace(
        KILLED,
        id="E01S",
        title="servers and workers killed",
        full=Size(20_000, 100),
        faults=kills_every(1.0, 3.0, servers=True),
        bar=servers_died_too,
        around=all_dying_at_awkward_points,
        engines=("http-sqlite", "http-postgres"),
        # Whose server is dead has nobody to tell that a child has died.
        recovery=None,
    ),
    Experiment(
        id="E02",
        title="workers stopped for longer than their leases",
        small=Size(1_200, 20),
        full=Size(12_600, 300),
        faults=zombies,
        bar=zombies_were_refused,
        kinds={"chaos.ok": 4, "chaos.slow": 6, "chaos.flaky": 1, "chaos.effect": 2},
        # At any time most of the workers stand still.
        rate=12.0,
        concurrency=8,
    ),
    Experiment(
        id="E33",
        title="workers told to stop",
        small=Size(1_200, 12),
        full=Size(4_500, 50),
        faults=graceful_stops,
        bar=nothing_wasted,
        around=little_patience,
        kinds={"chaos.long": 3, "chaos.deaf": 1},
        # More than they can do, so that no slot stays empty.
        rate=30.0,
        workers=STOPPED,
        concurrency=SLOTS,
    ),
)
