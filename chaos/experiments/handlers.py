"""Handlers that kill their process or hold it: E12, E13."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress

from chaos.checker import Violation
from chaos.experiment import Experiment, Run, Size
from chaos.facts import EventFact, Facts, Final
from chaos.memory_groups import NoMemoryGroups, memory_group
from chaos.producing import new_job
from chaos.stage import Stage
from chaos.tasks import HOLD_TIMEOUT, LITTLE_MEMORY
from ropeway.core.query import JobFilter
from ropeway.core.states import LIVE_STATES, DeadReason, EventName, State, Verb
from ropeway.worker.runner import HARD_GRACE

# ── E12: jobs that kill whoever runs them ──

#: This one takes memory, as much as there is.
HOG = "chaos.hog"
#: This one is killed for its timeout.
STUCK = "chaos.hold"
DEADLY = ("chaos.kill", "chaos.exit", "chaos.segfault", STUCK, HOG)
#: These want to end their process, and only fail.
FUTILE = ("chaos.sysexit", "chaos.recursion")
PILLS = (*DEADLY, *FUTILE)

#: The memory that one which takes it can have.
PILL_MIB = 128
#: Seconds of the load alone, and after that a pill so often.
BASELINE_SECONDS, PILL_EVERY = 10.0, 1.0
#: The first moments of the load are left out: by and by every slot has a job.
MEASURED_SECONDS = 8.0
#: Of what is done without pills at least this share is done meanwhile.
THROUGHPUT = 0.5
#: Fewer good jobs a second than these are nothing to compare with.
LEAST_RATE = 20.0


@asynccontextmanager
async def little_memory_for_pills(stage: Stage) -> AsyncIterator[bool]:
    """Where memory can be limited: True, and pills find it."""
    with ExitStack() as stack:
        with suppress(NoMemoryGroups):
            stage.worker_env[LITTLE_MEMORY] = str(stack.enter_context(memory_group("pills", PILL_MIB)).door)
        yield LITTLE_MEMORY in stage.worker_env


async def pills(run: Run) -> None:
    """After a while some jobs of the load kill whoever runs them."""
    engine = await run.stage.recorded()
    kinds = [kind for kind in PILLS if kind != HOG or run.given]
    run.notes["kinds of pills"] = len(kinds)
    await asyncio.sleep(BASELINE_SECONDS)
    for index in range(run.size.faults):
        await engine.enqueue([new_job(kinds[index % len(kinds)], f"pill-{index}")])
        run.faults += 1
        await asyncio.sleep(PILL_EVERY)


def pills_are_dead(facts: Facts, run: Run) -> list[Violation]:
    """Every pill is dead for the right reason, everything else has succeeded, and not much slower."""
    found = [Violation("E12", id, words) for id, final in facts.finals.items() if (words := _fate(facts, final))]
    run.notes["pills"] = sum(final.type in PILLS for final in facts.finals.values())
    return found + _kept_up(facts, run)


def _fate(facts: Facts, final: Final) -> str:
    """What is wrong with how a job ended; nothing if it is right."""
    if final.type not in PILLS:
        return "" if final.state == State.SUCCEEDED else f"a good job is {final.state} ({final.reason})"
    reason = DeadReason.MAX_ATTEMPTS if final.type in FUTILE else DeadReason.CRASH_LIMIT
    if final.state != State.DEAD or final.reason != reason:
        return f"a pill ({final.type}) is {final.state} ({final.reason})"
    # One that ran apart, or had not started, when its worker died of another pill is given back instead.
    deaths = sum("cause" in event.data for event in facts.events[final.id])
    if final.type in DEADLY and deaths != facts.crash_limit:
        return f"a pill ({final.type}) died {deaths} times"
    return ""


def _kept_up(facts: Facts, run: Run) -> list[Violation]:
    """Good jobs done per second, from the first pill to the end of the load, against those before it."""
    begin = min((each.asked for each in facts.enqueues if each.type in PILLS), default=None)
    end = max((each.asked for each in facts.enqueues if each.type not in PILLS), default=None)
    if begin is None or end is None or end <= begin:
        return [Violation("E12", "-", "no pill came while there was a load: the run proves nothing")]
    done = sorted(
        facts.when(event.at)
        for id, events in facts.events.items()
        if id in facts.finals and facts.finals[id].type not in PILLS
        for event in events
        if event.name == EventName.COMPLETED
    )
    before, meanwhile = _rate(done, begin - MEASURED_SECONDS, begin), _rate(done, begin, end)
    if before < LEAST_RATE:
        return [Violation("E12", "-", f"{before:.0f} jobs/s before the first pill: the run proves nothing")]
    run.notes["jobs/s without pills"] = round(before, 1)
    run.notes["share of them with pills"] = share = round(meanwhile / before, 2)
    if share < THROUGHPUT:
        return [Violation("E12", "-", f"{meanwhile:.0f} jobs/s with pills, {before:.0f} without")]
    return []


def _rate(times: list[float], begin: float, end: float) -> float:
    return (bisect_left(times, end) - bisect_left(times, begin)) / (end - begin)


# ── E13: jobs that hold the loop or the interpreter ──

BLOCKERS = ("chaos.block", "chaos.spin", "chaos.bigint", "chaos.regex")
#: They hold it for so many leases.
LEASES = 5
#: After so many of them comes one that its timeout has to end.
STUCK_EVERY = 10
#: Seconds that such a one may hold its process beyond that.
STUCK_SLACK = 3.0
#: Seconds that the last ones have to end in, when they wait for one another and for the machine.
PATIENCE = 900.0

BLOCKED = "blocked for five leases"


async def blockers(run: Run) -> None:
    """Jobs hold the event loop, or the interpreter, for five times as long as a lease lasts; some do not stop."""
    stage = run.stage
    engine = await stage.recorded()
    seconds = LEASES * stage.lease_seconds
    # A little less often than they are done with.
    pause = 1.25 * seconds / len(stage.named("worker"))
    for index in range(run.size.faults):
        kind = BLOCKERS[index % len(BLOCKERS)]
        await engine.enqueue([new_job(kind, f"blocker-{index}", {"seconds": seconds})])
        if index % STUCK_EVERY == 0:
            await engine.enqueue([new_job(STUCK, f"stuck-{index}")])
        run.faults += 1
        await asyncio.sleep(pause)
    await stage.until(lambda: _none_left(stage), "everything that blocks has ended", within=PATIENCE)


async def _none_left(stage: Stage) -> bool:
    engine = await stage.engine()
    filters = [JobFilter(type=kind, states=LIVE_STATES) for kind in (*BLOCKERS, STUCK)]
    return not any([(await engine.count(each, cap=1)).number for each in filters])


def nobody_was_robbed(facts: Facts, run: Run) -> list[Violation]:
    """No lease is lost: somebody beats for whoever cannot. What does not stop is killed for its timeout."""
    held = Counter(
        final.type
        for id, final in facts.finals.items()
        if final.type in BLOCKERS and _seconds_held(facts, id) >= LEASES * run.stage.lease_seconds
    )
    run.notes[BLOCKED] = held.total()
    found = [
        Violation("E13", "-", f"no {kind} held its process for {LEASES} leases: the run proves nothing")
        for kind in BLOCKERS
        if not held[kind]
    ]
    found += [
        Violation("E13", id, f"attempt {event.attempt} was taken from a worker that was only busy")
        for id, events in facts.events.items()
        for event in events
        if "cause" in event.data and (id not in facts.finals or facts.finals[id].type != STUCK)
    ]
    return found + _timeouts_worked(facts, run)


def _seconds_held(facts: Facts, id: str) -> float:
    """From a job's first start to when its success was reported; 0: it was not."""
    began = min((start.at for start in facts.starts.get(id, ())), default=0.0)
    acked = [call.asked for call in facts.calls.get(id, ()) if call.verb == Verb.ACK and call.accepted]
    return min(acked) - began if acked else 0.0


