"""How often Python looks for cycles, in processes that run for long."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ropeway.runtime import collector


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_new_objects_are_looked_at_seldom() -> None:
    older = gc.get_threshold()[1:]
    collector.look_rarely()
    assert gc.get_threshold() == (collector.YOUNG_OBJECTS, *older)
    assert gc.get_freeze_count() > 0


@pytest.mark.parametrize("chosen", [(0, 0, 0), (5_000, 20, 20)])
def test_who_has_chosen_keeps_it(chosen: tuple[int, int, int]) -> None:
    gc.set_threshold(*chosen)
    collector.look_rarely()
    assert gc.get_threshold() == chosen
