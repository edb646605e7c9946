"""Grants of this process: where the rows of their jobs lie, and which grants are done with (known answers only,
never a worker's own count)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from uuid import UUID

from ropeway.core.lease import Lease

#: Jobs whose grants are remembered at most; a grant that is forgotten simply expires, and the rescuer removes it.
MEMORY = 200_000

#: Grants that wait to be deleted at most: the same is true of them.
MOST_ENDED = 20_000

_token = attrgetter("token")

#: A page of the table and an item there: where a row lies until it is changed (`ctid`).
Spot = tuple[int, int]

#: A job's attempt, and where its row was seen last; None when it has been changed since.
Held = tuple[int, Spot | None]


class GrantBook:
    """Outstanding jobs per grant. A grant whose jobs all have a known answer is deleted by a later statement."""

    def __init__(self) -> None:
        self._open: dict[UUID, tuple[str, dict[UUID, Held]]] = {}
        self._jobs = 0
        self._ended: list[UUID] = []

    def opened(self, token: UUID, tenant: str, jobs: dict[UUID, Held]) -> None:
        """A grant was made for these jobs."""
        self._jobs += len(jobs)
        while self._open and self._jobs > MEMORY:
            _, forgotten = self._open.pop(next(iter(self._open)))
            self._jobs -= len(forgotten)
        self._open[token] = (tenant, jobs)

    def spots(self, tenant: str, leases: Iterable[Lease]) -> list[Spot | None]:
        """Where the rows of these tickets lay when they were claimed, as far as that is known: a hint."""
        found: list[Spot | None] = []
        for token, together in groupby(leases, key=_token):
            jobs = self._jobs_of(tenant, token)
            for lease in together:
                held = jobs.get(lease.job_id)
                found.append(held[1] if held is not None and held[0] == lease.attempt else None)
        return found

    def moved(self, tenant: str, leases: Iterable[Lease]) -> None:
        """The rows of these tickets are about to be changed: they will lie elsewhere."""
        for lease in leases:
            jobs = self._jobs_of(tenant, lease.token)
            held = jobs.get(lease.job_id)
            if held is not None:
                jobs[lease.job_id] = (held[0], None)

    def answered(self, tenant: str, leases: Iterable[Lease]) -> None:
        """The store has said what became of these tickets. A ticket that is not one of ours says nothing."""
        for token, together in groupby(leases, key=_token):
            jobs = self._jobs_of(tenant, token)
            before = len(jobs)
            for lease in together:
                held = jobs.get(lease.job_id)
                if held is not None and held[0] == lease.attempt:
                    del jobs[lease.job_id]
            self._settled(token, before, jobs)

    def told(self, token: UUID, revoked: Iterable[UUID]) -> None:
        """The worker was told that these jobs are revoked: nothing more will come for them."""
        _, jobs = self._open.get(token, ("", {}))
        before = len(jobs)
        for id in revoked:
            jobs.pop(id, None)
        self._settled(token, before, jobs)

    def _jobs_of(self, tenant: str, token: UUID) -> dict[UUID, Held]:
        """The outstanding jobs of a grant of this tenant; none for one that is not known here."""
        owner, jobs = self._open.get(token, (tenant, {}))
        return jobs if owner == tenant else {}

    def _settled(self, token: UUID, before: int, jobs: dict[UUID, Held]) -> None:
        self._jobs -= before - len(jobs)
        if before and not jobs:
            del self._open[token]
            self.keep([token])

    def take_ended(self) -> list[UUID]:
        """The grants to delete now. Hand them back with `keep` if the statement failed."""
        ended, self._ended = self._ended, []
        return ended

    def keep(self, tokens: list[UUID]) -> None:
        self._ended = (self._ended + tokens)[-MOST_ENDED:]
