"""What a program may consist of: every call, with the values worth trying, drawn by Hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from ropeway.core.outcome import Done, Failed, Lost, Outcome, Released, Snoozed
from ropeway.core.payload import JobError
from ropeway.core.query import JobFilter, QueueSettings
from ropeway.core.states import DeadReason, State
from ropeway.core.unique import Unique
from ropeway.testing.model.program import DAY, QUEUES, WORKERS, Call
from ropeway.testing.model.records import PAYLOADS, RESULTS, Ask

_asks = st.builds(
    Ask,
    queue=st.sampled_from(QUEUES),
    type=st.sampled_from(("t1", "t2")),
    priority=st.sampled_from((5, 1, 2, 9)),
    max_attempts=st.sampled_from((3, 1, 2)),
    payload=st.sampled_from(tuple(PAYLOADS)),
    timeout=st.sampled_from((3_600.0, 0.0, 7.0)),
    expires_in=st.sampled_from((None, None, None, 10.0, 100.0)),
    delay=st.sampled_from((None, None, None, 0.0, 0.5, 45.0)),
)
_moments = st.builds(
    Ask,
    queue=st.sampled_from(QUEUES),
    priority=st.sampled_from((5, 2)),
    at=st.sampled_from((-60.0, 0.0, 30.0, 2 * DAY)),
)
_keyed = st.builds(
    Ask,
    payload=st.sampled_from((b"{}", b"{}", *PAYLOADS)),
    key=st.sampled_from(("k1", "k2")),
    window=st.sampled_from((None, 0.0, 60.0)),
    delay=st.sampled_from((None, None, 45.0)),
)
_uniques = st.builds(
    Ask,
    queue=st.sampled_from(QUEUES),
    payload=st.sampled_from(tuple(PAYLOADS)),
    key=st.sampled_from((None, None, "k3")),
    unique=st.sampled_from(
        (
            Unique(),
            Unique(by="key", key="u1"),
            Unique(within=30.0),
            Unique(by="key", key="u1", states=frozenset({State.QUEUED, State.DEAD})),
        )
    ),
)
_batches = st.lists(_asks | _asks | _moments | _keyed | _uniques, min_size=1, max_size=4)

_ERRORS = (JobError("ValueError", "no such thing"), JobError("TimeoutError", "too slow", "line 1\nline 2"))
_failures = st.builds(
    Failed,
    error=st.sampled_from(_ERRORS),
    retry=st.sampled_from((True, True, False)),
    retry_after=st.sampled_from((None, None, 0.0, 3.0)),
)
_outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Done, result=st.sampled_from(tuple(RESULTS))),
    _failures,
    _failures,
    st.builds(Snoozed, delay=st.sampled_from((0.0, 1.5, 40.0))),
    st.just(Released()),
    st.sampled_from((Lost(), Lost("crashed", signal=9))),
)

_queue_lists = st.sampled_from((("q1", "q2"), ("q1",), ("q2",), ("q2", "q1")))
_tenants = st.sampled_from(("a", "a", "a", "b"))
_filters = st.builds(
    JobFilter,
    queue=st.sampled_from((None, None, *QUEUES)),
    type=st.sampled_from((None, None, "t1")),
    states=st.none() | st.frozensets(st.sampled_from(State), min_size=1, max_size=3),
    idempotency_key=st.sampled_from((None, None, None, "k1")),
    worker_id=st.sampled_from((None, None, None, "w1")),
    error=st.sampled_from((None, None, None, "Timeout", "such")),
    reason=st.sampled_from((None, None, None, *DeadReason)),
)


def _call(method: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    return st.fixed_dictionaries(arguments).map(lambda drawn: Call(method, drawn))


_ago = st.integers(0, 30)
_workers = st.sampled_from(WORKERS)
_queues = st.sampled_from(QUEUES)
_forged = st.sampled_from(("token", "attempt"))

#: How often each call is drawn, besides what it is called with. Work is most of it, or nothing else would matter.
_CALLS: tuple[tuple[int, st.SearchStrategy[Call]], ...] = (
    (5, _call("enqueue", tenant=_tenants, asks=_batches, reply_lost=st.booleans())),
    (
        7,
        _call(
            "lease",
            tenant=_tenants,
            queues=_queue_lists,
            count=st.integers(1, 4),
            worker=_workers,
            seconds=st.sampled_from((30.0, 5.0, 90.0)),
        ),
    ),
    (4, _call("work", tenant=_tenants, count=st.integers(1, 3), outcome=_outcomes)),
    (2, _call("crash", tenant=_tenants, times=st.integers(1, 3))),
    (6, _call("settle", lease=_ago, outcome=_outcomes, reply_lost=st.booleans())),
    (1, _call("settle_together", lease=_ago, how=st.tuples(_outcomes, _outcomes, _outcomes))),
    (2, _call("replay", stale=_ago, outcome=_outcomes)),
    (4, _call("advance", seconds=st.sampled_from((1.0, 0.5, 5.0, 31.0, 61.0, 200.0)))),
    (1, _call("advance", seconds=st.sampled_from((3_600.0, DAY / 2, DAY, 1.5 * DAY, 4 * DAY)))),
    (3, _call("rescue")),
    (1, _call("expire")),
    (1, _call("audit")),
    (2, _call("prune")),
    (2, _call("heartbeat", lease=_ago, seconds=st.sampled_from((None, 5.0, 60.0)))),
    (1, _call("heartbeat", stale=_ago, seconds=st.sampled_from((None, 60.0)))),
    (1, _call("heartbeat_owner", tenant=_tenants, worker=_workers)),
    (1, _call("progress", lease=_ago, done=st.sampled_from((0.0, 0.5)))),
    (1, _call("progress", stale=_ago, done=st.sampled_from((0.0, 0.5)))),
    (
        2,
        _call(
            "worker_dies",
            tenant=_tenants,
            worker=_workers,
            reported=st.booleans(),
            started=st.sampled_from((None, 0, 1)),
        ),
    ),
    (1, _call("forge", lease=_ago, outcome=_outcomes, forged=_forged)),
    (1, _call("forge", stale=_ago, outcome=_outcomes, forged=_forged)),
    (2, _call("cancel", job=_ago, more=st.integers(0, 2))),
    (3, _call("redrive", job=_ago, more=st.integers(0, 2), by=st.sampled_from((None, "ann")))),
    (
        1,
        _call(
            "redrive_where",
            tenant=_tenants,
            queue=st.sampled_from((None, *QUEUES)),
            cancelled=st.booleans(),
            dry_run=st.booleans(),
        ),
    ),
    (
        2,
        _call(
            "reschedule",
            job=_ago,
            delay=st.sampled_from((None, None, 0.0, 20.0)),
            at=st.sampled_from((None, -5.0, 50.0)),
            priority=st.sampled_from((None, 5, 1, 9)),
            queue=st.sampled_from((None, *QUEUES)),
        ),
    ),
    (1, _call("delete", job=_ago, more=st.integers(0, 1))),
    (
        2,
        _call(
            "pause", tenant=_tenants, queue=st.sampled_from(QUEUES), paused=st.sampled_from((False, False, True))
        ),
    ),
    (
        1,
        _call(
            "set_queue",
            tenant=_tenants,
            queue=_queues,
            settings=st.sampled_from(
                (QueueSettings(), QueueSettings(depth_limit=1), QueueSettings(None, True, 5.0))
            ),
        ),
    ),
    (1, _call("place", job=_ago, more=st.integers(0, 3))),
    (1, _call("trespass", job=_ago)),
    (1, _call("trespass_with_a_ticket", lease=_ago, outcome=_outcomes)),
    (1, _call("trespass_with_a_ticket", stale=_ago, outcome=_outcomes)),
    (
        1,
        _call(
            "find",
            tenant=_tenants,
            where=_filters,
            order=st.sampled_from(("newest", "oldest", "died")),
            limit=st.sampled_from((50, 2)),
        ),
    ),
)
steps = st.one_of(*(call for weight, call in _CALLS for _ in range(weight)))
