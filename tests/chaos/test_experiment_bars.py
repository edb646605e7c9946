"""What experiments ask for besides the rules: for each bar a run that meets it, and runs that do not (E39 i)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.checker import Violation
from chaos.experiment import Run, Size
from chaos.experiments import handlers, memory, surroundings, workers
from chaos.facts import Call, Enqueue, EventFact, Facts, Fault, Final, Grant, Start
from chaos.stage import Stage
from ropeway.core.states import DeadReason

LEASE = 3.0
SIZE = Size(100, 1)


def run_of(size: Size = SIZE, **stage: Any) -> Run:
    """A run that is over, as a bar sees it."""
    known = {"lease_seconds": LEASE, "store": "sqlite", "members": [], **stage}
    return Run(cast(Stage, SimpleNamespace(**known)), size, lambda: False)


def told(found: list[Violation]) -> str:
    return "; ".join(map(str, found))


class Story:
    """The facts of some jobs, told one after the other. The engine's clock is the machine's."""

    def __init__(self) -> None:
        self.facts = Facts()

    def job(self, type: str, state: str = "succeeded", reason: str | None = None, *, asked: float = 0.0) -> str:
        id = f"job-{len(self.facts.finals)}"
        self.facts.finals[id] = Final(id, type, state, 1, 1, 5, 0, f"key-{id}", reason)
        self.facts.enqueues.append(Enqueue(f"key-{id}", type, asked, asked + 0.1, "ok", id))
        return id

    def attempt(self, id: str, began: float, ended: float, how: str, *, pid: int = 7, **data: Any) -> None:
        """One run of it, from its start to the event that ended it."""
        events = self.facts.events[id]
        number = 1 + len(self.facts.starts[id])
        events.append(EventFact("job.started", len(events) + 1, number, began))
        events.append(EventFact(f"job.{how}", len(events) + 1, number, ended, data))
        self.facts.grants[id].append(Grant(id, number, f"t{number}", began, began, LEASE, "w", pid))
        self.facts.starts[id].append(Start(id, number, f"t{number}", began, pid))
        if how == "completed":
            self.facts.calls[id].append(Call("ack", id, number, f"t{number}", ended, ended, "ok", "succeeded"))

    def done(self, type: str, began: float, ended: float, *, pid: int = 7) -> str:
        id = self.job(type, asked=began)
        self.attempt(id, began, ended, "completed", pid=pid)
        return id

    def dies(self, type: str, reason: DeadReason, began: float, *, cause: str, times: int = 3) -> str:
        """A job that is lost so many times, five seconds after each start."""
        id = self.job(type, "dead", reason, asked=began)
        for number in range(times):
            how = "dlq" if number == times - 1 else "reclaimed"
            self.attempt(id, began + 10 * number, began + 10 * number + 5, how, cause=cause)
        return id


# ── E01 ──


def test_where_servers_are_to_die_some_do() -> None:
    run = run_of()
    assert "the run proves nothing" in told(workers.servers_died_too(Facts(), run))
    run.notes[workers.SERVERS] = 1
    assert workers.servers_died_too(Facts(), run) == []


@pytest.mark.parametrize(("faults", "producing", "more"), [(0, True, True), (5, True, False), (0, False, False)])
async def test_no_fault_comes_after_the_load(faults: int, producing: bool, more: bool) -> None:
    chance = SimpleNamespace(uniform=lambda least, _most: least)
    run = run_of(Size(10, 5), chance=chance)
    run.faults, run.producing = faults, lambda: producing
    assert await workers.another(run, 0.0, 0.0) is more


# ── E02 ──


def paused_and_reclaimed(paused: int) -> Facts:
    """Process 7 holds a job, which is taken back; somebody stood still meanwhile. It reports, and is refused."""
    story = Story()
    id = story.job("chaos.slow")
    story.attempt(id, 1.0, 5.0, "reclaimed", cause="expired", pid=7)
    story.attempt(id, 6.0, 7.0, "completed", pid=8)
    story.facts.calls[id].append(Call("ack", id, 1, "t1", 8.0, 8.1, "ok", "lease_lost"))
    story.facts.faults = [Fault("pause", 2.0, 9.0, pid=paused)]
    return story.facts


def test_only_who_stood_still_loses_jobs() -> None:
    run = run_of()
    assert workers.zombies_were_refused(paused_and_reclaimed(paused=7), run) == []
    assert run.notes["stale calls sent"] == 1
    assert "had not stood still" in told(workers.zombies_were_refused(paused_and_reclaimed(paused=8), run_of()))


def test_a_pause_before_the_lease_is_no_reason_to_lose_it() -> None:
    facts = paused_and_reclaimed(paused=7)
    facts.faults = [Fault("pause", 0.1, 0.5, pid=7)]
    assert "had not stood still" in told(workers.zombies_were_refused(facts, run_of()))


def test_without_a_stale_call_zombies_prove_nothing() -> None:
    assert "proves nothing" in told(workers.zombies_were_refused(Facts(), run_of()))


# ── E33 ──


def stopped(*, given_back: float = 12.2, jobs: int = workers.SLOTS, how: str = "released") -> Facts:
    """A full worker is told to stop at 10 s. One job ends in time, the others are taken from it later."""
    story = Story()
    story.facts.names[7] = "worker0"
    story.facts.faults = [Fault("term", 10.0, 10.0, pid=6, worker="worker0")]
    story.done("chaos.long", 1.0, 11.0)
    for _ in range(jobs - 1):
        id = story.job("chaos.long")
        story.attempt(id, 5.0, given_back, how)
        story.attempt(id, 20.0, 30.0, "completed", pid=8)
    return story.facts


def judged_stop(facts: Facts, longest: float = 2.6) -> tuple[str, Run]:
    run = run_of()
    run.notes[workers.LONGEST] = longest
    return told(workers.nothing_wasted(facts, run)), run


def test_a_worker_gives_back_what_it_cannot_finish() -> None:
    words, run = judged_stop(stopped())
    assert words == ""
    assert run.notes["given back"] == workers.SLOTS - 1
    assert run.notes["fewest jobs of a worker told to stop"] == workers.SLOTS
    assert run.notes["last given back after the deadline, s"] == 0.2


@pytest.mark.parametrize(
    ("facts", "longest", "words"),
    [
        (lambda: stopped(given_back=13.5), 2.6, "was held until 1.50 s after the deadline"),
        (lambda: stopped(how="reclaimed"), 2.6, "to a graceful stop"),
        (stopped, 3.2, "a stop took 3.2 s"),
        (lambda: stopped(jobs=20), 2.6, "20 jobs only: the run proves nothing"),
        (lambda: stopped(jobs=1), 2.6, "nothing had to be given back: the run proves nothing"),
        (Facts, 0.0, "nothing had to be given back: the run proves nothing"),
    ],
)
def test_a_stop_that_is_late_wasteful_or_empty_is_found(
    facts: Callable[[], Facts], longest: float, words: str
) -> None:
    assert words in judged_stop(facts(), longest)[0]


def test_a_job_that_is_not_done_after_graceful_stops_is_found() -> None:
    facts = stopped()
    facts.finals["job-9"] = Final("job-9", "chaos.long", "dead", 5, 5, 5, 0, "k", "max_attempts")
    assert "job-9: is dead (max_attempts)" in judged_stop(facts)[0]


def test_a_job_that_is_never_given_back_is_found() -> None:
    facts = stopped()
    facts.events["job-5"] = facts.events["job-5"][:1]
    assert "job-5: attempt 1 was held until inf" in judged_stop(facts)[0]


# ── E12 ──


def pills(*, meanwhile: float = 40.0, before: float = 50.0) -> Story:
    """Good jobs for 10 s, and then for 20 s with two pills among them."""
    story = Story()
    for rate, begin, end in ((before, 0.0, 10.0), (meanwhile, 10.0, 30.0)):
        for number in range(int(rate * (end - begin))):
            story.done("chaos.ok", begin + number / rate, begin + number / rate)
    story.dies("chaos.kill", DeadReason.CRASH_LIMIT, 10.0, cause="crashed")
    futile = story.job("chaos.sysexit", "dead", DeadReason.MAX_ATTEMPTS, asked=11.0)
    story.attempt(futile, 11.0, 11.1, "dlq", reason="max_attempts")
    return story


def test_pills_die_three_times_and_the_others_go_on() -> None:
    run = run_of()
    assert handlers.pills_are_dead(pills().facts, run) == []
    assert (run.notes["pills"], run.notes["share of them with pills"]) == (2, 0.8)


def _twice(story: Story) -> None:
    story.dies("chaos.segfault", DeadReason.CRASH_LIMIT, 12.0, cause="crashed", times=2)


def _alive(story: Story) -> None:
    story.done("chaos.exit", 12.0, 13.0)


def _wrong_reason(story: Story) -> None:
    story.dies("chaos.hold", DeadReason.MAX_ATTEMPTS, 12.0, cause="timeout")


def _killed_by_sys_exit(story: Story) -> None:
    story.dies("chaos.sysexit", DeadReason.CRASH_LIMIT, 12.0, cause="crashed")


def _good_job_lost(story: Story) -> None:
    story.dies("chaos.ok", DeadReason.CRASH_LIMIT, 12.0, cause="crashed")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_twice, "a pill (chaos.segfault) died 2 times"),
        (_alive, "a pill (chaos.exit) is succeeded"),
        (_wrong_reason, "a pill (chaos.hold) is dead (max_attempts)"),
        (_killed_by_sys_exit, "a pill (chaos.sysexit) is dead (crash_limit)"),
        (_good_job_lost, "a good job is dead"),
    ],
)
def test_another_end_of_a_pill_or_of_a_good_job_is_found(spoil: Callable[[Story], None], words: str) -> None:
    story = pills()
    spoil(story)
    assert words in told(handlers.pills_are_dead(story.facts, run_of()))


@pytest.mark.parametrize(
    ("story", "words"),
    [
        (lambda: pills(meanwhile=20.0), "20 jobs/s with pills, 50 without"),
        (lambda: pills(before=10.0), "10 jobs/s before the first pill: the run proves nothing"),
        (Story, "no pill came while there was a load"),
    ],
)
def test_a_load_that_pills_slow_down_is_found(story: Callable[[], Story], words: str) -> None:
    assert words in told(handlers.pills_are_dead(story().facts, run_of()))


# ── E13 ──


def blocked(seconds: float = 5 * LEASE) -> Story:
    """One job of each kind that blocks, and one that does not stop."""
    story = Story()
    for kind in handlers.BLOCKERS:
        story.done(kind, 1.0, 1.0 + seconds)
    story.dies(handlers.STUCK, DeadReason.CRASH_LIMIT, 1.0, cause="timeout")
    return story


def test_who_is_busy_loses_nothing_and_who_does_not_stop_is_killed() -> None:
    run = run_of()
    assert handlers.nobody_was_robbed(blocked().facts, run) == []
    assert (run.notes[handlers.BLOCKED], run.notes["longest hold until it was killed, s"]) == (4, 5.0)


def _robbed(story: Story) -> None:
    id = story.job("chaos.ok")
    story.attempt(id, 1.0, 5.0, "reclaimed", cause="expired")


def _expired(story: Story) -> None:
    story.dies(handlers.STUCK, DeadReason.CRASH_LIMIT, 1.0, cause="expired")


def _killed_late(story: Story) -> None:
    id = story.dies(handlers.STUCK, DeadReason.CRASH_LIMIT, 1.0, cause="timeout")
    events = story.facts.events[id]
    events[-1] = EventFact(events[-1].name, events[-1].seq, events[-1].attempt, 99.0, events[-1].data)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_robbed, "was taken from a worker that was only busy"),
        (_expired, "did not stop, and is dead (crash_limit) after ['expired'"),
        (_killed_late, "until a timeout was heeded"),
    ],
)
def test_a_lost_lease_or_a_timeout_that_is_not_heeded_is_found(spoil: Callable[[Story], None], words: str) -> None:
    story = blocked()
    spoil(story)
    assert words in told(handlers.nobody_was_robbed(story.facts, run_of()))


def test_a_kind_that_did_not_block_for_long_proves_nothing() -> None:
    found = handlers.nobody_was_robbed(blocked(seconds=4 * LEASE).facts, run_of())
    assert [violation.words.split(":")[0] for violation in found] == [
        f"no {kind} held its process for 5 leases" for kind in handlers.BLOCKERS
    ]
    assert "killed for its timeout: the run proves nothing" in told(handlers.nobody_was_robbed(Facts(), run_of()))


# ── E16 ──


def herd(first: float, again: float, size: int = 100) -> Facts:
    """All of it fails within `first` seconds, and is tried again spread over `again` seconds."""
    story = Story()
    for number in range(size):
        id = story.job(surroundings.HERD)
        story.attempt(id, first * number / size, first * number / size, "failed")
        at = 20.0 + again * number / size
        story.attempt(id, at, at, "completed")
    return story.facts


def test_a_herd_that_comes_back_one_by_one_is_what_is_wanted() -> None:
    run = run_of()
    assert surroundings.herd_was_spread(herd(first=5.1, again=40.0), run) == []
    assert run.notes["largest share of the herd that failed in one second"] == 0.2
    assert run.notes["largest share of the herd in one second"] == 0.03


@pytest.mark.parametrize(
    ("first", "again", "words"),
    [(5.1, 5.1, "20.0% came back within one second"), (51.0, 51.0, "2.0% of the herd failed together")],
)
def test_a_herd_that_comes_back_at_once_or_never_was_one_is_found(first: float, again: float, words: str) -> None:
    assert words in told(surroundings.herd_was_spread(herd(first, again), run_of()))


def test_one_of_the_herd_that_does_not_succeed_is_found() -> None:
    facts = herd(5.1, 40.0)
    facts.finals["job-3"] = Final("job-3", surroundings.HERD, "dead", 5, 5, 5, 0, "k", "max_attempts")
    assert "job-3: is dead" in told(surroundings.herd_was_spread(facts, run_of()))


def test_the_busiest_second_may_begin_anywhere() -> None:
    assert surroundings.most_in_a_second([0.9, 0.95, 1.0, 1.5, 1.89, 1.9, 5.0]) == 5
    assert surroundings.most_in_a_second([]) == 0


# ── E18 ──


def full_disk(phase: str = "fail", asked: float = 11.0) -> Facts:
    facts = Facts()
    facts.faults = [Fault("disk", 10.0, 12.0)]
    facts.enqueues = [Enqueue("k", "chaos.ok", asked, asked + 0.1, phase, None)]
    return facts


def judged_disk(facts: Facts, *, sound: float | None = 1.0, starts: int = 1) -> str:
    run = run_of(members=[SimpleNamespace(name="worker0", starts=starts)])
    if sound is not None:
        run.notes[surroundings.SOUND] = sound
    return told(surroundings.refused_and_went_on(facts, run))


@pytest.mark.parametrize("phase", ["fail", "info"])
def test_a_full_disk_refuses_and_nobody_dies_of_it(phase: str) -> None:
    assert judged_disk(full_disk(phase)) == ""


def test_a_disk_that_refused_nothing_a_broken_file_and_a_dead_worker_are_found() -> None:
    assert "the run proves nothing" in judged_disk(full_disk("ok"))
    assert "the run proves nothing" in judged_disk(full_disk(asked=20.0))
    assert "finds SQLite's file broken" in judged_disk(full_disk(), sound=0.0)
    assert "finds SQLite's file broken" in judged_disk(full_disk(), sound=None)
    assert "worker0: was started 2 times" in judged_disk(full_disk(), starts=2)


# ── E19 ──

BORNE = {
    "processes ended": 0.0,
    "good requests p99, s": 0.2,
    "answers of a failed server": 0.0,
    "rude requests": 100.0,
    "of them answered": 95.0,
}


@pytest.mark.parametrize(
    ("note", "value", "words"),
    [
        ("processes ended", 1.0, "a server did not survive"),
        ("good requests p99, s", 1.4, "good requests took 1.4 s"),
        ("answers of a failed server", 2.0, "answers were 5xx"),
        ("of them answered", 20.0, "the run proves nothing"),
    ],
)
def test_a_server_bears_rude_clients(note: str, value: float, words: str) -> None:
    run = run_of()
    run.notes = dict(BORNE)
    assert memory.borne(Facts(), run) == []
    run.notes[note] = value
    assert words in told(memory.borne(Facts(), run))
