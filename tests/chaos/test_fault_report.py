"""The report and the bars from hand-made figures, and the command that makes the figures."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from chaos import modelled, mutants_told, report, simulated
from chaos.bars import Kept, judged
from chaos.bars_verdict import Judged, Verdict
from chaos.checker import RULES, Violation
from chaos.command import main
from chaos.experiments import EXPERIMENTS
from chaos.peers import results as peers_results
from chaos.peers.experiments import EXPERIMENTS as PEER_EXPERIMENTS
from chaos.peers.results import Cell
from chaos.peers.settings import CONTENDERS, KINDS
from chaos.simulation import Simulated, simulate
from chaos.stage import ROOT, RunBroken
from ropeway.testing.model import Broken

Figures = dict[str, Any]


def _waited(p99: float, lease: float = 3.0) -> Figures:
    return {"jobs": 12, "p50": 0.6, "p99": p99, "max": p99 + 0.3, "lease_seconds": lease}


def _figures(**more: Any) -> Figures:
    usual: Figures = {
        "experiment": "E01",
        "title": "workers killed",
        "engine": "http-sqlite",
        "seed": 7,
        "size": "full",
        "commit": "0123456789ab",
        "seconds": 61.5,
        "accepted": 100_000,
        "executions": 100_012,
        "faults": 300,
        "faults_idle": 4,
        "harmful": True,
        "lost": 0,
        "unexpected": 0,
        "duplicates_explained": 12,
        "duplicates_unexplained": 0,
        "stale_calls_sent": 5,
        "stale_calls_accepted": 0,
        "events": 4_000,
        "events_lost": 0,
        "events_disordered": 0,
        "effects": 0,
        "recovery": _waited(4.1),
        "recovery_child": _waited(0.9),
        "undecided": 0,
        "notes": {},
        "violations": 0,
        "rules_broken": {},
        "exempted": {},
        "told": [],
    }
    return usual | more


def _broken(rule: str, number: int = 1, **more: Any) -> Figures:
    words = [f"{rule} job-{index}: is not as it should be" for index in range(number)]
    return _figures(violations=number, rules_broken={rule: number}, told=words, **more)


def _not_run(**more: Any) -> Figures:
    told = {
        name: _figures()[name] for name in ("experiment", "title", "engine", "seed", "size", "commit", "seconds")
    }
    return told | {"not_run": "a tool\nis missing"} | more


# ── bars ──


def _bar(name: str, kept: Kept) -> Judged:
    (found,) = [each for each in judged(kept) if each.bar.startswith(name)]
    return found


def _of(name: str, *runs: Figures) -> tuple[Verdict, str]:
    found = _bar(name, Kept(runs=runs))
    return found.verdict, found.measured


def test_without_a_run_nothing_is_met_and_nothing_is_missed() -> None:
    assert {each.verdict for each in judged(Kept())} == {Verdict.NOT_RUN}


def test_no_two_bars_have_the_same_name() -> None:
    names = [each.bar for each in judged(Kept())]
    assert len(set(names)) == len(names)


#: A bar that is met by two runs as they usually are, and what would have to be different for it not to be.
@pytest.mark.parametrize(
    ("bar", "other", "measured"),
    [
        ("sqlite: jobs accepted", {"accepted": 99_999}, "199,999, of them 199,999 in E01"),
        ("sqlite: jobs accepted", {"harmful": False}, "100,000, of them 100,000 in E01"),
        ("sqlite: harmful faults", {"faults": 299, "experiment": "E24"}, "599, of them 300 in E01"),
        ("sqlite: harmful faults", {"harmful": False}, "300, of them 300 in E01"),
        ("sqlite: harmful faults", {"engine": "http-memory"}, "300, of them 300 in E01"),
        ("sqlite: accepted jobs lost", {"lost": 1}, "1 of 200,000"),
        ("sqlite: jobs that nobody asked for", {"unexpected": 2}, "2"),
        ("sqlite: stale calls accepted", {"stale_calls_accepted": 1}, "1 of 10"),
        ("sqlite: second executions without", {"duplicates_unexplained": 3}, "3; 24 with one"),
        ("events missing", {"events_lost": 2}, "2 and 0 of 8,000"),
        ("events missing", {"events_disordered": 1}, "0 and 1 of 8,000"),
        ("events missing", {"rules_broken": {"C11": 1}}, "0 and 0 of 8,000"),
        ("rules and bars", {"violations": 4}, "4 in 1 of 2 runs"),
    ],
)
def test_a_bar_of_the_sums_is_met_and_is_not(bar: str, other: Figures, measured: str) -> None:
    assert _of(bar, _figures(), _figures(engine="sqlite", seed=8))[0] is Verdict.MET
    assert _of(bar, _figures(), _figures(engine="sqlite", seed=8) | other) == (Verdict.NOT_MET, measured)


def test_a_store_is_not_judged_by_another() -> None:
    assert _of("postgres: accepted jobs lost", _figures(lost=1))[0] is Verdict.NOT_RUN


def test_no_stale_call_proves_nothing() -> None:
    assert _of("sqlite: stale calls accepted", _figures(stale_calls_sent=0)) == (Verdict.NOT_MET, "0 of 0")


def test_enough_zombies_are_wanted() -> None:
    name = "sqlite: workers stopped for longer"
    assert _of(name, _figures())[0] is Verdict.NOT_RUN
    assert _of(name, _figures(experiment="E02"))[0] is Verdict.MET
    assert _of(name, _figures(experiment="E02", faults=299)) == (Verdict.NOT_MET, "299, of them 299 in E02")


def test_a_loss_that_is_to_be_published_is_not_summed_up_with_the_others() -> None:
    asynchronous = _figures(experiment="E06A", engine="postgres", lost=7)
    assert _of("postgres: accepted jobs lost", asynchronous)[0] is Verdict.NOT_RUN
    synchronous = _figures(engine="postgres")
    assert _of("postgres: accepted jobs lost", synchronous, asynchronous) == (Verdict.MET, "0 of 100,000")


def test_recovery_is_judged_by_the_lease_and_the_worst_run_is_told() -> None:
    name = "sqlite: recovery of a killed worker, p99"
    slow = _figures(experiment="E01D", engine="sqlite", recovery=_waited(5.01))
    found = [each for each in judged(Kept(runs=[_figures(), slow])) if each.bar == name]
    assert found == [
        Judged(
            name,
            "lease + 2 s",
            "5.01 s with a lease of 3 s (E01D on sqlite, seed 7); 24 jobs in all",
            Verdict.NOT_MET,
        )
    ]
    found = [
        each for each in judged(Kept(runs=[_figures(), slow | {"recovery": _waited(5.0)}])) if each.bar == name
    ]
    assert [each.verdict for each in found] == [Verdict.MET]


def test_recovery_of_zombies_is_not_that_of_killed_workers() -> None:
    name = "sqlite: recovery of a killed child"
    assert _of(name, _figures(experiment="E02", recovery_child=_waited(9.0)))[0] is Verdict.NOT_RUN


def test_recovery_with_the_default_lease_is_a_bar_of_its_own() -> None:
    name = "sqlite: recovery of a killed worker, p99, with the default lease"
    assert _of(name, _figures())[0] is Verdict.NOT_RUN
    assert _of(name, _figures(recovery=_waited(31.9, lease=30.0)))[0] is Verdict.MET
    assert _of(name, _figures(recovery=_waited(32.1, lease=30.0)))[0] is Verdict.NOT_MET


@pytest.mark.parametrize(
    ("waited", "verdict"),
    [(_waited(2.0), Verdict.MET), (_waited(2.01), Verdict.NOT_MET), (None, Verdict.NOT_MET)],
)
def test_a_child_has_no_lease_to_wait_for(waited: Figures | None, verdict: Verdict) -> None:
    assert _of("sqlite: recovery of a killed child", _figures(recovery_child=waited))[0] is verdict


def test_a_killed_worker_whose_recovery_nobody_measured_proves_nothing() -> None:
    told = _of("sqlite: recovery of a killed child", _figures(recovery_child=None))
    assert told == (Verdict.NOT_MET, "nothing was measured")


def test_effects_are_judged_where_there_were_some() -> None:
    name = "transactional effects"
    usual = _figures(engine="postgres", effects=500, faults=1_000)
    assert _of(name, _figures(engine="postgres", faults=1_000))[0] is Verdict.NOT_RUN
    assert _of(name, usual) == (Verdict.MET, "0 of 500 through 1,000 faults")
    assert _of(name, usual | {"faults": 999})[0] is Verdict.NOT_MET
    assert _of(name, usual | {"rules_broken": {"C9": 1}})[0] is Verdict.NOT_MET


def _stops(*, longest: float = 2.9, last: float = 0.8, given_back: float = 90) -> Figures:
    return {
        "longest stop, s": longest,
        "last given back after the deadline, s": last,
        "given back": given_back,
    }


#: The experiments' own bars: a run that meets each, and others that do not.
OWN: Sequence[tuple[str, Figures, Sequence[Figures]]] = [
    (
        "the database restarts",
        _figures(experiment="E05", notes={"outages measured": 8, "back to 90 %, longest, s": 10.0}),
        [
            {"notes": {"outages measured": 8, "back to 90 %, longest, s": 10.25}},
            {"notes": {"outages measured": 0}},
        ],
    ),
    ("a synchronous standby", _figures(experiment="E06", engine="postgres", faults=20), [{"faults": 19}]),
    (
        "a standby takes over",
        _figures(experiment="E06A", faults=10, notes={"accepted and lost": 5}),
        [{"faults": 9}, {"notes": {"accepted and lost": 0}}],
    ),
    ("poison pills", _figures(experiment="E12", notes={"pills": 20}), [{"notes": {"pills": 0}}, {"notes": {}}]),
    (
        "blocked loops",
        _figures(experiment="E13", notes={"blocked for five leases": 12}),
        [{"notes": {"blocked for five leases": 0}}, {"notes": {}}],
    ),
    ("clocks ±10 min", _figures(experiment="E14"), [{"faults": 0}]),
    (
        "the database's clock",
        _figures(experiment="E15", notes={"steps forward": 3, "steps back": 2}),
        [{"faults": 0}, {"notes": {"steps forward": 3, "steps back": 0}}],
    ),
    (
        "workers told to stop",
        _figures(experiment="E33", notes=_stops()),
        [
            {"faults": 0},
            {"notes": _stops(longest=3.1)},
            {"notes": _stops(last=1.01)},
            {"notes": _stops(given_back=0)},
            {"notes": {}},
        ],
    ),
    (
        "secrets",
        _figures(experiment="E35", notes={"canaries": 22, "hits": 0}),
        [
            {"notes": {"canaries": 22, "hits": 1}},
            {"notes": {"canaries": 0, "hits": 0}},
            {"notes": {"canaries": 22}},
        ],
    ),
]


@pytest.mark.parametrize(("bar", "good", "others"), OWN, ids=[name for name, *_ in OWN])
def test_an_experiment_meets_its_own_bar_and_does_not(bar: str, good: Figures, others: Sequence[Figures]) -> None:
    assert _of(bar, good)[0] is Verdict.MET
    for other in ({"violations": 1}, *others):
        assert _of(bar, good | other)[0] is Verdict.NOT_MET


def test_one_run_that_measured_nothing_is_not_covered_by_another() -> None:
    notes = {"outages measured": 8, "back to 90 %, longest, s": 3.5}
    measured = _figures(experiment="E04", engine="postgres", notes=notes)
    silent = _figures(experiment="E05", engine="postgres", seed=9)
    verdict, told = _of("the database restarts", measured, silent)
    assert verdict is Verdict.NOT_MET
    assert "600 crashes; runs: 2; violations: 0; not measured in E05 on postgres, seed 9" in told
    assert "back to 90 %, longest, s: 3.5" in told


# ── bars of what is beside the runs ──


def _mutants(
    number: int = 20, *, seeds: int = 100, caught: int = 100, clean: int = 1_000, alarms: int = 0
) -> Figures:
    found = {"seeds": seeds, "caught": caught, "rules": {"C5": caught}, "first": None, "missed": []}
    return {
        "engine": "sqlite",
        "commit": "abc",
        "seconds": 12.3,
        "mutants": [{"mutant": f"Broken{index}", **found} for index in range(number)],
        "clean": {"seeds": clean, "alarms": [{"seed": 7, "rule": "C1", "words": "C1 x: is gone"}] * alarms},
    }


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        (_mutants(), Verdict.MET),
        (_mutants(caught=95), Verdict.MET),
        (_mutants(caught=94), Verdict.NOT_MET),
        (_mutants(number=19), Verdict.NOT_MET),
        (_mutants(seeds=20, caught=20), Verdict.NOT_MET),
        (_mutants(clean=100), Verdict.NOT_MET),
        (_mutants(alarms=1), Verdict.NOT_MET),
        (_mutants(number=0), Verdict.NOT_RUN),
    ],
)
def test_mutants_are_judged_by_what_was_found_and_by_how_many_looked(figures: Figures, verdict: Verdict) -> None:
    kept = Kept(mutants={"sqlite": figures})
    assert _bar("sqlite: engines that are broken", kept).verdict is verdict
    assert _bar("postgres: engines that are broken", kept).verdict is Verdict.NOT_RUN


def _simulated(
    first: int = 0, seeds: int = 10_000, *, jobs: int = 1_000_000, broken: Sequence[int] = ()
) -> Figures:
    return {
        "worker": "own",
        "engine": "memory",
        "first_seed": first,
        "seeds": seeds,
        "jobs": jobs,
        "broken": list(broken),
        "told": [f"seed {seed}: C1 job-1: is gone" for seed in broken],
        "seconds": 30.5,
        "commit": "abc",
    }


@pytest.mark.parametrize(
    ("kept", "verdict"),
    [
        ([_simulated()], Verdict.MET),
        ([_simulated(0, 6_000), _simulated(6_000, 4_000)], Verdict.MET),
        ([_simulated(0, 6_000), _simulated(0, 6_000) | {"engine": "sqlite"}], Verdict.MET),
        ([_simulated(0, 6_000), _simulated(1_000, 6_000)], Verdict.NOT_MET),
        ([_simulated(jobs=999_999)], Verdict.NOT_MET),
        ([_simulated(broken=[5])], Verdict.NOT_MET),
    ],
)
def test_different_seeds_are_counted_and_none_may_be_broken(kept: list[Figures], verdict: Verdict) -> None:
    assert _bar("simulated seeds", Kept(simulations=kept)).verdict is verdict


def test_seeds_of_the_real_worker_are_told_apart() -> None:
    kept = [_simulated(0, 300), _simulated(0, 40) | {"worker": "real"}]
    assert _bar("simulated seeds", Kept(simulations=kept)).measured.startswith(
        "340, of them 40 with the real worker"
    )


def _peers(status: str = "run", leave_out: int = 0) -> dict[Cell, Figures]:
    cells = [
        Cell(contender.peer.name, kind, id)
        for contender in CONTENDERS
        for kind in KINDS
        for id in PEER_EXPERIMENTS
    ]
    held: dict[Cell, Figures] = {cell: {"status": "run"} for cell in cells[leave_out:]}
    held[cells[-1]] = {"status": status}
    return held


@pytest.mark.parametrize(
    ("held", "verdict"),
    [
        (_peers(), Verdict.MET),
        (_peers("not run"), Verdict.MET),
        (_peers("failed"), Verdict.NOT_MET),
        (_peers(leave_out=1), Verdict.NOT_MET),
        ({}, Verdict.NOT_RUN),
    ],
)
def test_every_peer_has_to_be_tried(held: dict[Cell, Figures], verdict: Verdict) -> None:
    assert _bar("the same faults on peers", Kept(peers=held)).verdict is verdict


def test_what_all_peers_were_not_run_for_proves_nothing() -> None:
    held = {cell: {"status": "not run"} for cell in _peers()}
    assert _bar("the same faults on peers", Kept(peers=held)).verdict is Verdict.NOT_MET


# ── the report ──


def _reported(folder: Path, *runs: Figures) -> str:
    for number, figures in enumerate(runs):
        (folder / "runs" / str(number)).mkdir(parents=True)
        (folder / "runs" / str(number) / "figures.json").write_text(json.dumps(figures))
    return report.write(folder / "runs", folder / "RESULTS.md").read_text()


def _row_of(text: str, beginning: str, section: str) -> list[str]:
    """The cells of the only row that begins so, in the part of that name."""
    part = text.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    (row,) = [line for line in part.splitlines() if line.startswith(f"| {beginning}")]
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_report_sums_up_by_store_and_prints_the_bound(tmp_path: Path) -> None:
    harmless = _figures(experiment="E29", accepted=0, harmful=False, stale_calls_sent=0)
    text = _reported(tmp_path, _figures(), _figures(engine="sqlite", seed=8), harmless, _not_run())
    assert "| sqlite | 3 | 200,000 | 600 | 0 | 0 | 0 | 0 of 10 | < 0.500% |" in text
    assert text.rstrip().endswith("None.")


def test_a_loss_takes_the_bound_away(tmp_path: Path) -> None:
    text = _reported(tmp_path, _broken("C1", lost=1))
    assert "| sqlite | 1 | 100,000 | 300 | 1 | 0 | 0 | 0 of 5 | - |" in text


def test_the_report_has_the_bars(tmp_path: Path) -> None:
    text = _reported(tmp_path, _figures())
    assert _row_of(text, "sqlite: harmful faults", "Bars")[1:] == [
        "at least 600",
        "300, of them 300 in E01",
        "**not met**",
    ]
    assert _row_of(text, "sqlite: accepted jobs lost", "Bars")[1:] == ["0", "0 of 100,000", "met"]
    assert _row_of(text, "postgres: accepted jobs lost", "Bars")[1:] == ["0", "-", "not run"]


def test_each_run_has_a_row_to_repeat_it_by(tmp_path: Path) -> None:
    text = _reported(tmp_path, _figures(notes={"pills": 20}, undecided=3, exempted={"C18": 2}))
    assert _row_of(text, "E01", "Each run") == [
        "E01 workers killed",
        "http-sqlite",
        "7",
        "full",
        "0123456789ab",
        "62",
        "100,000",
        "100,012",
        "300",
        "4",
        "0",
        "12 explained, 0 not",
        "0 of 5",
        "0, 0 of 4,000",
        "0.60 / 4.10 / 4.40 (lease 3)",
        "0.60 / 0.90 / 1.20 (lease 3)",
        "3",
        "pills: 20; C18 broken and forgiven: 2",
        "0",
    ]


def test_the_report_names_all_that_was_broken(tmp_path: Path) -> None:
    many = _broken("C5", 3, seed=8)
    many["violations"] = 30
    text = _reported(tmp_path, _broken("C1"), many)
    assert text.split("## Violations\n\n")[1].splitlines() == [
        "- E01 on http-sqlite, seed 7: C1 job-0: is not as it should be",
        "- E01 on http-sqlite, seed 8: C5 job-0: is not as it should be",
        "- E01 on http-sqlite, seed 8: C5 job-1: is not as it should be",
        "- E01 on http-sqlite, seed 8: C5 job-2: is not as it should be",
        "- E01 on http-sqlite, seed 8: and 27 more",
    ]


def test_the_report_says_what_was_not_run_and_why(tmp_path: Path) -> None:
    runs = [_figures(engine="sqlite"), _figures(engine="sqlite"), _broken("C1")]
    text = _reported(tmp_path, *runs, _not_run(experiment="E04", engine="postgres"))
    head = _row_of(text, "experiment", "What was run")
    row = dict(zip(head, _row_of(text, "E01 ", "What was run"), strict=True))
    full = EXPERIMENTS["E01"].full.faults
    assert row["sqlite"] == f"2: 600 of {full:,}"
    assert row["http-sqlite"] == f"1: 300 of {full:,}, **rules broken**"
    assert row["postgres"] == "not run"
    row = dict(zip(head, _row_of(text, "E04 ", "What was run"), strict=True))
    assert (row["postgres"], row["sqlite"]) == ("not run", "")
    assert "- E04 on postgres, seed 7, full, was not run: a tool is missing" in text


def test_every_experiment_has_its_row_of_what_was_run(tmp_path: Path) -> None:
    part = _reported(tmp_path, _figures()).split("## What was run\n")[1].split("\n## ")[0]
    rows = [line.split()[1] for line in part.splitlines() if line.startswith("| E")]
    assert rows == sorted(EXPERIMENTS)


def test_the_report_tells_of_simulations(tmp_path: Path) -> None:
    simulated.keep(_simulated(0, 100, jobs=7_000), tmp_path)
    simulated.keep(_simulated(100, 50, jobs=3_500, broken=[101]), tmp_path)
    text = report.write(tmp_path, tmp_path / "RESULTS.md").read_text()
    assert "| own | memory | 100 from 0 on | 7,000 | 0 | 30.5 | abc |" in text
    assert "- own worker on memory, seed 101: C1 job-1: is gone" in text


def test_the_report_is_written_from_the_kept_files_alone(tmp_path: Path) -> None:
    """Mutants, simulations and peers are judged in it too."""
    mutants_told.keep(_mutants(), tmp_path)
    simulated.keep(_simulated(), tmp_path)
    line = {"peer": "rq", "settings": "default", "experiment": "E01", "status": "failed", "reason": "it hangs"}
    about = {"version": "1", "limit_seconds": 90.0, "chosen": [], "cores": 2, "at_once": 1, "commit": "abc"}
    peers_results.append(peers_results.path_in(tmp_path), {**line, **about, "at": "2026-11-16T10:00:00+00:00"})
    text = report.write(tmp_path, tmp_path / "RESULTS.md").read_text()
    assert _row_of(text, "sqlite: engines that are broken", "Bars")[3] == "met"
    assert _row_of(text, "simulated seeds", "Bars")[3] == "met"
    assert _row_of(text, "the same faults on peers", "Bars")[3] == "**not met**"


def _model(engine: str, programs: int = 2_000, calls: int = 100, broken: str | None = None) -> Figures:
    about = {"seconds": 9.5, "commit": "abc"}
    return {"engine": engine, "programs": programs, "calls": calls, "broken": broken, **about}


@pytest.mark.parametrize(
    ("last", "verdict"),
    [
        ([_model("postgres")], Verdict.MET),
        ([], Verdict.NOT_MET),
        ([_model("postgres", programs=1_999)], Verdict.NOT_MET),
        ([_model("postgres", calls=50)], Verdict.NOT_MET),
        ([_model("postgres", broken="lease() gave another job")], Verdict.NOT_MET),
    ],
)
def test_random_programs_are_judged_on_every_engine(last: list[Figures], verdict: Verdict) -> None:
    kept = Kept(model=[_model("memory"), _model("sqlite"), *last])
    assert _bar("random programs", kept).verdict is verdict
    assert _bar("random programs", Kept()).verdict is Verdict.NOT_RUN


def test_the_report_tells_of_random_programs(tmp_path: Path) -> None:
    modelled.keep(_model("sqlite", broken="lease() gave another job"), tmp_path)
    text = report.write(tmp_path, tmp_path / "RESULTS.md").read_text()
    assert "| sqlite | 2,000 | 100 | 1 | 9.5 | abc |" in text


# ── the command ──


def _told_by_runs(monkeypatch: pytest.MonkeyPatch, told: Callable[[str], Figures]) -> None:
    """Runs that are over at once, with these figures by engine."""

    async def run(_experiment: object, kind: str, **_: object) -> Figures:
        return told(kind)

    monkeypatch.setattr("chaos.command.run", run)


def _missing(kind: str) -> Figures:
    if kind == "sqlite":
        raise RunBroken("the tool is missing")
    return _figures(engine=kind)


def test_what_is_not_run_is_kept_and_the_next_one_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _told_by_runs(monkeypatch, _missing)
    words = ["run", "E01", "--engine", "sqlite,postgres", "--seed", "3", "--out", str(tmp_path)]
    assert main(words) == 2
    output = capsys.readouterr()
    assert "not run: the tool is missing" in output.err
    lines = [json.loads(line) for line in output.out.splitlines()]
    assert [(line["engine"], line.get("not_run")) for line in lines] == [
        ("sqlite", "the tool is missing"),
        ("postgres", None),
    ]
    (kept,) = [json.loads(path.read_text()) for path in tmp_path.glob("*/figures.json")]
    assert kept == lines[0]
    assert (kept["experiment"], kept["engine"], kept["seed"], kept["size"]) == ("E01", "sqlite", 3, "small")


def test_a_rule_that_is_broken_outweighs_what_was_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _told_by_runs(monkeypatch, lambda kind: _broken("C1") if kind == "postgres" else _missing(kind))
    assert main(["run", "E01", "--engine", "sqlite,postgres", "--out", str(tmp_path)]) == 1


def test_runs_that_break_nothing_end_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _told_by_runs(monkeypatch, lambda kind: _figures(engine=kind))
    assert main(["run", "E01", "--out", str(tmp_path)]) == 0


def test_a_run_that_dies_of_a_defect_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def defective(kind: str) -> Figures:
        if kind == "sqlite":
            raise ZeroDivisionError("of the harness")
        return _figures(engine=kind)

    _told_by_runs(monkeypatch, defective)
    assert main(["run", "E01", "--engine", "sqlite,postgres", "--out", str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert "Traceback" in output.err
    told = [json.loads(line).get("not_run") for line in output.out.splitlines()]
    assert told == ["ZeroDivisionError: of the harness", None]


def test_simulated_seeds_end_with_one_line_of_json_that_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = list(logging.getLogger("ropeway").handlers)
    assert main(["simulate", "--seeds", "2", "--first", "4", "--out", str(tmp_path)]) == 0
    assert logging.getLogger("ropeway").handlers == handlers, "whoever comes next logs as before"
    told = json.loads(capsys.readouterr().out)
    assert (told["worker"], told["engine"], told["first_seed"], told["seeds"]) == ("own", "memory", 4, 2)
    assert told["broken"] == []
    assert told["jobs"] > 100
    assert simulated.read(tmp_path) == [told]


@pytest.mark.parametrize("engine", ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def test_random_programs_end_with_one_line_of_json_that_is_kept(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["model", "--engine", engine, "--programs", "3", "--calls", "5", "--out", str(tmp_path)]
    assert main(asked) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["engine"], told["programs"], told["calls"], told["broken"]) == (engine, 3, 5, None)
    assert modelled.read(tmp_path) == [told]


def test_more_random_programs_are_added_to_those_of_the_same_kind(tmp_path: Path) -> None:
    modelled.keep(_model("postgres", programs=700), tmp_path)
    modelled.keep(_model("postgres", programs=500, broken="another job"), tmp_path, more=True)
    modelled.keep(_model("postgres", programs=800), tmp_path, more=True)
    assert modelled.read(tmp_path) == [{**_model("postgres", broken="another job"), "seconds": 28.5}]
    modelled.keep(_model("postgres", calls=50), tmp_path, more=True)
    assert modelled.read(tmp_path) == [_model("postgres", calls=50)], "programs of another size"
    modelled.keep(_model("postgres", programs=3), tmp_path)
    assert modelled.read(tmp_path) == [_model("postgres", programs=3)]


def test_a_broken_program_is_told_kept_and_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_model(*_: object, **__: object) -> None:
        raise Broken("lease() gave another job", [])

    monkeypatch.setattr("chaos.modelled.run_model", run_model)
    assert main(["model", "--out", str(tmp_path)]) == 1
    assert "lease() gave another job" in capsys.readouterr().err
    (told,) = modelled.read(tmp_path)
    assert told["broken"].startswith("lease() gave another job")


def _play_on(monkeypatch: pytest.MonkeyPatch, bad_seed: int, wrong: Callable[[Simulated], Simulated]) -> None:
    """Seed 0 over and over, but for one."""
    usual = simulate(0)

    def play(seed: int, _make: object) -> Simulated:
        return wrong(usual) if seed == bad_seed else usual

    monkeypatch.setattr("chaos.command.simulate", play)


def test_a_seed_that_breaks_a_rule_is_kept_as_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    violation = Violation("C1", "job-1", "is gone")
    _play_on(monkeypatch, 2, lambda usual: Simulated(2, usual.facts, [violation]))
    assert main(["simulate", "--seeds", "4", "--out", str(tmp_path)]) == 1
    (kept,) = simulated.read(tmp_path)
    assert (kept["seeds"], kept["broken"], kept["told"]) == (4, [2], [f"seed 2: {violation}"])
    assert f"seed 2: {violation}" in capsys.readouterr().err


def test_a_seed_that_comes_to_no_end_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_usual: Simulated) -> Simulated:
        raise TimeoutError("not everything ended")

    _play_on(monkeypatch, 1, endless)
    assert main(["simulate", "--seeds", "3", "--out", str(tmp_path)]) == 1
    (kept,) = simulated.read(tmp_path)
    assert (kept["seeds"], kept["broken"]) == (3, [1])
    assert kept["told"] == ["seed 1: TimeoutError: not everything ended"]


def test_what_was_simulated_before_somebody_ended_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_usual: Simulated) -> Simulated:
        raise KeyboardInterrupt

    _play_on(monkeypatch, 2, interrupted)
    assert main(["simulate", "--seeds", "9", "--out", str(tmp_path)]) == 130
    (kept,) = simulated.read(tmp_path)
    assert (kept["seeds"], kept["broken"]) == (2, [])


def test_the_same_seeds_again_replace_what_they_came_to(tmp_path: Path) -> None:
    simulated.keep(_simulated(broken=[5]), tmp_path)
    simulated.keep(_simulated(), tmp_path)
    assert [each["broken"] for each in simulated.read(tmp_path)] == [[]]


# ── the page ──

PAGE = (ROOT / "docs" / "faults.md").read_text()


def test_the_page_has_a_row_for_every_rule() -> None:
    """C14 is a bar of each experiment that asks for it."""
    assert set(re.findall(r"^\| (C\d+) \|", PAGE, re.MULTILINE)) == {*RULES, "C14"}
