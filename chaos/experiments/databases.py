"""The store goes away and comes back: E04, E05, E24."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from bisect import bisect_left

from chaos import nemesis
from chaos.checker import Violation
from chaos.experiment import MIXED, WITH_EFFECTS, Experiment, Run, Size
from chaos.experiments.workers import kill_storm
from chaos.facts import Facts

#: Back to this share of what it was, within so many seconds of the server taking connections again.
SHARE, SECONDS = 0.9, 10.0

#: Fewer starts a second than these before an outage are no rate to come back to.
LEAST_STARTS = 20


async def crash_cycles(run: Run) -> None:
    """PostgreSQL ends at once and recovers from its log, again and again."""
    while await _next_one(run, 6.0, 9.0):
        await nemesis.crash_database(run.stage)
        run.faults += 1


async def crash_backends(run: Run) -> None:
    """One of PostgreSQL's processes is killed: it ends every session and recovers."""
    while await _next_one(run, 4.0, 7.0):
        try:
            run.faults += await nemesis.crash_backend(run.stage)
        except OSError:
            continue  # it is still coming back from the last one


async def _next_one(run: Run, least: float, most: float) -> bool:
    """Whether there is to be another fault, after a while. An outage that nobody notices is none."""
    if run.faults >= run.size.faults:
        return False
    await asyncio.sleep(run.stage.chance.uniform(least, most))
    return run.producing()


def back_in_time(facts: Facts, run: Run, most: float = math.inf) -> list[Violation]:
    """After each outage starts are as frequent as before it, soon.

    No more than `most` a second are asked for: what the outage before had held up may have made them more. An
    outage that nothing follows by which to tell is left out; there must be few of those.
    """
    starts = sorted(start.at for starts in facts.starts.values() for start in starts)
    load_ends = max((each.asked for each in facts.enqueues), default=0.0)
    found, waits = [], []
    for fault in facts.faults:
        before = min(most, sum(fault.at - 5.0 <= at < fault.at for at in starts) / 5.0)
        if before < LEAST_STARTS:
            continue
        back = _seconds_until(starts, fault.until, SHARE * before)
        if back is None and load_ends < fault.until + SECONDS + 1.0:
            continue  # the load was over first
        waits.append(load_ends - fault.until if back is None else back)
        if waits[-1] > SECONDS:
            found.append(Violation("G5", "-", f"{waits[-1]:.1f} s until 90 % of {before:.0f} starts/s were back"))
    run.notes["outages measured"] = len(waits)
    if 2 * len(waits) < max(1, len(facts.faults)):
        words = f"{len(waits)} of {len(facts.faults)} outages could be measured: the run proves nothing"
        found.append(Violation("G5", "-", words))
    if waits:
        run.notes["back to 90 %, longest, s"] = round(max(waits), 2)
    return found


def _seconds_until(starts: list[float], since: float, rate: float) -> float | None:
    """How long after it there was a second with so many starts; None: there was none before the last start."""
    if not starts:
        return None
    step = 0.0
    while since + step + 1.0 < starts[-1]:
        first, after = bisect_left(starts, since + step), bisect_left(starts, since + step + 1.0)
        if after - first >= rate:
            return step
        step += 0.25
    return None


def nobody_left(facts: Facts, run: Run) -> list[Violation]:
    """No process of ours ends because the store did."""
    return back_in_time(facts, run) + [
        Violation("E05", member.name, f"was started {member.starts} times")
        for member in run.stage.members
        if member.starts > 1
    ]


def file_is_sound(_facts: Facts, run: Run) -> list[Violation]:
    path = run.stage.direct.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        (verdict,) = connection.execute("PRAGMA integrity_check").fetchone()
    return [] if verdict == "ok" else [Violation("E24", "-", f"integrity_check says {verdict}")]


POSTGRES = ("postgres", "http-postgres")

EXPERIMENTS = (
    Experiment(
        id="E04",
        title="PostgreSQL crashes and recovers",
        small=Size(9_000, 8),
        full=Size(60_000, 50),
        faults=crash_cycles,
        bar=back_in_time,
        engines=POSTGRES,
        kinds=WITH_EFFECTS,
    ),
    Experiment(
        id="E05",
        title="a PostgreSQL process is killed",
        small=Size(8_000, 10),
        full=Size(80_000, 100),
        faults=crash_backends,
        bar=nobody_left,
        engines=POSTGRES,
        kinds=WITH_EFFECTS,
    ),
    Experiment(
        id="E24",
        title="processes killed while they write SQLite's file",
        small=Size(6_000, 60),
        full=Size(55_000, 500),
        faults=kill_storm,
        bar=file_is_sound,
        engines=("sqlite",),
        kinds=MIXED,
        # Recovery is not timed: so many deaths are more than two cores make up for. E01 does that.
    ),
)
