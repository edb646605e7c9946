"""Faults on peers: what a ledger tells, what a handler does, who takes part, and what the report says."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from chaos import report
from chaos.command import main
from chaos.peers import ledger, results, table
from chaos.peers.experiments import EXPERIMENTS, LONGEST_BLOCK_SECONDS, Found, block_seconds
from chaos.peers.figures import figures
from chaos.peers.ledger import Handled, Kill
from chaos.peers.runner import plan, summary
from chaos.peers.settings import BLOCK_SECONDS, CONTENDERS, KINDS, PROGRAMS, TIMEOUT_SECONDS, Settings, chosen
from chaos.peers.stand import Tally

# ── the ledger ──


def _note(op: str, job: int, run: str, at: float, pid: int = 7) -> dict[str, Any]:
    return {"t": at, "op": op, "job": job, "run": run, "pid": pid}


def test_a_run_is_its_start_and_its_effect_and_half_a_line_is_left_out(tmp_path: Path) -> None:
    notes = [_note("start", 1, "a", 1.0), _note("start", 2, "b", 2.0), _note("effect", 1, "a", 3.0)]
    path = tmp_path / "ledger.jsonl"
    path.write_text("".join(json.dumps(note) + "\n" for note in notes) + '{"t": 4.0, "op": "eff')
    assert ledger.read(path) == [Handled(1, "a", 7, 1.0, 3.0), Handled(2, "b", 7, 2.0)]
    assert ledger.read(tmp_path / "nothing") == []


def test_what_was_killed_lost_done_twice_and_started_again_is_counted() -> None:
    runs = [
        Handled(1, "a", 10, 1.0, 1.5),  # done, then killed before anybody heard of it
        Handled(2, "b", 10, 1.2),  # killed and never seen again
        Handled(3, "c", 11, 3.0),  # killed with its worker and started again
        Handled(1, "d", 12, 4.0, 4.5),
        Handled(3, "e", 12, 8.5, 9.0),
    ]
    kills = [Kill(2.0, frozenset({10}), whole=False), Kill(3.5, frozenset({11, 20}), whole=True)]
    told = figures(Found([1, 2, 3], faults=2, kills=kills), runs, held=1)
    assert (told["accepted"], told["lost"], told["done_twice"], told["started_again"]) == (3, 1, 1, 2)
    assert told["interrupted"] == {
        "process": {"jobs": 1, "never_again": 1, "recovery": None},
        "worker": {"jobs": 1, "never_again": 0, "recovery": {"p50": 5.0, "p99": 5.0, "max": 5.0}},
    }


def test_a_late_word_counts_when_the_store_has_more_jobs_as_done_than_ticks_ran() -> None:
    before = Tally(unfinished=4, finished=10, ticks=7)
    assert not Tally(4, 10, 7).more_done_than(before)
    assert not Tally(2, 12, 9).more_done_than(before), "two ticks ran"
    assert Tally(3, 10, 7).more_done_than(before), "it is not waited for any more"
    assert Tally(4, 11, 7).more_done_than(before), "it has succeeded"
    assert not Tally(4, None, 7).more_done_than(Tally(4, None, 7))


# ── what a handler does ──


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The handlers' side, with a script and a ledger."""
    script = [{"do": "sleep", "seconds": 0.0, "again": 0.0}, {"do": "nul", "seconds": 0.0, "again": 0.0}]
    (tmp_path / "script.json").write_text(json.dumps(script))
    monkeypatch.setenv("CHAOS_SCRIPT", str(tmp_path / "script.json"))
    monkeypatch.setenv("CHAOS_LEDGER", str(tmp_path / "ledger.jsonl"))
    found = importlib.util.spec_from_file_location("chaos_kit", PROGRAMS / "chaos_kit.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_a_handler_notes_its_start_and_its_effect_and_returns_what_it_is_told(
    kit: ModuleType, tmp_path: Path
) -> None:
    assert kit.perform(1) == "before\0after"
    assert asyncio.run(kit.aperform(0)) is None
    assert kit.perform(99) is None, "a job beyond the script does nothing"
    runs = ledger.read(tmp_path / "ledger.jsonl")
    assert [(run.job, run.effect is not None) for run in runs] == [(1, True), (0, True), (99, True)]


# ── who takes part ──


def test_every_contender_has_a_program_and_says_what_it_is_set_to() -> None:
    for contender in CONTENDERS:
        assert (PROGRAMS / contender.program).is_file()
        for kind in KINDS:
            assert contender.settings(kind).chosen
        sources = [each.source for each in contender.safest.chosen]
        assert any(sources), f"{contender.peer.name}: no page has its safest settings"


def test_what_no_beat_renews_is_longer_than_the_longest_job() -> None:
    for contender in CONTENDERS:
        safest = contender.safest
        assert safest.silence is None or safest.renewed or safest.silence >= TIMEOUT_SECONDS > BLOCK_SECONDS


