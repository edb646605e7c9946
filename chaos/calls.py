"""The calls of a run with their times: how long each took, and which of them failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.history import INFO, INVOKE, OK


@dataclass(frozen=True, slots=True)
class TimedCall:
    """`ended` is None, and `phase` is `info`, when there was no answer. `error` is the name of what was raised."""

    op: str
    asked: float
    ended: float | None
    phase: str
    error: str = ""

    @property
    def failed(self) -> bool:
        """Whether whoever asked got no answer. What a process that stops takes back itself has not failed."""
        return self.phase != OK and self.error != "CancelledError"

    @property
    def seconds(self) -> float:
        return 0.0 if self.ended is None else self.ended - self.asked


def timed_calls(lines: Iterable[Mapping[str, Any]]) -> list[TimedCall]:
    """By when they were asked, from the lines of a history."""
    found = []
    waiting: dict[tuple[str, int, int], Mapping[str, Any]] = {}
    for line in lines:
        if "n" not in line:
            continue
        place = (line["process"], line["pid"], line["n"])
        if line["phase"] == INVOKE:
            waiting[place] = line
        elif (asked := waiting.pop(place, None)) is not None:
            told = TimedCall(asked["op"], asked["t"], line["t"], line["phase"], line.get("error", ""))
            found.append(told)
    found += [TimedCall(asked["op"], asked["t"], None, INFO) for asked in waiting.values()]
    return sorted(found, key=lambda call: call.asked)


def failed_share(calls: Sequence[TimedCall]) -> float:
    return sum(call.failed for call in calls) / max(1, len(calls))


def longest_between(calls: Iterable[TimedCall], began: float, ended: float) -> float:
    """Seconds that the longest call took of those that were under way at some time between the two."""
    return max(
        (call.seconds for call in calls if call.ended is not None and call.asked < ended and call.ended > began),
        default=0.0,
    )


def hung(calls: Iterable[TimedCall], limit: float, until: float) -> list[TimedCall]:
    """Those that took more than `limit` seconds, and those that had waited for so long when the run ended, which
    was `until`, and still had no answer."""
    return [call for call in calls if (until if call.ended is None else call.ended) - call.asked > limit]
