"""Charts with a row per system: bars side by side, or dots on a scale of powers of ten.

They know nothing of results: texts and numbers come in, an SVG goes out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.peers.svg import Canvas, is_power_of_ten, log_steps, round_steps, shortened, width_of

WIDTH = 880.0
EDGE = 24.0
ROW = 27.0
LABEL = 12.5


@dataclass(frozen=True)
class Heading:
    """What stands above and below a chart."""

    title: str
    told: str
    foot: str


@dataclass(frozen=True)
class Mark:
    """One figure: its value and how far the repeats lie apart; without a value only its words are shown."""

    words: str
    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Row:
    """A system in a chart: `kin` is one more way in which Ropeway itself was run."""

    label: str
    marks: Sequence[Mark]
    ours: bool = False
    kin: bool = False

    @property
    def bar(self) -> str:
        return "bar-ours" if self.ours else "bar-kin" if self.kin else "bar"

    @property
    def ink(self) -> str:
        return "ours-ink" if self.ours or self.kin else "ink"


def bars(
    heading: Heading, panels: Sequence[tuple[str, str]], rows: Sequence[Row], *, same_scale: bool = False
) -> str:
    """One row per system, one panel per measure (its title and unit), the value at the end of each bar."""
    labels = _label_room(rows)
    top = 116.0
    height = top + ROW * len(rows) + 44
    canvas = started(heading, height)
    room = (WIDTH - 2 * EDGE - labels) / len(panels)
    tops = [max((_reach(row.marks[at]) for row in rows), default=0.0) or 1.0 for at in range(len(panels))]
    if same_scale:
        tops = [max(tops)] * len(panels)
    for at, (title, unit) in enumerate(panels):
        left = EDGE + labels + at * room
        words = max(
            (width_of(row.marks[at].words) for row in rows if row.marks[at].value is not None), default=0.0
        )
        scale = (room - words - 26) / tops[at]
        canvas.text(left, top - 29, shortened(title, room - 12, 12.5), "ink", size=12, bold=True)
        canvas.text(left, top - 13, unit, "quiet", size=11.5)
        bottom = top + ROW * len(rows)
        for step in round_steps(tops[at], 3 if room < 300 else 4):
            x = left + step * scale
            canvas.line(x, top - 4, x, bottom, "axis" if step == 0 else "grid")
        for index, row in enumerate(rows):
            _draw_bar(canvas, row, row.marks[at], left, top + ROW * index, scale)
    for index, row in enumerate(rows):
        _row_label(canvas, row, top + ROW * index + ROW / 2, labels)
    return canvas.finished(heading.title, f"{heading.told} {_told_of([title for title, _ in panels], rows)}")


def _draw_bar(canvas: Canvas, row: Row, mark: Mark, left: float, y: float, scale: float) -> None:
    middle = y + ROW / 2
    if mark.value is None:
        canvas.text(left + 6, middle + 4, mark.words, "quiet", size=11.5)
        return
    thick = ROW - 11
    canvas.bar(left, middle - thick / 2, mark.value * scale, thick, row.bar, tip=f"{row.label}: {mark.words}")
    end = left + mark.value * scale
    if mark.low is not None and mark.high is not None and (mark.high - mark.low) * scale >= 2:
        canvas.line(left + mark.low * scale, middle, left + mark.high * scale, middle, "whisker", width=1.2)
        end = max(end, left + mark.high * scale)
    canvas.text(end + 7, middle + 4.2, mark.words, row.ink, size=12, bold=row.ours)


def dots(heading: Heading, names: Sequence[str], rows: Sequence[Row], unit: str) -> str:
    """A logarithmic scale: a dot for the first figure, a ring for the second, a tick for the third, and the
    figures themselves in columns. A row without the first figure ends in an arrow: it lies beyond the scale."""
    labels = _label_room(rows)
    words = [(mark.words, row.ours) for row in rows for mark in row.marks]
    words += [(f"     {name}", True) for name in names]  # with room for its sign
    column = max(width_of(text, bold=bold) for text, bold in words) + 16
    top, left, right = 116.0, EDGE + labels, WIDTH - EDGE - column * len(names) - 12
    bottom = top + ROW * len(rows)
    canvas = started(heading, bottom + 68)
    held = [mark.value for row in rows for mark in row.marks if mark.value]
    steps = log_steps(min(held), max(held)) if held else [1.0, 10.0]
    # What lies beyond the scale gets its own place at the right.
    end = right - (54 if any(row.marks[0].value is None for row in rows) else 14)

    def place(value: float) -> float:
        share = math.log(max(value, steps[0]) / steps[0]) / math.log(steps[-1] / steps[0])
        return left + 8 + share * (end - left - 8)

    for step in steps:
        if len(steps) <= 9 or is_power_of_ten(step):
            canvas.line(place(step), top - 4, place(step), bottom, "grid")
            canvas.text(place(step), bottom + 17, f"{step:,g}", "quiet", size=11, anchor="middle")
    canvas.text((left + end) / 2, bottom + 33, unit, "quiet", size=11, anchor="middle")
    _legend(canvas, names, right + 12, column, top - 16)
    for index, row in enumerate(rows):
        y = top + ROW * index + ROW / 2
        _row_label(canvas, row, y, labels)
        _draw_dots(canvas, row, y, place, right)
        for at, mark in enumerate(row.marks):
            there = right + 12 + column * (at + 1)
            ink = row.ink if mark.value is not None else "quiet"
            canvas.text(there, y + 4.2, mark.words, ink, size=12, anchor="end", bold=row.ours)
    return canvas.finished(heading.title, f"{heading.told} {_told_of(names, rows)}")


def _draw_dots(canvas: Canvas, row: Row, y: float, place: Callable[[float], float], right: float) -> None:
    suffix = "-ours" if row.ours or row.kin else ""
    values = [mark.value for mark in row.marks if mark.value is not None]
    if values:
        canvas.line(place(min(values)), y, place(max(values)), y, f"stem{suffix}", width=2)
    for at, mark in enumerate(row.marks):
        if mark.value is None:
            if at == 0:
                canvas.line(right - 34, y, right - 8, y, f"stem{suffix}", width=2, dashed=True)
                canvas.arrow(right - 6, y, f"dot{suffix}")
            continue
        x, tip = place(mark.value), f"{row.label}: {mark.words}"
        if at == 0:
            canvas.dot(x, y, 5, f"dot{suffix}", tip=tip)
        elif at == 1:
            canvas.dot(x, y, 4.5, f"ring{suffix}", tip=tip)
        else:
            canvas.line(x, y - 6, x, y + 6, f"ring{suffix}", width=2)


def _legend(canvas: Canvas, names: Sequence[str], left: float, column: float, y: float) -> None:
    """The heads of the columns of figures, each with the sign that stands for it in the chart."""
    for at, name in enumerate(names):
        end = left + column * (at + 1)
        canvas.text(end, y, name, "quiet", size=12, anchor="end", bold=True)
        sign = end - width_of(name, bold=True) - 11
        if len(names) == 1:
            continue
        if at == 0:
            canvas.dot(sign, y - 4, 5, "dot")
        elif at == 1:
            canvas.dot(sign, y - 4, 4.5, "ring")
        else:
            canvas.line(sign, y - 10, sign, y + 2, "ring", width=2)


# ── what all of them share ──


def started(heading: Heading, height: float) -> Canvas:
    canvas = Canvas(WIDTH, height)
    room = WIDTH - 2 * EDGE
    canvas.text(EDGE, 36, shortened(heading.title, room, 17), "ink", size=17, bold=True)
    canvas.text(EDGE, 57, shortened(heading.told, room, 12), "quiet", size=12)
    canvas.text(EDGE, height - 14, shortened(heading.foot, room, 11), "quiet", size=11)
    return canvas


def _label_room(rows: Sequence[Row]) -> float:
    widest = max((width_of(row.label, LABEL, bold=row.ours) for row in rows), default=0.0)
    return min(270.0, widest + 14)


def _row_label(canvas: Canvas, row: Row, y: float, room: float) -> None:
    words = shortened(row.label, room - 10, LABEL)
    canvas.text(EDGE + room - 12, y + 4.2, words, row.ink, size=LABEL, anchor="end", bold=row.ours)


def _reach(mark: Mark) -> float:
    return max((value for value in (mark.value, mark.high) if value is not None), default=0.0)


def _told_of(names: Sequence[str], rows: Sequence[Row]) -> str:
    """All figures in words, for those who cannot see them."""
    return " ".join(
        f"{row.label}: {', '.join(f'{name} {mark.words}' for name, mark in zip(names, row.marks, strict=True))}."
        for row in rows
    )
