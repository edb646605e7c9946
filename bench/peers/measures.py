"""Every measure by its name in results.json, in the order in which they are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bench.peers.catalogue import Peer
from bench.peers.failing import NoFigure
from bench.peers.measures_endurance import LONGEST_FILL_SECONDS, backlog, bears_rounds, pinned, saturation
from bench.peers.measures_latency import half, idle, spike, steady
from bench.peers.measures_recovery import PAUSE_SECONDS, recovery, recovery_group
from bench.peers.measures_throughput import bulk, drain1, drain2, single
from bench.peers.measuring import Figure, Subject
from bench.peers.sizing import Scale

#: What goes before and after every sample: a store, two interpreters, their end.
AROUND_SECONDS = 3.5


@dataclass(frozen=True, kw_only=True)
class Measure:
    """How it is taken: by one peer after the other (`take`), or by all of them at the same time (`together`)."""

    name: str
    take: Callable[[Subject], Figure] | None = None
    together: Callable[[Iterable[Subject]], Mapping[str, Figure | NoFigure]] | None = None
    #: About how long one sample takes: of one peer, or of all when it is taken together.
    seconds: Callable[[Peer, Scale], float]
    #: Whether a peer can be asked at all. What it cannot do for a reason of its own is not said here.
    fits: Callable[[Peer], bool] = lambda _: True


def _filled(peer: Peer, scale: Scale, jobs: float) -> float:
    return jobs / (peer.bulk_rate or peer.enqueue_rate) + scale.drain_seconds


def _pinned_seconds(peer: Peer, scale: Scale) -> float:
    if not bears_rounds(peer, scale):
        return 0.0
    jobs = scale.pinned_round_jobs
    return scale.pinned_rounds * (jobs / peer.rate + jobs / (peer.bulk_rate or peer.enqueue_rate) + 2)


def _backlog_seconds(peer: Peer, scale: Scale) -> float:
    fill = scale.backlog_jobs / peer.bulk_rate if peer.bulk_rate else 0.0
    return fill + scale.backlog_seconds if fill < LONGEST_FILL_SECONDS else 0.0


MEASURES: tuple[Measure, ...] = (
    Measure(
        name="drain1",
        take=drain1,
        seconds=lambda peer, scale: _filled(peer, scale, peer.rate * scale.drain_seconds),
    ),
    Measure(
        name="drain2",
        take=drain2,
        seconds=lambda peer, scale: _filled(peer, scale, 1.5 * peer.rate * scale.drain_seconds),
    ),
    Measure(name="single", take=single, seconds=lambda _, scale: scale.seconds),
    Measure(name="bulk", take=bulk, seconds=lambda peer, scale: scale.seconds if peer.bulk_rate else 0.0),
    Measure(name="idle", take=idle, seconds=lambda _, scale: scale.latency_jobs * 0.04 + 1),
    Measure(name="half", take=half, seconds=lambda _, scale: scale.load_seconds + 1),
    Measure(
        name="recovery",
        together=recovery,
        seconds=lambda _, scale: scale.recovery_seconds + 30 * PAUSE_SECONDS + 30,
    ),
    Measure(
        name="recovery_group",
        together=recovery_group,
        seconds=lambda _, scale: scale.recovery_seconds + 30 * PAUSE_SECONDS + 30,
    ),
    Measure(
        name="steady",
        take=steady,
        seconds=lambda _, scale: scale.steady_tries * (scale.load_seconds + AROUND_SECONDS + 1),
    ),
    Measure(name="spike", take=spike, seconds=lambda _, scale: 3 * scale.calm_seconds + 1.5 * scale.spike_seconds),
    Measure(name="pinned", take=pinned, seconds=_pinned_seconds, fits=lambda peer: peer.store == "postgres"),
    Measure(name="backlog", take=backlog, seconds=_backlog_seconds),
    Measure(
        name="saturation",
        take=saturation,
        seconds=lambda _, scale: 3 * (2 * scale.seconds + AROUND_SECONDS),
    ),
)

#: What a quick run asks of the peers on each store: what the targets are about, and a little more.
QUICK_MEASURES: Mapping[str, tuple[str, ...]] = {
    "postgres": ("drain1", "drain2", "single", "bulk", "idle", "recovery"),
    "sqlite": ("drain1", "drain2", "recovery"),
    "redis": ("drain1", "recovery"),
}

#: Measures that take long, and of whom a quick run asks them: those that their targets are about.
QUICK_LONG: Mapping[str, tuple[str, ...]] = {"pinned": ("ropeway-postgres", "awa-pg")}


def in_quick_run(measure: Measure, peer: Peer, repeat: int) -> bool:
    """Whether a quick run takes this sample; what takes long is done once."""
    if measure.name in QUICK_LONG:
        return peer.name in QUICK_LONG[measure.name] and repeat == 1
    return measure.name in QUICK_MEASURES.get(peer.store, ()) and (measure.together is None or repeat == 1)


def named(names: Iterable[str]) -> tuple[Measure, ...]:
    """Those of these names, in their usual order; ValueError for a wrong one."""
    wanted = set(names)
    unknown = wanted - {measure.name for measure in MEASURES}
    if unknown:
        raise ValueError(
            f"no measure is called {', '.join(sorted(unknown))}; there are {', '.join(m.name for m in MEASURES)}"
        )
    return tuple(measure for measure in MEASURES if measure.name in wanted)
