"""The pages there are, who finds which, and what is an address of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ropeway.dashboard.sessions import Viewer

#: An address that leads back after signing in is at most so long; it travels in a header.
MOST_NEXT: Final = 1_000


class Place(NamedTuple):
    """A page that the navigation names, for whoever may see it."""

    name: str
    path: str
    label: str
    seen_by: Callable[[Viewer], bool] = lambda _viewer: True


PLACES: Final = (
    Place("overview", "", "Overview"),
    Place("queues", "ui/queues", "Queues"),
    Place("jobs", "ui/jobs", "Jobs"),
    Place("dead", "ui/dead", "Dead letters"),
    Place("schedules", "ui/schedules", "Schedules"),
    Place("workers", "ui/workers", "Workers"),
    Place("events", "ui/events", "Events"),
    Place("audit", "ui/audit", "Audit", lambda viewer: viewer.sees_audit),
    Place("settings", "ui/settings", "Settings", lambda viewer: viewer.sees_settings),
)

#: What browsers take for a step up, for another host, or leave out before they look.
_STRANGE: Final = ("\\", "//", "..", "%2e")


def places_for(viewer: Viewer) -> list[Place]:
    return [place for place in PLACES if place.seen_by(viewer)]


def is_ours(address: str) -> bool:
    """Whether it is the address of a page of ours, as those write it into their forms."""
    return (
        address.startswith("ui/")
        and address.isprintable()
        and not any(sign in address.lower() for sign in _STRANGE)
    )


def is_page(address: str) -> bool:
    """Whether signing in may lead there: to a page of the navigation or below it, and to nothing that acts."""
    path = address.partition("?")[0]
    return (
        is_ours(address)
        and address.isascii()
        and len(address) <= MOST_NEXT
        and any(place.path and (path == place.path or path.startswith(f"{place.path}/")) for place in PLACES)
    )
