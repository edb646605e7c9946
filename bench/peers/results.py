"""The results of a run: samples as they were measured, and the figures that are drawn from them.

results.json is a document for others too; `bench.peers.report` and `bench.peers.charts` read nothing else:

    {"machine": {...}, "stores": {"postgres": {"version", "settings": {...}}, ...},
     "peers": {name: {"label", "version", "language", "store", "kind", "packages", "settings", "notes"}},
     "samples": [{"measure", "peer", "repeat", "value", "unit", "extra", "at", "versions", "on"}, ...]}

A run may be gone on with on another machine or with another commit: `on` is what of that decides a figure.

A sample without a value says why: `status` is one of the words below and `reason` a sentence. A peer that could
not be run at all says why in `absent`.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

#: The peer has no such thing: no call for many jobs, no second process.
UNSUPPORTED = "unsupported"
#: It was tried and something went wrong.
FAILED = "failed"
#: It was waited for and did not happen in the time that was given: a job that is not run again.
NEVER = "never"

#: Whom the peers on a store are compared with; the first that was measured. Without an engine of its own on that
#: store, Ropeway stands beside it on PostgreSQL, and the tables say so.
OURS: dict[str, tuple[str, ...]] = {
    "postgres": ("ropeway-postgres",),
    "redis": ("ropeway-redis", "ropeway-postgres"),
    "sqlite": ("ropeway-sqlite",),
    "memory": ("ropeway-memory",),
}


#: What a sample remembers of the machine that it was taken on. Figures of different processors are not compared.
PROCESSOR = "processor"
DECIDING = (PROCESSOR, "Ropeway")

#: Rounds that tell what is left at the end.
LATE_ROUNDS = 3


class Spread(NamedTuple):
    """A figure over all repeats."""

    median: float
    low: float
    high: float
    repeats: int
    unit: str = ""

    @classmethod
    def of(cls, values: list[float], unit: str = "") -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values), unit)


@dataclass
class Results:
    """Everything that is known of a run; may be empty."""

    machine: dict[str, Any] = field(default_factory=dict)
    stores: dict[str, dict[str, Any]] = field(default_factory=dict)
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)

    # ── the file ──

    @classmethod
    def load(cls, path: Path) -> Results:
        """What the file holds; nothing when there is no file."""
        if not path.exists():
            return cls()
        held = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{part: held[part] for part in ("machine", "stores", "peers", "samples") if part in held})

    def save(self, path: Path) -> None:
        """Replace the file as a whole: who is interrupted leaves the old one or the new one, never a half."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(
            {"machine": self.machine, "stores": self.stores, "peers": self.peers, "samples": self.samples},
            indent=1,
            ensure_ascii=False,
            allow_nan=False,
        )
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            with beside.open("w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    # ── adding ──

    def go_on(self, machine: dict[str, Any]) -> None:
        """What is added from now on is measured there; what does not say where, was where it was before."""
        before = _deciding(self.machine)
        for sample in self.samples:
            sample.setdefault("on", before)
        self.machine = machine

    def add(
        self,
        measure: str,
        peer: str,
        repeat: int,
        value: float | None,
        unit: str,
        *,
        extra: Mapping[str, Any] | None = None,
        versions: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """A sample that was measured. Numbers that JSON cannot hold are left out."""
        sample: dict[str, Any] = {
            "measure": measure,
            "peer": peer,
            "repeat": repeat,
            "value": value,
            "unit": unit,
            "extra": {
                name: held
                for name, held in (extra or {}).items()
                if not isinstance(held, float) or math.isfinite(held)
            },
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": dict(versions or {}),
            "on": _deciding(self.machine),
        }
        self._put(sample)
        return sample

    def add_missing(
        self,
        measure: str,
        peer: str,
        repeat: int,
        status: str,
        reason: str,
        *,
        unit: str = "",
        extra: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """A sample without a value: UNSUPPORTED, FAILED or NEVER, and why in words for the table."""
        sample = self.add(measure, peer, repeat, None, unit, extra=extra)
        sample["status"] = status
        sample["reason"] = reason
        return sample

    def has(self, measure: str, peer: str, repeat: int, x: float | None = None) -> bool:
        """Whether this was asked before and need not be asked again: a failure is worth another try."""
        return any(
            _key(sample) == (measure, peer, repeat, x) and sample.get("status") != FAILED
            for sample in self.samples
        )

    def _put(self, sample: dict[str, Any]) -> None:
        """A sample takes the place of the one that answered the same question before."""
        self.samples = [held for held in self.samples if _key(held) != _key(sample)]
        self.samples.append(sample)

    # ── reading ──

    def of(self, measure: str, peer: str) -> list[dict[str, Any]]:
        """All samples of a measure for one peer, by repeat."""
        found = [s for s in self.samples if s["measure"] == measure and s["peer"] == peer]
        return sorted(found, key=lambda sample: sample["repeat"])

    def values(self, measure: str, peer: str, name: str = "value") -> dict[int, float]:
        """By repeat: the sample's value, or what its extra calls `name`. Where there are rounds, the value is that
        of the last ones, and `kept` is what they have left of the first."""
        found: dict[int, float] = {}
        for sample in self.of(measure, peer):
            number = _number(sample, name)
            if number is not None:
                found[sample["repeat"]] = number
        return found

    def figure(self, measure: str, peer: str, name: str = "value") -> Spread | None:
        """The median over the repeats and how far they lie apart; None when it was not measured."""
        values = self.values(measure, peer, name)
        if not values:
            return None
        return Spread.of(list(values.values()), self.unit(measure, peer))

    def processors(self, measure: str, peer: str) -> dict[int, str]:
        """Where a peer's figures of one measure come from, by repeat."""
        here = _deciding(self.machine)
        return {sample["repeat"]: sample.get("on", here).get(PROCESSOR, "") for sample in self.of(measure, peer)}

    def unit(self, measure: str, peer: str) -> str:
        return next((str(sample["unit"]) for sample in self.of(measure, peer) if sample.get("unit")), "")

    def ratio(self, measure: str, ours: str, peer: str, name: str = "value") -> Spread | None:
        """Ours divided by the peer's, repeat by repeat: both were measured minutes apart, so a machine that became
        slower in the meantime does not count against either. A repeat in which they ran on different processors
        says nothing. Without a common repeat, of the medians, if all of them are of one processor."""
        mine, theirs = self.values(measure, ours, name), self.values(measure, peer, name)
        here, there = self.processors(measure, ours), self.processors(measure, peer)
        pairs = [
            mine[repeat] / theirs[repeat]
            for repeat in sorted(mine)
            if theirs.get(repeat) and here[repeat] == there[repeat]
        ]
        alone = len({*here.values(), *there.values()}) == 1
        if not pairs and alone and mine and any(theirs.values()):
            pairs = [statistics.median(mine.values()) / statistics.median(theirs.values())]
        return Spread.of(pairs, "×") if pairs else None

    def missing(self, measure: str, peer: str) -> dict[str, Any] | None:
        """The sample that says why there is no figure; None when there is one or nobody asked."""
        samples = self.of(measure, peer)
        if any(sample["value"] is not None for sample in samples):
            return None
        return samples[-1] if samples else None

    def never(self, measure: str, peer: str) -> bool:
        """Whether what was waited for did not happen in any repeat."""
        missing = self.missing(measure, peer)
        return missing is not None and missing.get("status") == NEVER

    # ── who is who ──

    def label(self, peer: str) -> str:
        return str(self.peers.get(peer, {}).get("label") or peer)

    def store(self, peer: str) -> str:
        return str(self.peers.get(peer, {}).get("store", ""))

    def absent(self) -> dict[str, str]:
        """The peers that did not run, and why: what their environment said, or why every sample failed."""
        found = {}
        for name, peer in self.peers.items():
            samples = [sample for sample in self.samples if sample["peer"] == name]
            if any(sample["value"] is not None or sample.get("status") == NEVER for sample in samples):
                continue
            reasons = [str(sample["reason"]) for sample in samples if sample.get("reason")]
            found[name] = str(peer.get("absent") or (reasons[0] if reasons else "it was not asked to"))
        return found

    def measured(self, measure: str, *, store: str | None = None) -> list[str]:
        """Who has a figure or a reason for this measure, in the order of the peers' list."""
        asked = {sample["peer"] for sample in self.samples if sample["measure"] == measure}
        names = [*self.peers, *sorted(asked - set(self.peers))]
        return [name for name in names if name in asked and store in (None, self.store(name))]

    def ours(self, measure: str, store: str) -> str | None:
        """The Ropeway that peers on this store are compared with in this measure."""
        return next((name for name in OURS.get(store, ()) if self.values(measure, name)), None)


def is_ours(peer: str) -> bool:
    return peer == "ropeway" or peer.startswith("ropeway-")


def belongs(peer: str, project: str) -> bool:
    """Whether an entry is of this project: `saq-redis` is of `saq`, its name plus a store or a variant."""
    return peer == project or peer.startswith(f"{project}-")


def rounds(sample: Mapping[str, Any]) -> list[float]:
    """The rates of the rounds, for a measure that has them."""
    return [float(rate) for rate in sample.get("extra", {}).get("rounds", ())]


def late_rate(rates: Sequence[float]) -> float:
    """What is left at the end: the median of the last three rounds, for one may be slow or quick by chance."""
    return statistics.median(rates[-LATE_ROUNDS:])


def _deciding(machine: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(machine[name]) for name in DECIDING if machine.get(name)}


def _key(sample: Mapping[str, Any]) -> tuple[str, str, int, float | None]:
    return sample["measure"], sample["peer"], sample["repeat"], sample.get("extra", {}).get("x")


def _number(sample: Mapping[str, Any], name: str) -> float | None:
    if sample["value"] is None:
        return None
    rates = rounds(sample)
    if name == "value":
        return late_rate(rates) if rates else float(sample["value"])
    if name == "kept":
        return late_rate(rates) / rates[0] if len(rates) > LATE_ROUNDS and rates[0] else None
    held = sample.get("extra", {}).get(name)
    return float(held) if isinstance(held, int | float) and not isinstance(held, bool) else None
