"""Upkeeping: taking jobs back from owners that are gone, and removing what has had its time."""

from __future__ import annotations

from uuid import UUID

from ropeway.core.outcome import Lost
from ropeway.core.states import LIVE_STATES, CancelReason, State
from ropeway.core.unique import KeyKind
from ropeway.engines.memory.attending import MemoryAttending
from ropeway.engines.memory.auditing import MemoryAuditing
from ropeway.engines.memory.leasing import MemoryLeasing
from ropeway.engines.memory.limiting import MemoryLimiting
from ropeway.engines.memory.remembering import MemoryRemembering
from ropeway.engines.protocol import Pruned, Rescued
from ropeway.engines.purging import first_day_kept, log_purged


class MemoryUpkeeping(MemoryLeasing, MemoryAttending, MemoryLimiting, MemoryAuditing, MemoryRemembering):
    async def rescue(self, *, limit: int = 1_000) -> list[Rescued]:
        now = self.clock.now()
        expired = sorted(
            (grant for grant in self.grants.values() if grant.expires_at <= now),
            key=lambda grant: grant.expires_at,
        )
        rescued: list[Rescued] = []
        for grant in expired:
            if len(rescued) >= limit:
                break
            rescued += self.take_back(grant, None, Lost("expired"))
        return rescued

    async def audit(self, *, limit: int = 1_000) -> list[Rescued]:
        """In this engine a job and its grant change in one step, so there is never anything to find."""
        return []

    async def expire(self, *, limit: int = 1_000) -> list[UUID]:
        now = self.clock.now()
        overdue = [
            row for row in self.jobs.values() if row.ended is None and row.token is None and row.overdue(now)
        ][:limit]
        for row in overdue:
            self.cancel_row(row, CancelReason.EXPIRED)
        return [row.id for row in overdue]

    async def prune(self) -> Pruned:
        self.forget_absent()
        self.forget_buckets()
        self.prune_actions()
        self.forget_samples()
        return Pruned(jobs=self._prune_jobs(), events=self._prune_events(), keys=self._prune_keys())

    def _prune_jobs(self) -> int:
        now = self.clock.now()
        over = [
            row
            for row in self.jobs.values()
            if row.ended is not None
            and row.finished_at is not None
            and row.finished_at < first_day_kept(now, self.rules.keep(row.ended))
        ]
        log_purged(row.job(now, None) for row in over if row.ended is State.DEAD)
        for row in over:
            del self.jobs[row.id]
        return len(over)

    def _prune_events(self) -> int:
        edge = first_day_kept(self.clock.now(), self.rules.keep_log)
        old = next((i for i, event in enumerate(self.events) if event.at >= edge), len(self.events))
        del self.events[:old]
        self.events_removed += old
        return old

    def _prune_keys(self) -> int:
        now = self.clock.now()
        over = []
        for name, key in self.job_keys.items():
            if key.until is None or key.until > now:
                continue
            row = self.jobs.get(key.job_id)
            if row is None or (name[1] == KeyKind.IDEMPOTENCY and row.state(now) not in LIVE_STATES):
                over.append(name)
        for name in over:
            del self.job_keys[name]
        return len(over)
