"""The names that a store knows, so that a mistyped one can be answered with the one that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.query import MAX_PAGE
from ropeway.engines.protocol import Engine


class Names:
    """Queues and task types that jobs and workers of one tenant speak of."""

    def __init__(self, engine: Engine, *, tenant: str = DEFAULT_TENANT) -> None:
        self._engine = engine
        self._tenant = tenant

    async def queues(self) -> list[str]:
        """Queues that hold jobs, are paused, or are served by a worker that is alive."""
        stats = await self._engine.queue_stats(cap=1, tenant=self._tenant)
        workers = await self._engine.workers(tenant=self._tenant)
        return sorted({one.queue for one in stats} | {queue for worker in workers for queue in worker.queues})

    async def types(self) -> list[str]:
        """Task types that live workers know, and those of the newest jobs. A look at one page, not at all jobs."""
        page = await self._engine.find(limit=MAX_PAGE, tenant=self._tenant)
        workers = await self._engine.workers(tenant=self._tenant)
        return sorted({job.type for job in page.jobs} | {type for worker in workers for type in worker.types})


def near(word: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant; None when `word` is one of them or resembles none."""
    known = list(names)
    if word in known:
        return None
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return close[0]
    # A name given by half, such as `send` for `email.send`, resembles it too little to be close.
    parts = [name for name in known if len(word) >= 3 and word in name]
    return parts[0] if len(parts) == 1 else None


def did_you_mean(word: str, names: Iterable[str]) -> str | None:
    """A hint for people, or None."""
    meant = near(word, names)
    return None if meant is None else f"did you mean {meant}?"
