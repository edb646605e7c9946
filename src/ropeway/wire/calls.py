"""A call to a Ropeway server, without sending it: what is asked, what an answer means, what is tried again.

A `Call` is a request and how to read its answer; it does nothing. `Tries` decides after each failure whether there
is another try, and when. `wire.transport` sends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec

from ropeway.core.errors import (
    AccessError,
    ConfigurationError,
    EngineError,
    Indeterminate,
    KeyInFlight,
    LimitError,
    RopewayError,
)
from ropeway.wire.problems import CONTENT_TYPE, Problem, error_of

T = TypeVar("T")

#: Refusals that a later try may not meet, whatever was asked: nothing was done.
_PASSING = frozenset({"unavailable", "key_in_flight", "request_timeout"})


class Answer(NamedTuple):
    """What a server said. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request and how to read its answer.

    `repeatable`: sending it again after it may have arrived does no harm. `waits`: seconds that the server is
    asked to wait before it answers. `keys`: the idempotency keys of the jobs in it, which a caller who is left in
    doubt may repeat it with. `hasty`: what may be of one part of it is raised at once, not waited for; its sender
    sends the parts by themselves.
    """

    method: str
    path: str
    read: Callable[[Answer], T]
    query: Mapping[str, object] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False
    waits: float = 0.0
    keys: tuple[str, ...] = ()
    hasty: bool = False

    def target(self) -> str:
        """Path and query; what is None is left out, a list is the name several times."""
        given = {name: value for name, value in self.query.items() if value is not None}
        return f"{self.path}?{urlencode(given, doseq=True)}" if given else self.path


class Patience(msgspec.Struct, frozen=True):
    """How hard a call is tried. A server that asks for more than `longest` seconds is not waited for; `limits`:
    whether one that says that a limit was reached is waited for at all."""

    tries: int = 5
    base: float = 0.1
    cap: float = 3.0
    longest: float = 30.0
    limits: bool = True


USUAL = Patience()


class Divisible:
    """Of an error: one part of what was sent may be the reason, and the others would fare better by themselves."""


class InDoubt(Indeterminate, Divisible):
    """It may have been done, and another request may fare better: the server, or a gateway, failed at this one."""


class NotUnderstood(ConfigurationError, Divisible):
    """Refused in a form that is not Ropeway's, such as by a proxy that dislikes a payload."""


class Failed(Exception):
    """One try came to nothing: why, and how many seconds the server asks to wait."""

    def __init__(self, error: RopewayError, retry_after: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after = retry_after


class Tries:
    """The tries of one call."""

    def __init__(self, call: Call[Any], patience: Patience, chance: Callable[[], float] = random.random) -> None:
        self._call = call
        self._patience = patience
        self._chance = chance
        self._made = 0
        #: The first try that may have been done, if there was one.
        self._doubt: Indeterminate | None = None

    def pause(self, failed: Failed) -> float:
        """Seconds until the next try; raises the error when there is none."""
        self._made += 1
        patience = self._patience
        if self._doubt is None and isinstance(failed.error, Indeterminate):
            self._doubt = failed.error
        if self._made >= patience.tries or not self._may_repeat(failed.error):
            raise self._end(failed.error) from None
        asked = failed.retry_after or 0.0
        if asked > patience.longest:
            raise self._end(failed.error) from None
        whole = min(patience.cap, patience.base * 2.0 ** (self._made - 1))
        # Spread, so that those who were refused together do not come back together.
        return asked + whole * (0.5 + self._chance() / 2)

    def _may_repeat(self, error: RopewayError) -> bool:
        if self._call.hasty and of_a_part(error):
            return False
        if isinstance(error, Indeterminate):
            return self._call.repeatable
        if isinstance(error, LimitError):
            return self._patience.limits
        return error.code in _PASSING

    def _end(self, last: RopewayError) -> RopewayError:
        """What the caller is told. That the last try did nothing says nothing of one before it."""
        doubt = self._doubt
        if doubt is None or self._call.method == "GET" or not _leaves_doubt(last):
            return last
        if isinstance(last, InDoubt):
            doubt = last
        elif not isinstance(last, Indeterminate):
            why = f"{doubt.message}; the last of {self._made} tries: {last.message}"
            kind = InDoubt if of_a_part(last) else Indeterminate
            doubt = kind(why, hint=doubt.hint, index=doubt.index)
        if self._call.keys:
            doubt.keys = self._call.keys
            doubt.hint = "it may have been stored: repeat it with the keys in `keys` of this error"
        return doubt


def of_a_part(error: RopewayError) -> bool:
    """Whether one part of what was sent may be the reason: a full queue, a key in use, too many at once."""
    return isinstance(error, LimitError | KeyInFlight | Divisible)


def _leaves_doubt(error: RopewayError) -> bool:
    """Whether a refusal is of the moment, not of what was asked: another try of the same may have passed."""
    return isinstance(error, EngineError | LimitError | AccessError) or error.code in _PASSING


# ── What an answer means ──


def result_of(call: Call[T], answer: Answer) -> T:
    """The value of a good answer; raises Failed for any other."""
    if 200 <= answer.status < 300:
        try:
            return call.read(answer)
        except msgspec.DecodeError as error:
            raise Failed(_not_ropeway(f"the answer to {call.method} {call.path}: {error}")) from None
    raise Failed(*failure_of(call, answer))


def failure_of(call: Call[Any], answer: Answer) -> tuple[RopewayError, float | None]:
    """What an answer that is not good says, and how many seconds it asks to wait."""
    retry_after = _seconds(answer.headers.get("retry-after"))
    problem = _problem(answer)
    if problem is not None and problem.code != "internal":
        return error_of(problem, retry_after=retry_after), retry_after
    if answer.status >= 500:
        # A defect, or a gateway before the server: nobody can say how far it came.
        told = "" if problem is None else f", request id {problem.request_id}"
        unknown = InDoubt(f"the server answered {answer.status} to {call.method} {call.path}{told}")
        return unknown, retry_after
    if 300 <= answer.status < 400:
        return _not_ropeway("it answers with a redirect, which is not followed"), None
    why = f"it answered {answer.status} to {call.method} {call.path} in no known form"
    return _not_ropeway(why, NotUnderstood), None


def _problem(answer: Answer) -> Problem | None:
    if answer.headers.get("content-type", "").partition(";")[0].strip() != CONTENT_TYPE:
        return None
    try:
        return msgspec.json.decode(answer.body, type=Problem)
    except msgspec.DecodeError:
        return None


def _not_ropeway(why: str, kind: type[ConfigurationError] = ConfigurationError) -> ConfigurationError:
    return kind(f"this is no Ropeway server, or one of another version: {why}", hint="check the URL")


def _seconds(text: str | None) -> float | None:
    """A Retry-After in seconds; a date, which Ropeway never sends, counts as none."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < 86_400 else None
