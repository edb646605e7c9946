"""Grants of this process: where the rows of their jobs lie, and which grants are done with (known answers only,
never a worker's own count)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from uuid import UUID

from ropeway.core.lease import Lease

#: Grants remembered at most; a forgotten one simply expires, and the rescuer removes it.
MEMORY = 20_000

_token = attrgetter("token")

#: A page of a table and an item there: where a row lies until it is changed.
Place = tuple[int, int]


class GrantBook:
    """Outstanding jobs per grant. A grant whose jobs all have a known answer is deleted by a later statement."""

    def __init__(self) -> None:
        self._open: dict[UUID, tuple[str, dict[UUID, int], Mapping[UUID, Place]]] = {}
        self._ended: list[UUID] = []

    def opened(self, token: UUID, tenant: str, attempts: dict[UUID, int], places: Mapping[UUID, Place]) -> None:
        """A grant was made for these jobs, each with its attempt and its row's place."""
        if len(self._open) >= MEMORY:
            del self._open[next(iter(self._open))]
        self._open[token] = (tenant, attempts, places)

    def places(self, leases: Iterable[Lease]) -> list[Place | None]:
        """Where the rows of these jobs lay when they were claimed, as far as that is known here: a hint."""
        found: list[Place | None] = []
        for token, together in groupby(leases, key=_token):
            held = self._open.get(token)
            if held is None:
                found += [None for _ in together]
            else:
                place = held[2].get
                found += [place(lease.job_id) for lease in together]
        return found

    def answered(self, tenant: str, leases: Iterable[Lease]) -> None:
        """The store has said what became of these tickets. A ticket that is not one of ours says nothing."""
        for token, together in groupby(leases, key=_token):
            held = self._open.get(token)
            if held is None or held[0] != tenant:
                continue
            attempts = held[1]
            for lease in together:
                if attempts.get(lease.job_id) == lease.attempt:
                    del attempts[lease.job_id]
            if not attempts:
                self._end(token)

    def told(self, token: UUID, revoked: Iterable[UUID]) -> None:
        """The worker was told that these jobs are revoked: nothing more will come for them."""
        held = self._open.get(token)
        if held is not None:
            for id in revoked:
                held[1].pop(id, None)
            if not held[1]:
                self._end(token)

    def _end(self, token: UUID) -> None:
        del self._open[token]
        self.keep([token])

    def take_ended(self) -> list[UUID]:
        """The grants to delete now. Hand them back with `keep` if the statement failed."""
        ended, self._ended = self._ended, []
        return ended

    def keep(self, tokens: list[UUID]) -> None:
        # A grant that is not deleted here simply expires.
        self._ended = (self._ended + tokens)[-MEMORY:]
