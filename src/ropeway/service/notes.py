"""The notes of what operators did, written after it was done.

A note that the store does not take must not turn the answer into a refusal: what was done is done, and whoever
repeats it does it twice (or never learns the token of a key). So such a note is told to the server's log, kept,
and tried again until the store takes it. Where the store may have taken it before the connection broke, it may be
there twice: better than not at all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ropeway.core.auditlog import NewAction
from ropeway.core.errors import EngineError
from ropeway.observability.logs import Logger, logger
from ropeway.observability.names import AUDIT_LOST, AUDIT_UNWRITTEN

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine

#: Seconds between two tries.
PAUSE = 2.0

#: Calls whose notes are kept at once; beyond that only the log has them.
MOST_KEPT = 10_000

#: Seconds that the last try has when the server stops.
LAST_TRY = 2.0


class Notes:
    """Writes notes for one process. Close it before the engine."""

    def __init__(self, engine: Engine, *, pause: float = PAUSE, log: Logger | None = None) -> None:
        self._engine = engine
        self._pause = pause
        self._log = logger("ropeway.audit") if log is None else log
        self._kept: deque[tuple[str, list[NewAction]]] = deque()
        self._trying: asyncio.Task[None] | None = None

    @property
    def unwritten(self) -> int:
        """Calls whose notes are still to be written."""
        return len(self._kept)

    async def write(self, notes: Sequence[NewAction], *, tenant: str) -> None:
        """Write down what was done; returns also when that has to wait for the store."""
        if not notes:
            return
        try:
            await self._engine.note_actions(notes, tenant=tenant)
        except EngineError as error:
            lost = len(self._kept) >= MOST_KEPT
            self._tell(AUDIT_LOST if lost else AUDIT_UNWRITTEN, tenant, notes, error)
            if not lost:
                self._kept.append((tenant, list(notes)))
                if self._trying is None or self._trying.done():
                    self._trying = asyncio.create_task(self._try_again(), name="ropeway audit notes")

    async def close(self) -> None:
        """Try once more; what the store still does not take is told to the log."""
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.wait([self._trying])
        error: Exception = TimeoutError("the store did not answer")
        try:
            async with asyncio.timeout(LAST_TRY):
                await self._write_kept()
        except (EngineError, TimeoutError) as again:
            error = again
        while self._kept:
            tenant, notes = self._kept.popleft()
            self._tell(AUDIT_LOST, tenant, notes, error)

    async def _try_again(self) -> None:
        while self._kept:
            await asyncio.sleep(self._pause)
            try:
                await self._write_kept()
            except EngineError:
                continue

    async def _write_kept(self) -> None:
        while self._kept:
            tenant, notes = self._kept[0]
            await self._engine.note_actions(notes, tenant=tenant)
            self._kept.popleft()

    def _tell(self, event: str, tenant: str, notes: Sequence[NewAction], error: Exception) -> None:
        first = notes[0]
        self._log.error(
            event,
            tenant=tenant,
            actor=first.actor,
            action=first.action,
            targets=[note.target for note in notes],
            count=first.count,
            request_id=first.request_id,
            error=str(error),
        )
