"""Bars of the runs that restore a copy (E34) and resume a migration (E26); what fault points do to a store."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from chaos.experiment import Run, Size
from chaos.experiments import copies, upgrades
from chaos.facts import Facts
from chaos.stage import Stage
from ropeway.core.errors import Indeterminate
from ropeway.core.job import NewJob
from ropeway.engines.postgres.migrating import LOCK_SECONDS
from ropeway.engines.sqlite import SqliteEngine, writer
from ropeway.runtime.faultpoints import armed

# ── E34 ──


def _judged(**wrong: float) -> list[str]:
    notes = dict.fromkeys(copies.WRONG, 0.0) | {copies.TRIED: 120.0}
    for name, number in wrong.items():
        notes[name.replace("_", " ")] = number
    run = Run(cast(Stage, None), Size(400, 5), lambda: False, notes=notes)
    return [violation.words for violation in copies.fenced_after_restore(Facts(), run)]


def test_tickets_are_void_and_good_as_they_should_be_on_a_copy() -> None:
    assert _judged() == []


@pytest.mark.parametrize("name", copies.WRONG)
def test_one_ticket_that_is_not_breaks_the_bar(name: str) -> None:
    assert _judged(**{name.replace(" ", "_"): 1.0}) == [f"{name}: 1"]


def test_a_copy_on_which_nothing_was_tried_proves_nothing() -> None:
    assert _judged(tickets_tried_on_copies=0.0) == ["no ticket was tried on a copy: the run proves nothing"]


# ── E26 ──


@pytest.mark.parametrize(
    ("killed", "different", "waited", "words"),
    [
        (2, 0, 61.0, []),
        (1, 0, 61.0, ["1 of 2 were killed and taken up: the run proves nothing"]),
        (2, 1, 61.0, ["1 schemas differ"]),
        (2, 0, LOCK_SECONDS + upgrades.REST + 1, ["kept the next one"]),
    ],
)
def test_a_migration_that_was_killed_is_taken_up_in_time_and_to_the_same_end(
    killed: float, different: float, waited: float, words: list[str]
) -> None:
    notes = {
        "migrations killed between two steps": killed,
        "schemas that differ after one": different,
        "end of one by the next, longest, s": waited,
    }
    found = upgrades.went_on(notes, 2)
    assert len(found) == len(words)
    assert all(word in violation.words for word, violation in zip(words, found, strict=True))


# ── fault points ──


async def test_what_is_lost_before_its_commit_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = NewJob("chaos.ok", idempotency_key="once")
    async with SqliteEngine(str(tmp_path / "jobs.db")) as engine:
        with monkeypatch.context() as patched:
            patched.setattr(writer, "fault", armed("commit.before=raise"))
            with pytest.raises(Indeterminate, match=r"commit\.before"):
                await engine.enqueue([job])
        assert (await engine.count()).number == 0
        (answer,) = await engine.enqueue([job])
        assert not answer.deduplicated
        assert (await engine.count()).number == 1
