"""The question before something that cannot be taken back, or that changes many jobs.

It is a page of its own and not the script's: whoever is faster than the script, or runs none, is asked as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.responses import Response

    from ropeway.dashboard.frame import Visit


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
