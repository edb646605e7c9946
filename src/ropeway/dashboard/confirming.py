"""The question before something that cannot be taken back, or that changes many jobs.

It is a page of its own and not the script's: whoever is faster than the script, or runs none, is asked as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from starlette.responses import Response

    from ropeway.dashboard.frame import Visit


class Asked(NamedTuple):
    """What a question about all jobs of a kind named: how many, and when, by the engine's clock.

    It comes back with the yes, which is to those jobs and to none that came later. It is not sealed: whoever may
    say yes may do so to all there are, and nobody else can send the form.
    """

    at: datetime
    number: int

    def fields(self) -> list[tuple[str, str]]:
        return [("asked_at", self.at.astimezone(UTC).isoformat()), ("count", str(self.number))]


def asked_of(visit: Visit) -> Asked | None:
    """What was asked before this yes. None: the form comes from no page that asks, so somebody is to be asked."""
    if not is_confirmed(visit):
        return None
    try:
        at, number = datetime.fromisoformat(visit.form.one("asked_at")), int(visit.form.one("count"))
    except ValueError:
        return None
    # Years that a clock does not show would overflow what is counted from them.
    return Asked(at, number) if at.tzinfo is not None and 1970 <= at.year < 9000 and number >= 1 else None


def is_confirmed(visit: Visit) -> bool:
    """Whether the form comes from the page that asks."""
    return visit.form.one("confirmed") == "yes"


def ask(
    visit: Visit,
    question: str,
    *,
    page: str,
    action: str,
    label: str | None,
    otherwise: str,
    fields: Sequence[tuple[str, str]] = (),
    lines: Sequence[str] = (),
    listed: Sequence[str] = (),
    danger: bool = False,
) -> Response:
    """A page that asks. Its button sends `fields` to `action` once more, confirmed; None: there is nothing to do.

    Who says no goes back to where the form was, or `otherwise`.
    """
    return visit.show(
        "confirm.html",
        page=page,
        question=question,
        lines=lines,
        listed=listed,
        action=action,
        fields=fields,
        label=label,
        danger=danger,
        back=visit.came_from(otherwise),
    )
