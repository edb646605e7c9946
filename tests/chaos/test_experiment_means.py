"""What experiments use: jobs as their tasks have them, long calls, groups with little memory, rude requests."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from chaos import holding, memory_groups
from chaos.memory_groups import NoMemoryGroups, memory_group
from chaos.producing import new_job, possible
from chaos.rude import heavy, refused_rows, request, rude
from chaos.tasks import HOLD_TIMEOUT, app
from ropeway.core.retry import delay
from ropeway.engines.capabilities import Capability
from ropeway.engines.memory import MemoryEngine

# ── jobs ──


def test_a_job_is_what_its_task_declares() -> None:
    herd = new_job("chaos.downstream", "k")
    assert (herd.max_attempts, herd.idempotency_key, herd.payload) == (25, "k", b"{}")
    assert herd.retry is not None
    # The first retry of what failed in the same instant is spread over fifty seconds.
    assert (delay(herd.retry, 1, 0.0), delay(herd.retry, 1, 1.0)) == (25.0, 75.0)
    assert new_job("chaos.hold", "k").timeout == HOLD_TIMEOUT
    assert new_job("chaos.ok", "k", {"a": 1}, delay=2.0).delay == 2.0
    assert new_job("nobody.knows", "k").max_attempts == 5


def test_every_task_of_the_experiments_can_be_asked_for() -> None:
    assert len([new_job(name, "k") for name in app.registry.names()]) > 20


@pytest.mark.parametrize(
    ("capabilities", "kinds"),
    [
        ({Capability.TRANSACTIONAL_COMPLETION}, {"chaos.ok": 1.0, "chaos.effect": 3.0}),
        ({Capability.DURABLE}, {"chaos.ok": 1.0}),
    ],
)
def test_a_handlers_own_transaction_is_only_asked_for_where_there_is_one(
    capabilities: set[Capability], kinds: dict[str, float]
) -> None:
    assert possible({"chaos.ok": 1.0, "chaos.effect": 3.0}, capabilities) == kinds


def test_memory_has_no_such_transaction() -> None:
    assert "chaos.effect" not in possible({"chaos.effect": 1.0}, MemoryEngine().capabilities)


# ── calls that hold the interpreter ──


def test_a_longer_power_is_three_times_as_long_for_twice_the_exponent() -> None:
    assert holding.exponent_for(1.0, 1.0) == holding.SHORT_EXPONENT
    assert holding.exponent_for(9.0, 1.0) == pytest.approx(4 * holding.SHORT_EXPONENT, abs=2)
    assert holding.exponent_for(0.1, 1.0) == holding.SHORT_EXPONENT


@pytest.mark.parametrize(("seconds", "letters"), [(0.5, 0), (1.0, 0), (1.1, 1), (2.0, 1), (15.0, 4), (16.0, 4)])
def test_each_letter_takes_twice_as_long(seconds: float, letters: int) -> None:
    assert holding.length_for(seconds, 1.0) == holding.SHORT_TEXT + letters


# ── groups with little memory ──


def made_up(root: Path, *, together: bool) -> memory_groups.Version:
    """A place where files are only files."""
    version = memory_groups.FIRST if together else memory_groups.SECOND
    (root / "cgroup.procs").touch()
    return replace(version, root=root)


@pytest.mark.parametrize(("together", "swap"), [(True, str(128 * 2**20)), (False, "0")])
def test_a_group_is_limited_and_filled_and_given_up(tmp_path: Path, together: bool, swap: str) -> None:
    version = made_up(tmp_path, together=together)
    with memory_group("test", 128, version) as group:
        assert (group.folder / version.limit).read_text() == str(128 * 2**20)
        assert (group.folder / version.swap).read_text() == swap
        group.add(os.getpid())
        assert group.door.read_text() == str(os.getpid())
        (group.folder / version.peak).write_text(str(5 * 2**20))
        assert group.peak_mib() == 5
    # Who was in it is where everybody is.
    assert (tmp_path / "cgroup.procs").read_text() == str(os.getpid())
    assert together or (tmp_path / "cgroup.subtree_control").read_text() == "+memory"


def test_where_memory_cannot_be_limited_that_is_told(tmp_path: Path) -> None:
    version = replace(memory_groups.FIRST, root=tmp_path / "nowhere")
    with pytest.raises(NoMemoryGroups, match="cannot be limited here"), memory_group("test", 128, version):
        pass


# ── rude requests ──


def test_the_crowd_asks_all_that_is_refused_and_nothing_that_is_stored() -> None:
    rows = refused_rows()
    assert len(rows) > 100
    assert all(row.status >= 400 and not row.scene and not row.changes for row in rows)
    assert len(rude("token")) == len(rows) + len(heavy("token"))


def test_a_request_is_what_goes_over_the_line() -> None:
    raw = request("POST", "/v1/jobs", "rw_x", b"{}", {"Content-Type": None, "X-A": "1"})
    head, _, body = raw.partition(b"\r\n\r\n")
    assert body == b"{}"
    assert head.split(b"\r\n") == [
        b"POST /v1/jobs HTTP/1.1",
        b"Host: 127.0.0.1",
        b"Authorization: Bearer rw_x",
        b"Content-Length: 2",
        b"X-A: 1",
    ]
