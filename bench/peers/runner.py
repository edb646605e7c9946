"""Takes the samples: in turns, with what is there already left out, each one saved as soon as it is taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.catalogue import Peer
from bench.peers.environments import Environment
from bench.peers.failing import NeverHappened, NoFigure, PeerFailed, Unsupported
from bench.peers.measures import AROUND_SECONDS, Measure
from bench.peers.measuring import Figure, Subject
from bench.peers.places import Places
from bench.peers.results import FAILED, NEVER, UNSUPPORTED, Results
from bench.peers.sizing import Scale

_STATUS: dict[type[NoFigure], str] = {PeerFailed: FAILED, Unsupported: UNSUPPORTED, NeverHappened: NEVER}


@dataclass(frozen=True)
class Step:
    """One measure, one repeat: of one peer, or of all at the same time."""

    measure: Measure
    repeat: int
    peers: tuple[Peer, ...]


def always(_measure: Measure, _peer: Peer, _repeat: int) -> bool:
    return True


def plan(
    measures: Sequence[Measure],
    peers: Sequence[Peer],
    repeats: int,
    *,
    results: Results,
    by_repeat: bool = False,
    wanted: Callable[[Measure, Peer, int], bool] = always,
) -> list[Step]:
    """Who is asked what, in order: for each measure and repeat all peers in turn, so that a machine that becomes
    slower does so for everybody. `by_repeat` takes every measure once before any is taken twice, and what may be
    left out for lack of time last: those on Redis, which no target but recovery is about.

    What `results` holds already is left out, and so is what is not `wanted`.
    """
    turns = [(measure, repeat) for measure in measures for repeat in range(1, repeats + 1)]
    steps: list[Step] = []
    for measure, repeat in turns:
        asked = tuple(
            peer
            for peer in peers
            if measure.fits(peer)
            and wanted(measure, peer, repeat)
            and not results.has(measure.name, peer.name, repeat)
        )
        in_turn = _rotated(asked, repeat - 1, repeats)
        groups = [asked] if measure.together is not None else [(peer,) for peer in in_turn]
        steps += [Step(measure, repeat, group) for group in groups if group]
    if by_repeat:
        steps.sort(key=lambda step: (step.repeat, step.measure.together is None, step.peers[0].store == "redis"))
    return steps


def _rotated(peers: tuple[Peer, ...], turn: int, turns: int) -> tuple[Peer, ...]:
    """Another one begins each time: who comes first finds the machine as the round before has left it."""
    start = turn * len(peers) // turns
    return peers[start:] + peers[:start]


class Runner:
    """Goes through a plan. `say` hears one line per sample; results are saved after each."""

    def __init__(
        self,
        results: Results,
        path: Path,
        *,
        environments: Mapping[str, Environment],
        places: Places,
        scale: Scale,
        say: Callable[[str], None],
        ends_at: float | None = None,
    ) -> None:
        self._results = results
        self._path = path
        self._environments = environments
        self._places = places
        self._scale = scale
        self._say = say
        #: By the monotonic clock: no step is begun that would not be over by then.
        self._ends_at = ends_at
        self._taken: dict[str, list[float]] = {}

    def run(self, steps: Sequence[Step]) -> list[Step]:
        """Take them all; those that there was no time for."""
        left_out: list[Step] = []
        for number, step in enumerate(steps):
            if self._ends_at is not None and time.monotonic() + self.expected(step) > self._ends_at:
                left_out.append(step)
                continue
            left = sum(map(self.expected, steps[number:]))
            began = time.monotonic()
            found = self._take(step)
            self._taken.setdefault(step.measure.name, []).append(
                (time.monotonic() - began) / max(1e-9, self._guess(step))
            )
            for peer, figure in found.items():
                self._keep(step, peer, figure)
                self._say(f"[{number + 1}/{len(steps)}, {_duration(left)} left] {_line(step, peer, figure)}")
            self._results.stores.update(self._places.facts)
            self._results.save(self._path)
        return left_out

    def expected(self, step: Step) -> float:
        """Seconds: what the sizes say, corrected by how this measure has turned out so far."""
        ratios = self._taken.get(step.measure.name)
        return self._guess(step) * (sum(ratios) / len(ratios) if ratios else 1.0)

    def _guess(self, step: Step) -> float:
        return max(step.measure.seconds(peer, self._scale) for peer in step.peers) + AROUND_SECONDS

    def _take(self, step: Step) -> dict[str, Figure | NoFigure]:
        subjects = [
            Subject(peer, self._environments[peer.name], self._places, self._scale, self._results)
            for peer in step.peers
        ]
        if step.measure.together is not None:
            return dict(step.measure.together(subjects))
        assert step.measure.take is not None
        (subject,) = subjects
        try:
            return {subject.peer.name: step.measure.take(subject)}
        except NoFigure as reason:
            return {subject.peer.name: reason}
        except Exception as error:  # noqa: BLE001 - one peer's trouble must not stop the rest
            return {subject.peer.name: PeerFailed(f"{type(error).__name__}: {error}")}

    def _keep(self, step: Step, peer: str, found: Figure | NoFigure) -> None:
        name, repeat = step.measure.name, step.repeat
        if isinstance(found, Figure):
            store = self._results.store(peer)
            versions = {
                peer: self._environments[peer].version,
                store: str(self._places.facts.get(store, {}).get("version", "")),
            }
            self._results.add(name, peer, repeat, found.value, found.unit, extra=found.extra, versions=versions)
        else:
            self._results.add_missing(name, peer, repeat, _STATUS[type(found)], str(found), extra=found.extra)


def _line(step: Step, peer: str, found: Figure | NoFigure) -> str:
    what = f"{step.measure.name:<14} {peer:<26} #{step.repeat}"
    if not isinstance(found, Figure):
        return f"{what}  {_STATUS[type(found)]}: {found}"
    value = f"{found.value:,.0f}" if found.value >= 100 else f"{found.value:.2f}"
    more = [f"{name} {found.extra[name]:.1f}" for name in ("p99", "max") if name in found.extra]
    if not found.extra.get("exactly_once", True):
        more.append(f"NOT EXACTLY ONCE: {found.extra['ran_by_count']}")
    return f"{what}  {value:>9} {found.unit}{'  ' if more else ''}{', '.join(more)}"


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return (
        f"{minutes / 60:.1f} h" if minutes > 90 else f"{minutes:.0f} min" if minutes >= 1 else f"{seconds:.0f} s"
    )
