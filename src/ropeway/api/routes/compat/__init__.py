"""Older faces of the same service, for clients that were written against them: only with `ROPEWAY_COMPAT=1`.

Nothing here has rules of its own: each call is turned into one of `/v1`, with the same keys, scopes and limits.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ropeway.api.routes import dead, events, queues
from ropeway.api.routes.compat import queue_jobs, tasks
from ropeway.api.routing import Route


def _old(route: Route, path: str, name: str) -> Route:
    """A route of today under an older path."""
    return msgspec.structs.replace(route, path=path, name=name, compat=True, tag="older faces", links={})


def _today(routes: Sequence[Route], path: str) -> Route:
    return next(route for route in routes if route.path == path)


ROUTES: tuple[Route, ...] = (
    *queue_jobs.ROUTES,
    _old(_today(queues.ROUTES, "/v1/dashboard/queues"), "/dashboard/queues", "old_dashboard_queues"),
    *tasks.ROUTES,
    _old(_today(events.ROUTES, "/v1/runs/{id}/stream"), "/runs/{id}/stream", "old_stream_run"),
    _old(_today(dead.ROUTES, "/v1/dlq/retry"), "/dlq/retry", "old_retry_dead"),
)
