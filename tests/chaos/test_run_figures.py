"""What a run is summed up to, and where it is kept."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos import history
from chaos.checker import Violation
from chaos.experiment import Experiment, Run, Size
from chaos.facts import Enqueue, EventFact, Facts, Fault, Final, Start, gather
from chaos.figures import figures
from chaos.idling import idle_faults
from chaos.runner import folder_of, verdict
from chaos.served import total
from ropeway.core.states import EventName


async def nothing(_run: Run) -> None:
    """No faults."""


EXPERIMENT = Experiment(id="E00", title="none", small=Size(1, 1), full=Size(2, 2), faults=nothing)


def summed(experiment: Experiment, facts: Facts, found: list[Violation], **more: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "engine": "sqlite",
        "seed": 1,
        "size": "small",
        "seconds": 1.0,
        "faults": 3,
        "idle": 0,
        "notes": {},
        "commit": "abc",
    }
    return figures(experiment, facts, found, **(usual | more))


def test_runs_of_two_sizes_are_kept_apart() -> None:
    folders = [
        folder_of(Path("runs"), "E01", "postgres", 7, "small"),
        folder_of(Path("runs"), "E01", "postgres", 7, "full"),
        folder_of(Path("runs"), "E01", "postgres", 7, "small", 600),
    ]
    assert [folder.name for folder in folders] == [
        "E01-postgres-7-small",
        "E01-postgres-7-full",
        "E01-postgres-7-600jobs",
    ]


# ── faults on an idle system ──


def worked() -> Facts:
    """Producers from 1 to 4, with the load on from 0.5; a job that is live from 3 to 9."""
    facts = Facts(phases={"load": 0.5, "load over": 4.0})
    facts.enqueues = [
        Enqueue("k1", "chaos.ok", 1.0, 1.1, "ok", "job-1", process="producer0"),
        Enqueue("k2", "chaos.ok", 3.0, 4.0, "ok", "job-2", process="producer0"),
    ]
    facts.events["job-2"] = [
        EventFact(EventName.ENQUEUED, 1, 0, 3.5),
        EventFact(EventName.COMPLETED, 2, 1, 9.0),
    ]
    return facts


@pytest.mark.parametrize(("at", "idle"), [(0.6, 0), (2.0, 0), (8.9, 0), (0.4, 1), (9.1, 1)])
def test_a_fault_counts_while_jobs_are_asked_for_or_live(at: float, idle: int) -> None:
    facts = worked()
    facts.faults = [Fault("kill", at, at, pid=1)]
    assert idle_faults(facts) == idle


def test_a_job_that_never_ended_is_live_for_ever() -> None:
    facts = worked()
    facts.events["job-2"].pop()
    facts.faults = [Fault("kill", 1e6, 1e6, pid=1)]
    assert idle_faults(facts) == 0


def test_what_is_done_to_several_processes_is_one_fault() -> None:
    facts = worked()
    facts.faults = [Fault("kill", 10.0, 10.0, pid=pid, whole=True, act=5) for pid in (1, 2, 3)]
    facts.faults += [Fault("kill", 11.0, 11.0, pid=pid) for pid in (4, 5)]
    assert idle_faults(facts) == 3


def test_what_is_done_to_copies_afterwards_is_not_idle() -> None:
    facts = worked()
    facts.faults = [Fault("power", 10.0, 10.0)]
    assert idle_faults(facts) == 0


# ── what an experiment forgives ──


def test_what_is_forgiven_is_told_and_decides_nothing() -> None:
    found = [
        Violation("C1", "job-1", "is gone"),
        Violation("C1", "job-3", "is gone"),
        Violation("C2", "job-2", "ended twice"),
    ]
    strict = summed(EXPERIMENT, Facts(), found)
    assert (strict["lost"], strict["violations"], strict["exempted"]) == (2, 3, {})
    forgiving = replace(EXPERIMENT, forgives=lambda _facts, violation: violation.job == "job-1")
    lenient = summed(forgiving, Facts(), found)
    assert (lenient["lost"], lenient["violations"], lenient["exempted"]) == (1, 2, {"C1": 1})
    assert lenient["told"] == ["C1 job-3: is gone", "C2 job-2: ended twice"]


def test_what_was_lost_and_forgiven_leaves_no_bound() -> None:
    forgiving = replace(EXPERIMENT, forgives=lambda _facts, violation: violation.rule == "C1")
    told = summed(forgiving, Facts(), [Violation("C1", "job-1", "is gone")])
    assert (told["lost"], told["loss_per_fault_below"]) == (0, None)


def test_none_lost_in_three_faults_is_a_bound() -> None:
    assert summed(EXPERIMENT, Facts(), [])["loss_per_fault_below"] == 1.0


# ── recovery ──


def recovering(whole: bool) -> Facts:
    facts = Facts(names={1: "worker0"}, faults=[Fault("kill", 2.0, 2.0, pid=1, whole=whole)])
    facts.starts["job-1"] = [Start("job-1", 1, None, 1.0, 1), Start("job-1", 2, None, 4.5, 2)]
    return facts


def test_both_kinds_of_recovery_are_told() -> None:
    assert summed(EXPERIMENT, recovering(whole=True), [])["recovery"]["p99"] == 2.5
    assert summed(EXPERIMENT, recovering(whole=True), [])["recovery_child"] is None
    child = summed(EXPERIMENT, recovering(whole=False), [])
    assert (child["recovery"], child["recovery_child"]["max"]) == (None, 2.5)


def late(experiment: Experiment, facts: Facts) -> list[str]:
    run: Any = None  # a bar that looks at nothing has no use for it
    return [violation.words for violation in verdict(experiment, facts, run) if violation.rule == "C14"]


def test_who_asks_for_recovery_has_to_measure_both() -> None:
    asking = replace(EXPERIMENT, recovery=2.0)
    assert late(EXPERIMENT, recovering(whole=True)) == []
    # 2.5 s are within the lease and two seconds, and too much for a child.
    (of_children,) = late(asking, recovering(whole=True))
    assert "child under its supervisor: the run proves nothing" in of_children
    of_workers, of_children = late(asking, recovering(whole=False))
    assert "whole worker: the run proves nothing" in of_workers
    assert "p99 2.50 s is over 2 s" in of_children


# ── what else is told ──


def test_succeeded_jobs_with_effects_are_counted() -> None:
    facts = Facts()
    for id, type, state in (
        ("1", "chaos.effect", "succeeded"),
        ("2", "chaos.effect", "dead"),
        ("3", "x", "succeeded"),
    ):
        facts.finals[id] = Final(id, type, state, 1, 1, 5, 0)
    assert summed(EXPERIMENT, facts, [])["effects"] == 1


def test_events_that_are_missing_or_out_of_order_are_counted() -> None:
    facts = Facts()
    facts.events["job-1"] = [EventFact("job.started", seq, 1, at) for seq, at in ((1, 1.0), (2, 3.0), (4, 2.0))]
    facts.seen = [("job-1", 2), ("job-1", 4)]
    told = summed(EXPERIMENT, facts, [])
    # The log has no 3 and its 4 is too old; the follower has no 1, and got 2 and 4 without those before them.
    assert (told["events_lost"], told["events_disordered"]) == (2, 3)


# ── lines ──


def test_a_pill_tells_of_its_own_death(tmp_path: Path) -> None:
    recorder = history.Recorder(tmp_path, "worker0", clock=lambda: 5.0)
    history.dying(recorder, job="job-1", attempt=2)
    history.dying(recorder, job="job-1", attempt=2, within=10.0)
    recorder.close()
    facts = gather(history.read(tmp_path), {"jobs": [], "events": []})
    mine = os.getpid()
    assert facts.faults == [Fault("pill", 5.0, 5.0, pid=mine), Fault("pill", 5.0, 15.0, pid=mine)]


def test_lines_say_who_beats_and_whose_question_for_leases_was_lost() -> None:
    def line(op: str, phase: str, n: int, **facts: object) -> dict[str, Any]:
        return {"t": float(n), "process": "worker0", "pid": 7, "op": op, "phase": phase, "n": n, **facts}

    asked = {"owner": "w1", "worker": "worker0", "lease_seconds": 3.0}
    lines = [
        line("heartbeat_owner", "invoke", 1, owner="w1"),
        line("heartbeat_owner", "info", 1),
        line("lease", "invoke", 2, **asked),
        line("lease", "fail", 2),
        line("lease", "invoke", 3, **asked),
        line("lease", "info", 3),
    ]
    facts = gather(lines, {"jobs": [], "events": []})
    assert facts.beaters == {"w1": {7}}
    assert facts.names == {7: "worker0"}
    # The second was refused: nothing was given out.
    assert [(lost.asked, lost.pid) for lost in facts.lost_leases] == [(3.0, 7)]


def test_a_counter_is_summed_over_its_labels() -> None:
    page = (
        "# HELP ropeway_jobs_enqueued_total Jobs that were stored.\n"
        'ropeway_jobs_enqueued_total{queue="default",type="a"} 3.0\n'
        'ropeway_jobs_enqueued_total{queue="default",type="b"} 4.0\n'
        "ropeway_jobs_enqueued_totally 9.0\n"
    )
    assert total(page, "ropeway_jobs_enqueued_total") == 7
    assert total(page, "ropeway_jobs_deduplicated_total") == 0
