"""Lengths of time in words, for pages and messages alike."""

from __future__ import annotations

from itertools import pairwise

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def in_words(seconds: float) -> str:
    """To two units: 850 ms, 3.2 s, 4 min 10 s, 2 h 5 min, 3 d 4 h. Less than nothing is nothing."""
    seconds = max(0.0, seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    whole = round(seconds)
    for (unit, size), (small_unit, small) in pairwise(_UNITS):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{whole} s"


def roughly(seconds: float) -> str:
    """To one unit: 5 s, 4 min, 2 h, 3 d. The dashboard's script has the same rule, to keep what it reads true."""
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
