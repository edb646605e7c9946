"""Charts with lines in panels, each line named at its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.peers.chart_rows import EDGE, WIDTH, Heading, started
from bench.peers.svg import LINE_COLOURS, Canvas, apart, round_steps, short, width_of

_NAME = 11.5


@dataclass(frozen=True)
class Line:
    """Points of one system, from left to right; `kin` is one more way in which Ropeway itself was run."""

    label: str
    points: Sequence[tuple[float, float]]
    ours: bool = False
    kin: bool = False
    colour: int = 0

    @property
    def stroke(self) -> str:
        return "line-ours" if self.ours else "line-kin" if self.kin else f"line-{self.colour % len(LINE_COLOURS)}"

    @property
    def dot(self) -> str:
        return "dot-ours" if self.ours else "dot-kin" if self.kin else f"name-{self.colour % len(LINE_COLOURS)}"

    @property
    def ink(self) -> str:
        return "ours-ink" if self.ours or self.kin else f"name-{self.colour % len(LINE_COLOURS)}"


@dataclass(frozen=True)
class Panel:
    """One set of axes; y starts at 0."""

    title: str
    across: str
    lines: Sequence[Line]
    logarithmic: bool = False
    #: How values of y are written on the axis.
    written: Callable[[float], str] = short
    #: A line across the panel that the eye needs to compare with.
    level: float | None = None


@dataclass(frozen=True)
class Facts:
    """A panel of words: rows under a row of heads, the first cell at the left, the others at the right."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def lines(heading: Heading, panels: Sequence[Panel | Facts], *, across: int, panel_height: float) -> str:
    """The panels in rows of `across`."""
    deep = math.ceil(len(panels) / across)
    top, between = 88.0, 30.0
    canvas = started(heading, top + deep * (panel_height + between) + 12)
    room = (WIDTH - 2 * EDGE - between * (across - 1)) / across
    told = []
    for at, panel in enumerate(panels):
        x = EDGE + (at % across) * (room + between)
        y = top + (at // across) * (panel_height + between)
        canvas.text(x, y + 6, panel.title, "ink", size=13, bold=True)
        if isinstance(panel, Facts):
            _write_facts(canvas, panel, x, y + 30, room)
            told.append("; ".join(" ".join(row) for row in panel.rows))
        elif any(line.points for line in panel.lines):
            _draw_panel(canvas, panel, _Axes(panel, x, y + 24, room, panel_height - 58))
            told.append(f"{panel.title}: {', '.join(line.label for line in panel.lines)}")
    return canvas.finished(heading.title, f"{heading.told} {'. '.join(told)}")


class _Axes:
    """Where a value of a panel lies on the canvas."""

    def __init__(self, panel: Panel, x: float, y: float, width: float, height: float) -> None:
        points = [point for line in panel.lines for point in line.points]
        highest = max(max(up for _, up in points), panel.level or 0) * 1.04
        self.steps = round_steps(highest, 4)
        self.across = sorted({along for along, _ in points})
        self._highest = highest or 1.0
        self._logarithmic = panel.logarithmic
        named = max(width_of(line.label, _NAME, bold=line.ours) for line in panel.lines)
        self.top, self.bottom = y, y + height
        self.left = x + max(width_of(panel.written(step), 11) for step in self.steps) + 8
        self.right = x + width - named - 16

    def x(self, value: float) -> float:
        first, last = self._along(self.across[0]), self._along(self.across[-1])
        share = (self._along(value) - first) / (last - first) if last > first else 0.5
        return self.left + share * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - value / self._highest * (self.bottom - self.top)

    def _along(self, value: float) -> float:
        """0 has no logarithm: it stands one power of ten left of the smallest value that has one."""
        if not self._logarithmic:
            return value
        if value > 0:
            return math.log10(value)
        return min((math.log10(each) for each in self.across if each > 0), default=1.0) - 1


def _draw_panel(canvas: Canvas, panel: Panel, axes: _Axes) -> None:
    for step in axes.steps:
        canvas.line(axes.left, axes.y(step), axes.right, axes.y(step), "axis" if step == 0 else "grid")
        canvas.text(axes.left - 6, axes.y(step) + 4, panel.written(step), "quiet", size=11, anchor="end")
    if panel.level is not None:
        canvas.line(axes.left, axes.y(panel.level), axes.right, axes.y(panel.level), "axis", dashed=True)
    _label_across(canvas, axes)
    canvas.text((axes.left + axes.right) / 2, axes.bottom + 31, panel.across, "quiet", size=11, anchor="middle")
    # Ropeway last, so that no other line covers its own.
    for line in sorted(panel.lines, key=lambda line: (line.ours, line.kin)):
        placed = [(axes.x(along), axes.y(up)) for along, up in line.points]
        canvas.path(placed, line.stroke, width=3 if line.ours else 1.8)
        for x, y in placed if len(placed) <= 12 else ():
            canvas.dot(x, y, 2.6, line.dot)
    _name_lines(canvas, [line for line in panel.lines if line.points], axes)


def _name_lines(canvas: Canvas, named: Sequence[Line], axes: _Axes) -> None:
    """The names at the right; one that is not where its line ends is tied to it."""
    wanted = [axes.y(line.points[-1][1]) for line in named]
    for line, end, place in zip(named, wanted, apart(wanted, 14, axes.top - 8, axes.bottom), strict=True):
        last = axes.x(line.points[-1][0])
        if abs(end - place) > 3 or last < axes.right - 3:
            canvas.line(last + 3, end, axes.right + 10, place, "axis", width=0.8, dashed=last < axes.right - 3)
        canvas.text(axes.right + 12, place + 4, line.label, line.ink, size=_NAME, bold=line.ours)


def _label_across(canvas: Canvas, axes: _Axes) -> None:
    """As many of the values as have room, the last one first."""
    free = math.inf
    for value in reversed(axes.across):
        half = width_of(short(value), 11) / 2
        if axes.x(value) + half + 6 <= free:
            canvas.text(axes.x(value), axes.bottom + 16, short(value), "quiet", size=11, anchor="middle")
            free = axes.x(value) - half


def _write_facts(canvas: Canvas, facts: Facts, x: float, y: float, width: float) -> None:
    columns = len(facts.heads)
    step = (width * 0.66) / max(1, columns - 1)
    for at, row in enumerate([facts.heads, *facts.rows]):
        for column, words in enumerate(row):
            where = x if column == 0 else x + width - step * (columns - 1 - column)
            canvas.text(
                where, y + 23 * at, words, "quiet" if at == 0 else "ink",
                size=12, anchor="start" if column == 0 else "end", bold=at == 0,
            )  # fmt: skip
