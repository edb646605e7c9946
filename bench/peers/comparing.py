"""One figure of a peer beside Ropeway's: who is ahead, and by how much."""

from __future__ import annotations

from typing import NamedTuple

from bench.peers.columns import Column
from bench.peers.results import Results, Spread, is_ours


class Comparison(NamedTuple):
    """How many times better Ropeway is. None: one of the two never got there, so there is nothing to divide."""

    ours: str
    peer: str
    times: Spread | None
    ropeway_ahead: bool

    @property
    def level(self) -> bool:
        """Whether the repeats do not agree on who is ahead."""
        return self.times is not None and self.times.low < 1 < self.times.high


def compare(results: Results, column: Column, ours: str, peer: str) -> Comparison | None:
    """None when one of the two was not measured. More than 1 is always in Ropeway's favour."""
    if results.never(column.measure, peer) and results.values(column.measure, ours, column.name):
        return Comparison(ours, peer, None, ropeway_ahead=True)
    if results.never(column.measure, ours) and results.values(column.measure, peer, column.name):
        return Comparison(ours, peer, None, ropeway_ahead=False)
    ratio = results.ratio(column.measure, ours, peer, column.name)
    if ratio is None:
        return None
    if column.low:
        if not ratio.low:
            return None  # a figure of nothing: seconds until a p99 is back that never left
        ratio = Spread(1 / ratio.median, 1 / ratio.high, 1 / ratio.low, ratio.repeats, ratio.unit)
    return Comparison(ours, peer, ratio, ropeway_ahead=ratio.median >= 1)


def ranked(results: Results, column: Column, names: list[str]) -> list[str]:
    """The best first; who has no figure last, in the order given."""

    def place(name: str) -> tuple[bool, float]:
        figure = results.figure(column.measure, name, column.name)
        if figure is None:
            return True, 0.0
        return False, figure.median if column.low else -figure.median

    return sorted(names, key=place)


def title(results: Results, peer: str, *, beside: str = "") -> str:
    """A system's name with its version, and what it is if it is no Python job queue."""
    known = results.peers.get(peer, {})
    words = results.label(peer)
    version = str(known.get("version") or "")
    if version and not is_ours(peer) and version not in words:
        words += f" {version}"
    if known.get("language") == "node":
        words += " (Node)"
    if known.get("kind") == "messages":
        words += " (messages)"
    return words + beside
