"""Which grants of this process are done with: known answers only, never a worker's own count."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

#: Grants remembered at most; a forgotten one simply expires, and the rescuer removes it.
MEMORY = 20_000


class GrantBook:
    """Outstanding jobs per grant. A grant whose jobs all have a known answer is deleted by a later statement."""

    def __init__(self) -> None:
        self._open: dict[UUID, set[UUID]] = {}
        self._ended: list[UUID] = []

    def opened(self, token: UUID, ids: Iterable[UUID]) -> None:
        if len(self._open) >= MEMORY:
            del self._open[next(iter(self._open))]
        self._open[token] = set(ids)

    def answered(self, token: UUID, id: UUID) -> None:
        """The store has said what became of this job under this grant."""
        waiting = self._open.get(token)
        if waiting is None:
            return
        waiting.discard(id)
        if not waiting:
            del self._open[token]
            self._ended.append(token)

    def take_ended(self) -> list[UUID]:
        """The grants to delete now. Hand them back with `keep` if the statement failed."""
        ended, self._ended = self._ended, []
        return ended

    def keep(self, tokens: list[UUID]) -> None:
        self._ended += tokens