def _timeouts_worked(facts: Facts, run: Run) -> list[Violation]:
    """A job that holds its process beyond its timeout is killed for it each time, and in the end dead."""
    found, waits = [], []
    for id, final in facts.finals.items():
        if final.type != STUCK:
            continue
        taken = [event for event in facts.events[id] if "cause" in event.data]
        causes = [event.data["cause"] for event in taken]
        if final.reason != DeadReason.CRASH_LIMIT or causes != ["timeout"] * facts.crash_limit:
            found.append(
                Violation("E13", id, f"did not stop, and is {final.state} ({final.reason}) after {causes}")
            )
        waits += [_seconds_until_killed(facts, id, event) for event in taken]
    if not waits:
        return [*found, Violation("E13", "-", "nothing had to be killed for its timeout: the run proves nothing")]
    run.notes["longest hold until it was killed, s"] = round(max(waits), 2)
    most = HOLD_TIMEOUT + HARD_GRACE + STUCK_SLACK
    if max(waits) > most:
        found.append(Violation("E13", "-", f"{max(waits):.1f} s until a timeout was heeded, more than {most:g} s"))
    return found


def _seconds_until_killed(facts: Facts, id: str, taken: EventFact) -> float:
    starts = [start.at for start in facts.starts.get(id, ()) if start.attempt == taken.attempt]
    return facts.when(taken.at) - min(starts) if starts else 0.0


EXPERIMENTS = (
    Experiment(
        id="E12",
        title="poison pills",
        small=Size(3_200, 20),
        full=Size(3_200, 20),
        faults=pills,
        bar=pills_are_dead,
        around=little_memory_for_pills,
        kinds={"chaos.ok": 8, "chaos.slow": 1, "chaos.plain": 2},
        rate=100.0,
    ),
    Experiment(
        id="E13",
        title="handlers that block",
        small=Size(80, 12),
        full=Size(1_250, 200),
        faults=blockers,
        bar=nobody_was_robbed,
        kinds={"chaos.ok": 1},
        # As long as it takes until all blockers have been asked for.
        rate=2.0,
        workers=6,
        # Only one job knows then why its process was killed.
        concurrency=1,
    ),
)
