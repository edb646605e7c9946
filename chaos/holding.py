"""Single calls into C that keep hold of the interpreter for about as long as one wants: E12, E13.

No other thread of the process runs meanwhile, no signal is handled, nothing can be cancelled. How long such a call
takes depends on the machine and on who else is at work on it, so a short one is timed just before.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable

#: How much longer a power takes for twice the exponent: numbers are multiplied after Karatsuba.
POWER_GROWTH = 3.0
#: A call is made so much longer than it is wanted: the machine may be less busy later.
MARGIN = 1.2

SHORT_EXPONENT = 2_000_000
#: Each further letter takes twice as long to find out that nothing fits.
SHORT_TEXT = 20
_NEVER_FITS = re.compile(r"(a+)+$")


def multiply(seconds: float) -> None:
    """One power of a whole number."""
    took = _seconds_of(lambda: pow(3, SHORT_EXPONENT))
    pow(3, exponent_for(seconds * MARGIN, took))


def match(seconds: float) -> None:
    """One regular expression that tries everything; for up to twice as long."""
    took = _seconds_of(lambda: _NEVER_FITS.match("a" * SHORT_TEXT + "b"))
    _NEVER_FITS.match("a" * length_for(seconds, took) + "b")


def exponent_for(seconds: float, short: float) -> int:
    """The exponent whose power takes so long, if that of SHORT_EXPONENT takes `short` seconds."""
    return int(SHORT_EXPONENT * 2 ** math.log(max(1.0, seconds / short), POWER_GROWTH))


def length_for(seconds: float, short: float) -> int:
    """The shortest text that takes at least so long, if one of SHORT_TEXT letters takes `short` seconds."""
    return SHORT_TEXT + math.ceil(math.log2(max(1.0, seconds / short)))


def _seconds_of(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began
