"""Every route of the server, one module per noun."""

from __future__ import annotations

from ropeway.api.routes import (
    audit,
    changing,
    compat,
    dead,
    enqueueing,
    events,
    health,
    jobs,
    keys,
    leasing,
    queues,
    schedules,
    settling,
    workers,
)
from ropeway.api.routing import Route

ROUTES: tuple[Route, ...] = (
    *health.ROUTES,
    *enqueueing.ROUTES,
    *jobs.ROUTES,
    *changing.ROUTES,
    *leasing.ROUTES,
    *settling.ROUTES,
    *workers.ROUTES,
    *queues.ROUTES,
    *dead.ROUTES,
    *schedules.ROUTES,
    *events.ROUTES,
    *audit.ROUTES,
    *keys.ROUTES,
    *compat.ROUTES,
)
