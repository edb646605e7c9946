"""Who is next: a heap per (tenant, queue, priority), with entries that may have gone stale."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from datetime import datetime
from uuid import UUID

from ropeway.engines.memory.rows import JobRow

Entry = tuple[datetime, int, UUID]


class Lanes:
    """The free jobs of every lane in claim order.

    An entry is only a pointer: a job that was cancelled, moved or leased since leaves its entry behind, and the
    entry is dropped when it comes to the top.
    """

    def __init__(self, row: Callable[[UUID], JobRow | None]) -> None:
        self._row = row
        self._heaps: dict[tuple[str, str, int], list[Entry]] = {}

    def add(self, row: JobRow) -> None:
        heap = self._heaps.setdefault((row.tenant, row.queue, row.priority), [])
        heapq.heappush(heap, (row.run_at, row.place, row.id))

    def take(self, tenant: str, queue: str, priority: int, now: datetime) -> Iterator[JobRow]:
        """The startable jobs, first in, first out; each is taken out of the lane as it is yielded."""
        heap = self._heaps.get((tenant, queue, priority), [])
        while heap and heap[0][0] <= now:
            entry = heapq.heappop(heap)
            # A job that was moved away and back has two entries alike: it is one job still.
            while heap and heap[0] == entry:
                heapq.heappop(heap)
            row = self._live(entry, (tenant, queue, priority))
            if row is not None and row.startable(now):
                yield row

    def oldest_due(self, tenant: str, queue: str, priority: int, now: datetime) -> datetime | None:
        """When the first startable job became due."""
        heap = self._heaps.get((tenant, queue, priority), [])
        while heap and heap[0][0] <= now:
            row = self._live(heap[0], (tenant, queue, priority))
            if row is not None and row.startable(now):
                return heap[0][0]
            heapq.heappop(heap)
        return None

    def next_due(self, tenant: str, queue: str, priority: int) -> datetime | None:
        """When the next free job is due, now or later."""
        heap = self._heaps.get((tenant, queue, priority), [])
        while heap:
            if self._live(heap[0], (tenant, queue, priority)) is not None:
                return heap[0][0]
            heapq.heappop(heap)
        return None

    def _live(self, entry: Entry, lane: tuple[str, str, int]) -> JobRow | None:
        """The job an entry points to, unless the entry has gone stale."""
        row = self._row(entry[2])
        if row is None or row.ended is not None or row.token is not None:
            return None
        if (row.run_at, row.place) != entry[:2] or (row.tenant, row.queue, row.priority) != lane:
            return None
        return row
