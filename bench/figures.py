"""Figures and their targets, printed for people or as JSON."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import asdict, dataclass, field


@dataclass
class Figure:
    """One measured value. `target` is a floor, or a ceiling when `at_most`."""

    name: str
    value: float
    unit: str
    target: float | None = None
    at_most: bool = False
    note: str = ""

    @property
    def ok(self) -> bool:
        if self.target is None:
            return True
        return self.value <= self.target if self.at_most else self.value >= self.target


@dataclass
class Report:
    """All figures of one run, with what they were measured on."""

    engine: str
    version: str
    figures: list[Figure] = field(default_factory=list)

    def add(self, figure: Figure, *, quiet: bool) -> None:
        self.figures.append(figure)
        if not quiet:
            print(_line(figure), flush=True)

    @property
    def misses(self) -> list[Figure]:
        return [figure for figure in self.figures if not figure.ok]

    def as_json(self) -> str:
        return json.dumps(
            {
                "engine": self.engine,
                "version": self.version,
                "python": platform.python_version(),
                "cores": os.cpu_count(),
                "figures": [{**asdict(figure), "ok": figure.ok} for figure in self.figures],
            },
            indent=2,
        )


def _line(figure: Figure) -> str:
    value = f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.2f}"
    target = ""
    if figure.target is not None:
        bound = "at most" if figure.at_most else "at least"
        target = f"{'ok' if figure.ok else 'MISS':>6}, {bound} {figure.target:,g}"
    return f"{figure.name:<44} {value:>12} {figure.unit:<8}{target}  {figure.note}".rstrip()


def say(text: str, *, quiet: bool) -> None:
    """A heading for people; nothing when the output is JSON."""
    if not quiet:
        print(f"\n{text}", file=sys.stdout, flush=True)