def test_a_job_blocks_for_longer_than_a_worker_may_be_silent_or_the_experiment_is_left_out() -> None:
    assert block_seconds(Settings(5, ())) == BLOCK_SECONDS
    assert block_seconds(Settings(30, ())) == 45
    assert block_seconds(Settings(None, ())) == BLOCK_SECONDS
    silent = Settings(LONGEST_BLOCK_SECONDS, ())
    assert EXPERIMENTS["E13"].unfit(silent) == "a worker may be silent for 100 s, longer than a run blocks"
    assert EXPERIMENTS["E13"].unfit(Settings(30, ())) is None


def test_peers_are_chosen_by_name() -> None:
    assert {each.peer.name for each in chosen(["ropeway", "rq"])} == {"ropeway-postgres", "ropeway-sqlite", "rq"}
    assert chosen([]) == CONTENDERS
    with pytest.raises(ValueError, match="no peer is called kafka"):
        chosen(["kafka"])


@pytest.mark.parametrize("words", [["--peers", "kafka"], ["--only", "E99"], ["--settings", "fast"]])
def test_what_there_is_not_is_refused_before_anything_runs(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["peers", *words]) == 2
    assert "is called" in capsys.readouterr().err


# ── the report ──


def _line(peer: str, settings: str, experiment: str, **more: Any) -> dict[str, Any]:
    return {
        "peer": peer,
        "settings": settings,
        "experiment": experiment,
        "label": peer,
        "store": "redis",
        "version": "1.2.3",
        "chosen": [{"text": "careful=True", "source": "https://example.org/careful"}],
        "limit_seconds": 90.0,
        "at_once": 4,
        "cores": 2,
        "commit": "abc",
        "at": "2026-01-02T03:04:05+00:00",
        "seconds": 1.0,
        "status": results.RUN,
        "accepted": 60,
        "faults": 12,
        "lost": 0,
        "held": 0,
        "done_twice": 0,
        "started_again": 0,
        "restarts": 0,
        "notes": {},
        **more,
    }


KILLED = {
    "process": {"jobs": 6, "never_again": 6, "recovery": None},
    "worker": {"jobs": 6, "never_again": 2, "recovery": {"p50": 3.14, "p99": 30.0, "max": 31.0}},
}


def test_the_report_has_a_row_for_everybody_and_says_who_was_not_run(tmp_path: Path) -> None:
    path = results.path_in(tmp_path)
    results.append(path, _line("celery", "default", "E01", lost=99))
    results.append(path, _line("celery", "default", "E01", lost=8, held=2, interrupted=KILLED))
    results.append(path, _line("rq", "safest", "E13", status=results.NOT_RUN, reason="pip | could not"))
    text = "\n".join(table.section(tmp_path))
    celery = "12 | 8 of 60 (2 unfinished) | 0 of 6 | - | 4 of 6 | 3.1 / 30.0 / 31.0 | 0"
    assert f"| Celery 1.2.3 | redis | default | {celery} |" in text
    assert "| RQ 1.2.3 | redis | safest | not run: pip / could not | - | - | - |" in text
    assert "| Dramatiq | redis | default | not run: it was not asked to |" in text
    assert "- Celery 1.2.3 on redis, default: careful=True (https://example.org/careful)" in text
    assert "90 s after the last fault" in text


def test_every_experiment_has_a_table() -> None:
    lines = {
        "E01": _line("rq", "default", "E01", interrupted=KILLED),
        "E02": _line(
            "rq", "default", "E02", notes={"taken_over_after": [31.2], "late_counted": 1, "late_effects": 1}
        ),
        "E12": _line("rq", "default", "E12", notes={"deaths_per_pill": [3, 3, 3]}),
        "E13": _line("rq", "default", "E13", notes={"blocked_seconds": 25.0}),
        "NUL": _line("rq", "default", "NUL", notes={"ended": True, "succeeded": None}),
    }
    assert set(table.SHOWN) == set(EXPERIMENTS) == set(lines)
    for id, shown in table.SHOWN.items():
        assert len(shown.cells(lines[id])) == len(shown.columns)
        assert summary(lines[id]).startswith(f"rq, default, {id}: 60 accepted, 0 lost")


def test_without_runs_on_peers_the_report_is_silent_about_them(tmp_path: Path) -> None:
    assert table.section(tmp_path) == []
    assert "## The same faults on peers" not in report.write(tmp_path, tmp_path / "RESULTS.md").read_text()


def test_all_experiments_of_a_peer_are_planned_one_after_the_other() -> None:
    tasks = plan(CONTENDERS[:1], KINDS, list(EXPERIMENTS.values()))
    assert [task.cell[1:] for task in tasks] == [(kind, id) for kind in KINDS for id in EXPERIMENTS]
