"""Log lines: an event's name and its fields, as JSON or text, on one stream.

    log = logger("ropeway.worker")
    log.info(JOB_SUCCEEDED, job_id=id, type="email.send", queue="mail", duration_ms=12.5)

A process of Ropeway's own (a worker, `ropeway upkeep`) calls `configure` once, at any time: loggers that exist
already follow. What `logging` is told under `ropeway.*` comes out the same way, and so do warnings and errors of
anybody whose loggers have no handler of their own. Inside someone else's program nothing is configured, and lines
go to `logging` under the logger's name, where that program decides about them.

A level that is off costs the call and nothing else: each logger's methods are replaced when the level is set.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final, Literal, Protocol, TypeAlias, cast
from weakref import WeakSet

from ropeway.core.redact import redact
from ropeway.observability.lines import PURGED_LOGGER, Renderer, cut, json_line, plain_text, text_renderer
from ropeway.observability.names import JOB_PURGED

Format: TypeAlias = Literal["auto", "json", "text"]

#: What a pipe takes in one piece, so that processes which share it do not mix their lines.
ATOMIC_WRITE: Final = 4096

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class Say(Protocol):
    """Writes one line. `event` is a name of `ropeway.observability.names`; the fields are the event's own."""

    def __call__(self, event: str, /, **fields: Any) -> None: ...


class Logger:
    """A named source of lines; `bind` makes one whose fields come first on each of its lines.

    `exc_info=True` or an exception adds the traceback; `exception` is `error` with it. `tells_debug` and
    `tells_info` say whether such lines go anywhere: where there is one per job, its fields cost more than asking.
    In a program that has its own logging, they are for `logging` to judge, line by line; `debug_is_heard` asks it.
    """

    __slots__ = (
        "__weakref__", "critical", "debug", "error", "exception", "fields", "info", "name", "tells_debug",
        "tells_info", "warning",
    )  # fmt: skip

    debug: Say
    info: Say
    warning: Say
    error: Say
    exception: Say
    critical: Say
    tells_debug: bool
    tells_info: bool

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        self.name = name
        self.fields = fields
        _all.add(self)
        _connect(self)

    def debug_is_heard(self) -> bool:
        """As `tells_debug`, also of `logging`: for many lines at once."""
        if _output is None:
            return logging.getLogger(self.name).isEnabledFor(logging.DEBUG)
        return self.tells_debug

    def bind(self, **fields: Any) -> Logger:
        return Logger(self.name, {**self.fields, **fields})


class _Output:
    """Where lines go once `configure` was called."""

    def __init__(self, level: int, render: Renderer, stream: IO[Any]) -> None:
        self.level = level
        self.render = render
        self._stream = stream
        self._held: list[bytes] | None = None

    def hold(self) -> None:
        """Gather lines until `let_go`."""
        self._held = []

    def let_go(self) -> None:
        held, self._held = self._held or [], None
        chunk = b""
        for line in held:
            if chunk and len(chunk) + len(line) > ATOMIC_WRITE:
                self.write(chunk)
                chunk = b""
            chunk += line
        if chunk:
            self.write(chunk)

    def write(self, line: bytes) -> None:
        if self._held is not None:
            self._held.append(line)
            return
        # One write per line, so that processes which share the stream do not mix theirs. A stream that is gone
        # (a closed pipe, a full disk) must not stop the work.
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError, RuntimeError):
            pass  # there is nowhere left to tell it


_all: WeakSet[Logger] = WeakSet()
_named: dict[str, Logger] = {}
_output: _Output | None = None


def logger(name: str) -> Logger:
    """The logger of that name, always the same one."""
    found = _named.get(name)
    if found is None:
        found = _named[name] = Logger(name, {})
    return found


def configure(level: str | int = "INFO", format: Format = "auto", stream: IO[Any] | None = None) -> None:
    """Write lines of `level` and above to `stream` (stderr). `auto` is text on a terminal and JSON elsewhere."""
    global _output
    unconfigure()
    stream = sys.stderr if stream is None else stream
    number = level if isinstance(level, int) else LEVELS[level.lower()]
    _output = _Output(number, _renderer(format, stream), _bytes_of(stream))
    bridge = _Bridge(_output)
    house = logging.getLogger("ropeway")
    house.addHandler(bridge)
    house.setLevel(number)
    house.propagate = False
    # Not a handler on the root: `logging.basicConfig` in a user's module would then do nothing.
    logging.lastResort = _Bridge(_output, logging.WARNING)
    for each in list(_all):
        _connect(each)


