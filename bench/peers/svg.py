"""Drawing by hand: a canvas that makes an SVG which reads well on a light and on a dark page, and a few scales.

Colours are classes, given twice in the style sheet; the picture brings its own background, so it stays readable
where a page and its reader disagree about light and dark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif"

#: Lines of several peers in one chart, told apart by more than their hue: (light, dark).
LINE_COLOURS = (
    ("#0f6ab4", "#5cb3ff"),
    ("#7a3fb0", "#c792ea"),
    ("#0b7a5e", "#3fcf9f"),
    ("#a0356b", "#f28ab8"),
    ("#5b6b12", "#bccf4f"),
    ("#00798c", "#4fd0e0"),
    ("#6b5b4d", "#c9b59f"),
    ("#4a56c4", "#9aa5ff"),
    ("#8a5a00", "#e6bd5c"),
    ("#5f6670", "#a9b1bb"),
)

#: Class, what it colours, on light, on dark. Text has a contrast of at least 4.5 to its ground, shapes at least 3.
_COLOURS: tuple[tuple[str, str, str, str], ...] = (
    ("ground", "fill", "#ffffff", "#11161d"),
    ("frame", "stroke", "#d5dbe1", "#2d343d"),
    ("ink", "fill", "#1a2028", "#e8edf2"),
    ("quiet", "fill", "#566170", "#9aa6b4"),
    ("ours-ink", "fill", "#b23a06", "#ff9a56"),
    ("grid", "stroke", "#e3e8ed", "#252c35"),
    ("axis", "stroke", "#a9b3be", "#4a5562"),
    ("bar", "fill", "#8390a0", "#66758a"),
    ("bar-ours", "fill", "#d9480f", "#f5813a"),
    ("bar-kin", "fill", "#e8894f", "#b8612c"),
    ("whisker", "stroke", "#1a2028", "#e8edf2"),
    ("stem", "stroke", "#a9b3be", "#566373"),
    ("stem-ours", "stroke", "#e8894f", "#c96b2c"),
    ("dot", "fill", "#5b6878", "#a3b0bf"),
    ("dot-ours", "fill", "#d9480f", "#f5813a"),
    ("ring", "stroke", "#5b6878", "#a3b0bf"),
    ("ring-ours", "stroke", "#d9480f", "#f5813a"),
    ("line-ours", "stroke", "#d9480f", "#f5813a"),
    ("line-kin", "stroke", "#e8894f", "#b8612c"),
    ("dot-kin", "fill", "#e8894f", "#b8612c"),
    *((f"line-{at}", "stroke", light, dark) for at, (light, dark) in enumerate(LINE_COLOURS)),
    *((f"name-{at}", "fill", light, dark) for at, (light, dark) in enumerate(LINE_COLOURS)),
)

#: What XML cannot hold, however it is written.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def safe(text: str) -> str:
    """Any text as the content or an attribute of an element."""
    kept = _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
    for sign, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        kept = kept.replace(sign, written)
    return kept


def width_of(text: str, size: float = 12.0, *, bold: bool = False) -> float:
    """About how wide a text is: a little too wide in most fonts, so that nothing touches."""
    size *= 1.14 if bold else 1.0
    narrow = sum(sign in "iljtfr.,:;'|!()[] /·" for sign in text)
    wide = sum(sign in "mwMW@%—→×" for sign in text)
    return size * (0.6 * (len(text) - narrow - wide) + 0.36 * narrow + 0.92 * wide)


def shortened(text: str, room: float, size: float = 12.0) -> str:
    """The text, or as much of it as fits."""
    if width_of(text, size) <= room:
        return text
    while text and width_of(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"


class Canvas:
    """Shapes in the order in which they are drawn, then the finished picture."""

    def __init__(self, width: float, height: float) -> None:
        self.width = width
        self.height = height
        self._parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        style: str = "ink",
        *,
        size: float = 12,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}"{weight}>'
            f"{safe(words)}</text>"
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, style: str, *, width: float = 1, dashed: bool = False
    ) -> None:
        dashes = ' stroke-dasharray="3 3"' if dashed else ""
        self._parts.append(
            f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
            f'stroke-width="{width:g}"{dashes}/>'
        )

    def bar(self, x: float, y: float, width: float, height: float, style: str, *, tip: str = "") -> None:
        self._parts.append(
            f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" '
            f'height="{height:.1f}" rx="2">'
            f"<title>{safe(tip)}</title></rect>"
        )

    def dot(self, x: float, y: float, radius: float, style: str, *, tip: str = "") -> None:
        """A filled dot; a class of the rings makes it an empty one."""
        hollow = ' stroke-width="2" fill-opacity="0"' if style.startswith("ring") else ""
        self._parts.append(
            f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"{hollow}>'
            f"<title>{safe(tip)}</title></circle>"
        )

    def path(self, points: Sequence[tuple[float, float]], style: str, *, width: float = 2) -> None:
        where = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(
            f'<polyline class="{style}" points="{where}" fill="none" stroke-width="{width:g}" '
            'stroke-linejoin="round" stroke-linecap="round"/>'
        )

    def arrow(self, x: float, y: float, style: str) -> None:
        """A head that points to the right: it goes on beyond the chart."""
        self._parts.append(
            f'<path class="{style}" d="M{x - 5:.1f} {y - 5:.1f}L{x + 4:.1f} {y:.1f}L{x - 5:.1f} {y + 5:.1f}Z"/>'
        )

    def finished(self, title: str, told: str) -> str:
        """The picture; `title` and `told` are what a screen reader says."""
        body = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'width="{self.width:g}" height="{self.height:g}" role="img" aria-labelledby="title told">\n'
            f'<title id="title">{safe(title)}</title>\n<desc id="told">{safe(told)}</desc>\n'
            f"<style>{_style()}</style>\n"
            f'<rect class="ground frame" x="0.5" y="0.5" width="{self.width - 1:g}" height="{self.height - 1:g}" '
            'rx="8"/>\n'
            f"{body}\n</svg>\n"
        )


def _style() -> str:
    light = "".join(f".{name}{{{what}:{colour}}}" for name, what, colour, _ in _COLOURS)
    dark = "".join(f".{name}{{{what}:{colour}}}" for name, what, _, colour in _COLOURS)
    return (
        f"text{{font-family:{_FONT};font-variant-numeric:tabular-nums}}{light}"
        f"@media (prefers-color-scheme: dark){{{dark}}}"
    )


# ── scales ──


def round_steps(top: float, about: int = 5) -> list[float]:
    """Round numbers from 0 to `top` or just below it."""
    if top <= 0:
        return [0.0]
    raw = top / about
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
    return [step * at for at in range(int(top / step + 1e-9) + 1)]


def log_steps(low: float, high: float) -> list[float]:
    """Steps of 1, 2 and 5 in every power of ten, from `low` or just below to `high` or just above."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    every = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    first = max(step for step in every if step <= low * 1.001)
    last = min(step for step in every if step >= high * 0.999 and step > first)
    return [step for step in every if first <= step <= last]


def is_power_of_ten(value: float) -> bool:
    return math.isclose(math.log10(value), round(math.log10(value)), abs_tol=1e-9)


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones, at least `gap` from one another, between `low` and `high`.

    Where all of them do not fit, they lie closer.
    """
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda at: wanted[at])
    down = _pushed(wanted, order, gap, low, high)
    up = [-place for place in _pushed([-place for place in wanted], order[::-1], gap, -high, -low)]
    # One keeps the distances by moving down, the other by moving up; the middle between them keeps them as well.
    return [(one + other) / 2 for one, other in zip(down, up, strict=True)]


def _pushed(wanted: Sequence[float], order: Sequence[int], gap: float, low: float, high: float) -> list[float]:
    placed = list(wanted)
    least = low
    for at in order:
        placed[at] = max(placed[at], least)
        least = placed[at] + gap
    most = high
    for at in reversed(order):
        placed[at] = min(placed[at], most)
        most = placed[at] - gap
    return placed


def short(value: float) -> str:
    """For an axis: 250 / 5k / 1.5M."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{sign}"
    return f"{value:.3g}"
