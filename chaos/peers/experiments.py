"""The faults: E01, E02, E12, E13 and a result with a NUL, each on one peer with one of its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bench.peers.failing import PeerFailed
from chaos.peers import ledger
from chaos.peers.ledger import Kill
from chaos.peers.settings import BLOCK_SECONDS, Settings
from chaos.peers.stand import Stand, Step
from chaos.peers.workers import Busy, freeze, thaw


@dataclass
class Found:
    """What an experiment has to tell beside the ledger. `jobs` are those that had to be done."""

    jobs: Sequence[int]
    faults: int = 0
    kills: Sequence[Kill] = ()
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """`script` is what its jobs do, by index; `unfit` says why it would show nothing with these settings."""

    id: str
    title: str
    script: Callable[[Settings], Sequence[Step]]
    play: Callable[[Stand, Settings, float], Found]
    unfit: Callable[[Settings], str | None] = lambda _settings: None


#: Every script begins with the job that shows that a worker is there.
_FIRST = Step()

# ── E01: kill -9 ──

#: Of each kind.
KILLS = 6
KILLED_JOBS = range(1, 46)
#: Two workers with one slot each keep up while they live.
KILLED_RATE = 1.0
#: Long enough that whoever is found at a job is killed in the middle of it.
_KILLED_STEP = Step(seconds=1.2, again=0.1)
#: Between the kinds: what comes back at once is back, and is not hit by the other kind.
BETWEEN_SECONDS = 5.0


def _kill_script(_settings: Settings) -> Sequence[Step]:
    return [_FIRST, *(_KILLED_STEP for _ in KILLED_JOBS)]


def _kill_storm(stand: Stand, _settings: Settings, limit: float) -> Found:
    """Every two seconds whoever runs a job dies: its process alone at first, then the worker with all it has.

    Nobody is killed at a job that was hit before: most give up one that dies again and again, which is E12.
    """
    stand.pace(KILLED_JOBS, per_second=KILLED_RATE)
    kills = _kills(stand, Random(1), whole=False, hit=set())
    stand.pause(BETWEEN_SECONDS)
    hit = {run.job for kill in kills for run in ledger.interrupted(stand.counted(), kill)}
    kills += _kills(stand, Random(2), whole=True, hit=hit)
    ended = stand.drain(KILLED_JOBS, limit)
    return Found(KILLED_JOBS, faults=len(kills), kills=kills, notes={"ended": ended})


def _kills(stand: Stand, chance: Random, *, whole: bool, hit: set[int]) -> list[Kill]:
    """Kills of one kind; `hit` are the jobs that were at work when somebody died."""
    kills: list[Kill] = []

    def victims() -> list[Busy]:
        return [busy for busy in stand.workers.busy(stand.counted()) if not busy.jobs & hit]

    while len(kills) < KILLS:
        stand.pause(chance.uniform(1.5, 2.5))
        if not (found := stand.until(victims, 10.0)):
            break
        victim = chance.choice(found)
        kills.append(stand.workers.kill(victim, whole=whole))
        hit |= victim.jobs
    return kills


# ── E02: frozen for longer than anybody waits, and back ──

PAUSES = range(1, 3)
#: What the second run takes: long enough that the first one ends in the middle of it.
SECOND_RUN_SECONDS = 10.0
_PAUSED_STEP = Step(seconds=2.0, again=SECOND_RUN_SECONDS)


def _freeze_script(_settings: Settings) -> Sequence[Step]:
    return [_FIRST, *(_PAUSED_STEP for _ in PAUSES)]


def _freezes(stand: Stand, _settings: Settings, limit: float) -> Found:
    """A worker stops in the middle of a job until another has taken the job over; then it goes on and reports."""
    taken, counted, late, asked = list[float](), 0, 0, list[int]()
    for job in PAUSES:
        asked.append(job)
        seconds, was_late, was_counted = _one_freeze(stand, job, limit)
        late += was_late
        if seconds is None:
            break  # it would not be taken over the next time either
        taken.append(round(seconds, 2))
        counted += was_counted
    ended = stand.drain(asked, limit)
    notes = {"taken_over_after": taken, "late_effects": late, "late_counted": counted, "ended": ended}
    return Found(asked, faults=len(asked), notes=notes)


def _one_freeze(stand: Stand, job: int, limit: float) -> tuple[float | None, bool, bool]:
    """The seconds until the job ran elsewhere, whether the frozen run ended too, and whether that counted."""

    def runs() -> list[ledger.Handled]:
        return [run for run in stand.counted() if run.job == job]

    stand.enqueue(job)
    if not (started := stand.until(runs, 30.0)):
        raise PeerFailed(f"job {job} did not start within 30 s")
    zombie = started[0]
    holders = [busy for busy in stand.workers.busy([zombie]) if busy.pid == zombie.pid]
    if not holders:
        raise PeerFailed(f"job {job} could not be stopped while it ran")
    pids = freeze(holders[0].work)
    try:
        taken_over = stand.until(lambda: len(runs()) > 1, limit, ticking=True)
        if taken_over:
            stand.pause(1.0)  # ticks that are on their way get done
        before = stand.tally()
    finally:
        thaw(pids)

    def first_ended() -> bool:
        return any(run.run == zombie.run and run.effect is not None for run in runs())

    late = stand.until(first_ended, 5.0)
    if not taken_over:
        return None, late, False
    stand.pause(1.5)
    # Whoever took the job over is still at it. If the store has one more job as done nevertheless, the late word
    # counted.
    counted = stand.tally().more_done_than(before)
    second = runs()[1]
    stand.until(lambda: any(run.run == second.run and run.effect is not None for run in runs()), 30.0)
    return second.started - zombie.started, late, second.effect is None and counted


# ── E12: jobs that kill whoever runs them ──

GOOD = range(1, 31)
PILLS = range(31, 34)
_PILLS = (Step("kill"), Step("exit"), Step("kill"))


def _pill_script(_settings: Settings) -> Sequence[Step]:
    return [_FIRST, *(Step(seconds=0.1, again=0.1) for _ in GOOD), *_PILLS]


def _pills(stand: Stand, _settings: Settings, limit: float) -> Found:
    """Three pills among thirty good jobs."""
    third = len(GOOD) // len(PILLS)
    mixed = [job for place, pill in enumerate(PILLS) for job in (*GOOD[place * third : (place + 1) * third], pill)]
    stand.pace(mixed, per_second=4.0)
    ended = stand.drain(GOOD, limit)
    died = ledger.starts(stand.counted())
    return Found(
        GOOD, faults=len(PILLS), notes={"deaths_per_pill": [died[pill] for pill in PILLS], "ended": ended}
    )


# ── E13: jobs that let nobody else do anything ──

BLOCKERS = range(1, 3)
#: Nobody is blocked for longer: where a worker may be silent for longer still, the experiment would show nothing.
LONGEST_BLOCK_SECONDS = 100.0


def block_seconds(settings: Settings) -> float:
    """Five leases of the safest settings, or half again as long as a worker that beats may be silent."""
    if settings.silence is None or not settings.renewed:
        return BLOCK_SECONDS
    return max(BLOCK_SECONDS, 1.5 * settings.silence)


def _cannot_block(settings: Settings) -> str | None:
    if block_seconds(settings) <= LONGEST_BLOCK_SECONDS:
        return None
    return f"a worker may be silent for {settings.silence:g} s, longer than a run blocks"


def _block_script(settings: Settings) -> Sequence[Step]:
    seconds = block_seconds(settings)
    return [_FIRST, Step("block", seconds, again=0.1), Step("hold", seconds, again=0.1)]


def _blockers(stand: Stand, settings: Settings, limit: float) -> Found:
    """One job sleeps on the event loop, another holds the interpreter. Each is alone with two workers."""
    seconds, ended = block_seconds(settings), True
    for job in BLOCKERS:
        stand.enqueue(job)
        stand.until_done(job, seconds + 30.0, ticking=True)
        ended = stand.drain([job], limit) and ended
        stand.until_still(job, seconds)  # whoever was robbed goes on, and does it once more
    return Found(BLOCKERS, faults=len(BLOCKERS), notes={"blocked_seconds": seconds, "ended": ended})


# ── a result with a NUL ──

NUL = 1
AFTER = range(2, 5)
#: A result is written at once or not at all; what is tried again and again is seen within this.
NUL_SECONDS = 30.0


def _nul_script(_settings: Settings) -> Sequence[Step]:
    return [_FIRST, Step("nul"), *(Step() for _ in AFTER)]


def _nul(stand: Stand, _settings: Settings, limit: float) -> Found:
    """A handler returns text with a NUL. Does its job end, and do those after it run?"""
    before = stand.finished()
    stand.enqueue(NUL)
    stand.until_done(NUL, NUL_SECONDS)
    for job in AFTER:
        stand.enqueue(job)
    jobs = [NUL, *AFTER]
    ended = stand.drain(jobs, min(limit, NUL_SECONDS))
    after = stand.finished()
    # Ticks succeed too: all but what this experiment is about is taken off.
    others = len(AFTER) + stand.ticks_done()
    succeeded = None if before is None or after is None else after - before - others > 0
    return Found(jobs, faults=1, notes={"ended": ended, "succeeded": succeeded})


EXPERIMENTS: Mapping[str, Experiment] = {
    each.id: each
    for each in (
        Experiment("E01", "workers killed", _kill_script, _kill_storm),
        Experiment("E02", "workers stopped until others took over", _freeze_script, _freezes),
        Experiment("E12", "poison pills", _pill_script, _pills),
        Experiment("E13", "handlers that block", _block_script, _blockers, _cannot_block),
        Experiment("NUL", "a result with a NUL", _nul_script, _nul),
    )
}
