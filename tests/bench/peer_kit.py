"""What the tests of the peers' harness share: the fake peer, and sizes that take no time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.peers.catalogue import Peer
from bench.peers.environments import PROGRAMS, prepare
from bench.peers.measuring import Subject
from bench.peers.places import Places
from bench.peers.results import Results
from bench.peers.sizing import QUICK, Scale

TINY = replace(
    QUICK,
    seconds=0.1,
    drain_seconds=0.1,
    latency_jobs=5,
    load_seconds=0.2,
    spike_seconds=0.3,
    calm_seconds=0.3,
    recovery_seconds=20.0,
    backlog_jobs=100,
    steady_tries=2,
    crowds=(1,),
    limit_seconds=30.0,
)


def fake(mode: str = "", *, name: str = "fake") -> Peer:
    return Peer(
        name=name,
        label="Fake",
        store="sqlite",
        program=str(Path(__file__).with_name("fake_peer.py")),
        rate=2_000,
        enqueue_rate=2_000,
        bulk_rate=None,
        env={"FAKE": mode, "PYTHONPATH": str(PROGRAMS)},
    )


@contextlib.contextmanager
def subject(mode: str = "", *, scale: Scale = TINY, results: Results | None = None) -> Iterator[Subject]:
    peer = fake(mode)
    with Places() as places:
        yield Subject(peer, prepare(peer), places, scale, results or Results())