@contextmanager
def gathered() -> Iterator[None]:
    """Write the lines of this block together: a system call per line costs more than the line. Not nested."""
    output = _output
    if output is None:
        yield
        return
    output.hold()
    try:
        yield
    finally:
        output.let_go()


def unconfigure() -> None:
    """Leave it to `logging` again."""
    global _output
    if _output is None:
        return
    _output = None
    house = logging.getLogger("ropeway")
    for handler in [handler for handler in house.handlers if isinstance(handler, _Bridge)]:
        house.removeHandler(handler)
    house.setLevel(logging.NOTSET)
    house.propagate = True
    logging.lastResort = _last_resort
    for each in list(_all):
        _connect(each)


_last_resort = logging.lastResort


def _renderer(format: Format, stream: IO[Any]) -> Renderer:
    terminal = stream.isatty()
    if format == "json" or (format == "auto" and not terminal):
        return json_line
    # https://no-color.org: any value but an empty one.
    return text_renderer(colours=terminal and not os.environ.get("NO_COLOR"), dates=not terminal)


def _bytes_of(stream: IO[Any]) -> IO[Any]:
    if isinstance(stream, io.TextIOBase):
        return cast("IO[Any]", getattr(stream, "buffer", None) or _Encoded(stream))
    return stream


class _Encoded:
    """A text stream with nothing beneath it, such as a StringIO."""

    def __init__(self, stream: io.TextIOBase) -> None:
        self._stream = stream
        self.flush = stream.flush

    def write(self, line: bytes) -> None:
        self._stream.write(line.decode())


# ── What the methods of a logger are ──


def _connect(target: Logger) -> None:
    for word, number in LEVELS.items():
        setattr(target, word, _say(target, word, number))
    target.exception = _with_exception(target.error)
    target.tells_debug = target.debug is not _nothing
    target.tells_info = target.info is not _nothing


def _say(source: Logger, level: str, number: int) -> Say:
    if _output is None:
        return _to_logging(source, number)
    if number < _output.level:
        return _nothing
    return _to_output(_output, source, level)


def _nothing(event: str, /, **fields: Any) -> None:
    """A level that is off."""


def _to_output(output: _Output, source: Logger, level: str) -> Say:
    render, write, name, bound = output.render, output.write, source.name, source.fields

    def say(event: str, /, **fields: Any) -> None:
        write(render(level, name, event, {**bound, **fields} if bound else fields))

    return say


def _to_logging(source: Logger, number: int) -> Say:
    target, bound = logging.getLogger(source.name), source.fields

    def say(event: str, /, **fields: Any) -> None:
        if target.isEnabledFor(number):
            raised = fields.pop("exc_info", None)
            told = plain_text(event, {**bound, **fields})
            target.log(number, "%s", told, exc_info=raised, stacklevel=2)

    return say


def _with_exception(error: Say) -> Say:
    def exception(event: str, /, **fields: Any) -> None:
        error(event, **{"exc_info": True, **fields})

    return exception


# ── What others tell `logging` ──


class _Bridge(logging.Handler):
    """Brings a record of `logging` to the same output."""

    def __init__(self, output: _Output, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._output.write(self._line(record))
        except Exception:  # noqa: BLE001 - a record that cannot be told, say its arguments do not fit its message
            self.handleError(record)

    def _line(self, record: logging.LogRecord) -> bytes:
        level = _word_of(record.levelno)
        fields: dict[str, Any] = {}
        event = record.getMessage()
        if record.name == PURGED_LOGGER:
            return self._purged(level, record.name, event)
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        return self._output.render(level, record.name, redact(cut(event)), fields)

    def _purged(self, level: str, name: str, document: str) -> bytes:
        """The last word on a job: its payload stays as it is, whatever it holds."""
        line = self._output.render(level, name, JOB_PURGED, {})
        if line.endswith(b"}\n"):
            return line[:-2] + b',"job":' + document.encode() + b"}\n"
        return line[:-1] + b"  " + document.encode() + b"\n"


def _word_of(number: int) -> str:
    return next((word for word, least in reversed(LEVELS.items()) if number >= least), "debug")
