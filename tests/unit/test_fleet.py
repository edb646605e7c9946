"""What a worker may say of itself."""

from __future__ import annotations

from typing import Any

import pytest

from ropeway.core.errors import FieldError
from ropeway.core.fleet import WorkerInfo, check_seen_within

GOOD: dict[str, Any] = {
    "id": "w1", "host": "h", "pid": 1, "version": "1.0", "queues": ("mail",), "types": ("email.send",), "slots": 1,
    "running": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("id", ""),
        ("id", "x" * 129),
        ("id", "a\nb"),
        ("host", ""),
        ("host", "\ud800"),
        ("version", "x" * 65),
        ("queues", ["mail"]),
        ("queues", ("no such queue",)),
        ("types", ("",)),
        ("pid", -1),
        ("pid", 2**31),
        ("slots", True),
        ("running", 1.0),
        ("rss_bytes", -1),
        ("rss_bytes", 2**63),
        ("state", "asleep"),
    ],
)
def test_what_no_engine_could_keep_is_refused(field: str, bad: object) -> None:
    with pytest.raises(FieldError) as caught:
        WorkerInfo(**{**GOOD, field: bad})
    assert caught.value.pointer == f"/{field}"


def test_one_process_is_one_host_and_pid() -> None:
    info = WorkerInfo(**GOOD)
    assert info.same_process(WorkerInfo(**{**GOOD, "slots": 5, "version": "2.0"}))
    assert not info.same_process(WorkerInfo(**{**GOOD, "pid": 2}))
    assert not info.same_process(WorkerInfo(**{**GOOD, "host": "g"}))


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), True, "60", None])
def test_a_time_that_is_none(bad: Any) -> None:
    with pytest.raises(FieldError):
        check_seen_within(bad)
