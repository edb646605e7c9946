"""What this process knows to hold: the grants of each owner. What it does not know of, it must give back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID
from weakref import WeakValueDictionary

from ropeway.core.lease import Lease


class Holding:
    """Grants by owner, each with the jobs whose outcome has not been taken yet."""

    def __init__(self) -> None:
        self._grants: dict[UUID, set[UUID]] = {}
        self._owners: dict[UUID, UUID] = {}
        self._turns: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()

    def turn(self, owner: UUID) -> asyncio.Lock:
        """One claim of an owner at a time: only then is every grant that is not known here a lost one."""
        lock = self._turns.get(owner)
        if lock is None:
            lock = self._turns[owner] = asyncio.Lock()
        return lock

    def opened(self, owner: UUID, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self._grants.setdefault(lease.token, set()).add(lease.job_id)
            self._owners[lease.token] = owner

    def answered(self, lease: Lease) -> None:
        """The job is no longer held under this lease, or never was."""
        jobs = self._grants.get(lease.token)
        if jobs is None:
            return
        jobs.discard(lease.job_id)
        if not jobs:
            del self._grants[lease.token], self._owners[lease.token]

    def ended(self, owner: UUID) -> None:
        for grant in self.grants(owner):
            del self._grants[grant], self._owners[grant]

    def grants(self, owner: UUID) -> list[UUID]:
        return [grant for grant, of in self._owners.items() if of == owner]
