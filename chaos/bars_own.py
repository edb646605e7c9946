"""The bars that experiments judge themselves: what their runs have to show, and to have noted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chaos.bars_verdict import Figures, Judged, Runs, judge, named, total


@dataclass(frozen=True, kw_only=True)
class OwnBar:
    """The runs of some experiments: so many faults, no rule broken, and what every one of them has to have noted.

    Notes go by the beginning of their names, and the largest of all runs is told.
    """

    name: str
    wanted: str
    ids: tuple[str, ...]
    #: What one of its faults is.
    fault: str = "faults"
    least: int = 1
    #: The most that a note may be.
    at_most: Mapping[str, float] = field(default_factory=dict)
    #: Notes of what was looked at: nothing proves nothing.
    some: tuple[str, ...] = ()
    #: Notes that are told and decide nothing.
    told: tuple[str, ...] = ()

    def judge(self, runs: Runs) -> Judged:
        own = [run for run in runs if run["experiment"] in self.ids]
        faults, violations = total(own, "faults"), total(own, "violations")
        wanting = [run for run in own if not self._noted(run)]
        met = faults >= self.least and not violations and not wanting
        words = [f"{faults:,} {self.fault}", f"runs: {len(own)}", f"violations: {violations}"]
        words += [f"not measured in {named(run)}" for run in wanting if self._silent(run)]
        words += self._largest(own)
        return judge(f"{self.name} ({' '.join(self.ids)})", self.wanted, "; ".join(words), own, met=met)

    def _noted(self, run: Figures) -> bool:
        """Whether the run noted all that is wanted, and it is as it is wanted."""
        most = {name: noted(run, name) for name in self.at_most}
        some = [noted(run, name) for name in self.some]
        return all(value is not None and value <= self.at_most[name] for name, value in most.items()) and all(some)

    def _silent(self, run: Figures) -> bool:
        return any(noted(run, name) is None for name in (*self.at_most, *self.some))

    def _largest(self, runs: Runs) -> list[str]:
        largest: dict[str, float] = {}
        for run in runs:
            for name, value in run["notes"].items():
                if name.startswith((*self.at_most, *self.some, *self.told)):
                    largest[name] = max(value, largest.get(name, value))
        return [f"{name}: {value:g}" for name, value in largest.items()]


def noted(run: Figures, beginning: str) -> float | None:
    """The note whose name begins so; the largest if there are several."""
    return max((float(value) for name, value in run["notes"].items() if name.startswith(beginning)), default=None)


OWN_BARS = (
    OwnBar(
        name="the database restarts",
        wanted="90 % of the starts within 10 s, nobody's help, no process of ours ends",
        ids=("E04", "E05"),
        fault="crashes",
        at_most={"back to 90 %": 10.0},
        some=("outages measured",),
    ),
    OwnBar(
        name="a synchronous standby takes over",
        wanted="0 lost in at least 20",
        ids=("E06",),
        fault="failovers",
        least=20,
    ),
    OwnBar(
        name="a standby takes over that is not synchronous",
        wanted="at least 10, the loss measured and told",
        ids=("E06A",),
        fault="failovers",
        least=10,
        some=("accepted and lost",),
        told=("",),
    ),
    OwnBar(
        name="poison pills",
        wanted="dead after exactly 3 deaths, all other jobs done",
        ids=("E12",),
        fault="pills",
        some=("pills",),
        told=("kinds of pills", "share of them with pills"),
    ),
    OwnBar(
        name="blocked loops",
        wanted="0 false reclaims at 5 leases",
        ids=("E13",),
        fault="blockers",
        some=("blocked for five leases",),
        told=("longest hold until it was killed",),
    ),
    OwnBar(
        name="clocks ±10 min wrong, ±1 h jumps",
        wanted="0 changed outcomes",
        ids=("E14",),
        fault="jumps",
    ),
    OwnBar(
        name="the database's clock steps by ±1 h",
        wanted="each lease expires at most once, nothing is lost",
        ids=("E15",),
        fault="steps",
        some=("steps forward", "steps back"),
        told=("leases taken by steps forward",),
    ),
    OwnBar(
        name="workers told to stop",
        wanted="no attempt wasted; given back, and the worker gone, within 1 s of the deadline of 2 s",
        ids=("E33",),
        fault="stops",
        at_most={"longest stop": 3.0, "last given back after the deadline": 1.0},
        some=("given back",),
        told=("fewest jobs of a worker told to stop",),
    ),
    OwnBar(
        name="secrets in what others can see",
        wanted="0",
        ids=("E35",),
        fault="faults",
        at_most={"hits": 0.0},
        some=("canaries",),
    ),
)
