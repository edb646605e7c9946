"""Everything about one job at one moment."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.states import TERMINAL_STATES
from ropeway.engines.protocol import Engine
from ropeway.service.explain import Explanation, explain
from ropeway.service.jobs import JobDetail, Jobs


class Closeup(msgspec.Struct, frozen=True):
    """A job as it was at `at`, by the engine's clock. `why` says what it waits for; None once it has ended."""

    at: datetime
    detail: JobDetail
    why: Explanation | None


async def look_closely(engine: Engine, id: UUID, tenant: str = DEFAULT_TENANT) -> Closeup:
    """Raises NotFound."""
    detail = await Jobs(engine, tenant=tenant).detail(id)
    why = None if detail.job.state in TERMINAL_STATES else await explain(engine, id, tenant)
    return Closeup(await engine.now(), detail, why)
