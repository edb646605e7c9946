"""How a log line looks: JSON for programs, text for people. Secrets are masked in both, and neither ever fails."""

from __future__ import annotations

import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import TracebackType
from typing import Any, TypeAlias

import msgspec

from ropeway.core.redact import API_KEY_MARK, MASK, is_secret_name, redact

Fields: TypeAlias = Mapping[str, Any]
#: (level, logger, event, fields) → the line, with its end.
Renderer: TypeAlias = Callable[[str, str, str, Fields], bytes]
Raised: TypeAlias = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]

#: Longer text is cut: a line is for reading, and some sinks refuse very long ones.
MAX_TEXT = 16_384

#: The logger whose lines are JSON already and are left as they are: its one purpose is to keep a payload.
PURGED_LOGGER = "ropeway.purged"

_PLAIN = frozenset({int, float, bool, type(None)})


# ── JSON ──


def json_line(level: str, logger: str, event: str, fields: Fields) -> bytes:
    """One object: ts, level, event, logger, then the event's own fields in the order in which they were given."""
    line = {"ts": utc_stamp(time.time()), "level": level, "event": event, "logger": logger}
    # Not **fields: each value is looked at on its way.
    for name, value in fields.items():
        if is_secret_name(name):
            line[name] = MASK
        elif name == "exc_info":
            if text := exception_text(value):
                line["exception"] = text
        elif type(value) in _PLAIN or (type(value) is str and _is_harmless(value)):
            line[name] = value
        else:
            line[name] = cleaned(value)
    try:
        return _encode(line) + b"\n"
    except Exception:  # noqa: BLE001 - whatever a value is, its line must not be lost and nobody must fail for it
        return _encode({name: _safe(value) for name, value in line.items()}) + b"\n"


def _is_harmless(text: str) -> bool:
    """Whether there is surely nothing to mask or to cut: ids and names, which most values are, pass here."""
    return ":" not in text and "=" not in text and API_KEY_MARK not in text and len(text) <= MAX_TEXT


def cleaned(value: Any) -> Any:
    """A value as it may be shown: secrets in it masked, text cut to a readable length."""
    if isinstance(value, str):
        return redact(cut(value))
    if isinstance(value, dict):
        return {str(name): MASK if is_secret_name(str(name)) else cleaned(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [cleaned(inner) for inner in value]
    return value


def cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}... ({len(text)} characters)"


def exception_text(raised: object) -> str:
    """The traceback as text, from whatever `exc_info` may be: True, an exception, or what sys.exc_info gives."""
    if raised is True:
        raised = sys.exc_info()
    if isinstance(raised, BaseException):
        raised = (type(raised), raised, raised.__traceback__)
    if not isinstance(raised, tuple) or raised[0] is None:
        return ""
    return redact(cut("".join(traceback.format_exception(*raised)).rstrip()))


def _other(value: object) -> str:
    """What JSON has no form for."""
    return redact(cut(str(value)))


def _safe(value: object) -> str:
    """Any value as text that surely can be encoded: no lone surrogates, no failing `__str__`."""
    try:
        text = value if isinstance(value, str) else redact(cut(str(value)))
    except Exception:  # noqa: BLE001 - as above
        text = f"<{type(value).__name__}>"
    return text.encode("utf-8", "backslashreplace").decode()


_encode = msgspec.json.Encoder(enc_hook=_other).encode


def utc_stamp(at: float) -> str:
    """RFC 3339, UTC, microseconds. The part down to the second is kept for the lines of the same second."""
    second, fraction = divmod(at, 1.0)
    return f"{_utc_second(int(second))}.{int(fraction * 1e6):06d}Z"


@lru_cache(maxsize=8)
def _utc_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


# ── Text ──

#: What tells one job from another goes first, in this order; an error goes last; the rest in between.
_FIRST = ("job_id", "type", "queue", "attempt", "duration_ms")
_LAST = ("error", "hint")

_LEVELS = {"debug": "DEBUG", "info": "INFO ", "warning": "WARN ", "error": "ERROR", "critical": "FATAL"}
_LEVEL_COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def text_renderer(*, colours: bool, dates: bool) -> Renderer:
    """Lines for people. `dates`: full UTC times, for a file; a terminal shows the local time of day."""

    def paint(text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if colours else text

    def render(level: str, logger: str, event: str, fields: Fields) -> bytes:
        at = time.time()
        words = [
            paint(utc_stamp(at) if dates else _local_time(at), "2"),
            paint(_LEVELS.get(level, level), _LEVEL_COLOURS.get(level, "0")),
            # Padded before it is painted, so that what follows stands in a column.
            paint(printable(event.replace("_", " ") if " " not in event else event).ljust(16), "1"),
        ]
        rest = dict(fields)
        raised = rest.pop("exc_info", None)
        last = [(name, rest.pop(name)) for name in _LAST if rest.get(name) is not None]
        for name in _FIRST:
            if name in rest:
                words += _told(name, rest.pop(name), paint)
        words += _pairs(rest)
        # The event says who speaks, unless it is somebody else's plain message.
        if not logger.startswith("ropeway"):
            words.append(paint(f"({logger})", "2"))
        words += [paint(_value(name, value), "31" if name == "error" else "0") for name, value in last]
        line = "  ".join(words).rstrip()
        if text := exception_text(raised):
            line += "\n" + paint(printable(text, lines=True), "2")
        return line.encode("utf-8", "backslashreplace") + b"\n"

    def careful(level: str, logger: str, event: str, fields: Fields) -> bytes:
        try:
            return render(level, logger, event, fields)
        except Exception:  # noqa: BLE001 - as for JSON: the line must not be lost
            return render(level, logger, event, {name: _safe(value) for name, value in fields.items()})

    return careful


def plain_text(event: str, fields: Fields) -> str:
    """The event and its fields alone, for the message of a `logging` record."""
    return " ".join([event, *_pairs(fields)])


def short_id(job_id: object) -> str:
    """The part of an id that holds its time and counter: nearly always one job's, and commands understand it."""
    return str(job_id)[:18]


def printable(text: str, *, lines: bool = False) -> str:
    """Text that a terminal shows instead of obeying (error texts come from anywhere); one line unless `lines`."""
    if not lines:
        text = text.replace("\r\n", "\n").replace("\n", " ⏎ ")
    return _UNPRINTABLE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def _pairs(fields: Fields) -> list[str]:
    return [f"{name}={_value(name, value)}" for name, value in fields.items() if value is not None]


def _told(name: str, value: Any, paint: Callable[[str, str], str]) -> list[str]:
    """A field that needs no name before it."""
    if value is None or (name == "attempt" and value == 1):
        return []
    if name == "job_id":
        return [paint(short_id(value), "36")]
    if name == "duration_ms" and isinstance(value, int | float):
        return [_duration(value)]
    if name == "attempt":
        return [f"attempt {value}"]
    return [_value(name, value)]


def _value(name: str, value: Any) -> str:
    if is_secret_name(name):
        return MASK
    if isinstance(value, float):
        return f"{value:g}"
    shown = cleaned(value)
    if isinstance(shown, list):
        shown = ",".join(map(str, shown))
    return printable(redact(cut(str(shown))))


def _duration(milliseconds: float) -> str:
    if milliseconds < 1_000:
        return f"{milliseconds:.3g} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1_000:.3g} s"
    minutes, seconds = divmod(round(milliseconds / 1_000), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {seconds} s"


def _local_time(at: float) -> str:
    return f"{time.strftime('%H:%M:%S', time.localtime(at))}.{int(at % 1 * 1e3):03d}"
