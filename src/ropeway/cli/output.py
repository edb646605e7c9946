"""How commands speak: tables and sentences for people, JSON for programs, notes and errors on stderr.

On a terminal a table fits its width; elsewhere nothing is cut, so that `| grep` and `| awk` see whole values.
Colours only on a terminal (`NO_COLOR` is respected). Text that comes from jobs is shown without control
characters: it must not move the cursor of whoever looks at it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from uuid import UUID

import msgspec

from ropeway.core.states import State

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

#: Wide enough for any line: what is not a terminal has no width.
_NO_WIDTH = 1_000_000
#: From this width on, tables show whole ids.
_WIDE = 120
#: The part of an id that holds its time and counter: nearly always enough to name one job.
_SHORT_ID = 18

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_COLOURS = {
    State.SCHEDULED: "magenta",
    State.QUEUED: "cyan",
    State.RUNNING: "blue",
    State.RETRYING: "yellow",
    State.WAITING: "magenta",
    State.SUCCEEDED: "green",
    State.DEAD: "red",
    State.CANCELLED: "dim",
}


class ReaderGone(Exception):
    """Whoever read our output (`| head`) has seen enough."""


# ── Where it goes ──


def console() -> Console:
    """What prints for people."""
    # Late: rich takes as long to load as the rest of a short command.
    from rich.console import Console

    class PipedConsole(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise ReaderGone

    terminal = sys.stdout.isatty() or bool(os.environ.get("COLUMNS"))
    return PipedConsole(highlight=False, markup=False, emoji=False, width=None if terminal else _NO_WIDTH)


def say(text: str) -> None:
    """A line on stdout, as it is."""
    _write(text + "\n")


def say_json(document: Any) -> None:
    """One JSON document on stdout."""
    say_raw(pretty_json(document) + "\n")


def say_json_line(document: Any) -> None:
    """One JSON document on one line: for streams."""
    say_raw(msgspec.json.encode(document).decode() + "\n")


def pretty_json(document: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def say_raw(text: str) -> None:
    """Text for programs: UTF-8, whatever the terminal's encoding is."""
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        _write(text)
        return
    try:
        sys.stdout.flush()
        buffer.write(text.encode())
        buffer.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def note(text: str) -> None:
    """A remark on stderr: stdout stays clean for what reads it."""
    print(plain(text), file=sys.stderr, flush=True)


def complain(text: str) -> None:
    """An error, on one line of stderr."""
    note(f"ropeway: {' '.join(text.split())}")


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None


# ── Tables ──


class Column(NamedTuple):
    """`flex`: may be cut, down to `least`, when the terminal is narrow."""

    title: str
    flex: bool = False
    right: bool = False
    least: int = 6


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], *, header: bool = True) -> None:
    """A table without lines, two spaces between columns, within the width of the terminal."""
    from rich.table import Table

    out = console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=header, header_style="bold")
    for column, width in zip(columns, _widths(columns, rows, out.width), strict=True):
        table.add_column(
            column.title,
            width=width,
            no_wrap=True,
            overflow="ellipsis",
            justify="right" if column.right else "left",
        )
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    out.print(table)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], room: int) -> list[int]:
    from rich.cells import cell_len

    widths = [
        max([cell_len(column.title), *(cell_len(str(row[index])) for row in rows)])
        for index, column in enumerate(columns)
    ]
    room -= 2 * len(columns)
    while sum(widths) > room:
        widest = max(
            (index for index, column in enumerate(columns) if column.flex and widths[index] > column.least),
            key=lambda index: widths[index],
            default=None,
        )
        if widest is None:
            break
        widths[widest] -= 1
    return widths


def cell(value: str | Text) -> Text:
    """Text fit for a cell: one line, nothing that moves a cursor."""
    from rich.text import Text

    return value if isinstance(value, Text) else Text(" ".join(plain(value).split("\n")))


def coloured(value: str, style: str) -> Text:
    from rich.text import Text

    return Text(plain(value), style=style)


def status_text(state: State) -> Text:
    return coloured(state.value, _COLOURS[state])


def colour_of(state: State) -> str:
    return _COLOURS[state]


def plain(text: str) -> str:
    """Without control characters but newline and tab, and with halves of surrogate pairs replaced."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text).encode(errors="replace").decode()


def shown_ids(ids: Sequence[UUID]) -> list[str]:
    """Ids as a table shows them: whole where there is room, else beginnings that tell them apart."""
    whole = [str(id) for id in ids]
    if console().width >= _WIDE:
        return whole
    length = _SHORT_ID
    while length < 36 and len({id[:length] for id in whole}) < len(set(whole)):
        length += 1
    return [id[:length].rstrip("-") for id in whole]


# ── Values ──


def ago(at: datetime | None, now: datetime) -> str:
    """How long ago, or how far ahead: `3m ago`, `in 2h`, `now`, `-`."""
    if at is None:
        return "-"
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"


def span(seconds: float) -> str:
    """A length of time in two or three characters: `45s`, `12m`, `5h`, `3d`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length * (2 if unit == "d" else 1):
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s" if seconds >= 1 else f"{round(seconds * 1000)}ms"


def took(seconds: float) -> str:
    """How long something took, to three figures."""
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    return span(seconds)


def exact(at: datetime | None) -> str:
    """A time to the millisecond, in UTC."""
    return "-" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def both(at: datetime | None, now: datetime) -> str:
    """The exact time and how long ago."""
    return "-" if at is None else f"{exact(at)}  ({ago(at, now)})"


def number(value: float) -> str:
    """1234567 as 1,234,567; a fraction as short as it goes."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def one_of(number_: int, one: str, many: str | None = None) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number_:,} {one if number_ == 1 else many or one + 's'}"


def joined(parts: Iterable[str]) -> str:
    return ", ".join(parts) or "-"
