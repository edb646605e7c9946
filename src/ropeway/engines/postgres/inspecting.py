"""Inspecting: jobs, counts and queues as they are now; the event log is in tailing.py."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import NamedTuple, TypeAlias
from uuid import UUID

from ropeway.core import query
from ropeway.core.job import DEFAULT_TENANT, Job
from ropeway.core.query import Count, JobFilter, JobPage, Order, QueueSettings, QueueStats
from ropeway.core.states import LIVE_STATES, TERMINAL_STATES, State
from ropeway.engines.postgres.filters import Conditions, ended_conditions, live_conditions
from ropeway.engines.postgres.rows import stored_job, stored_settings
from ropeway.engines.postgres.store import REAL_CLOCK, PostgresStore
from ropeway.runtime.ids import lowest_at

#: Jobs of one way to end that queue statistics look at, at most: beyond that those counts are capped and say so.
ENDED_SCAN = 100_000

#: How many times the cap of a count are looked at, of a queue's live jobs of all states together.
SHARE = 2

#: Jobs that one search by a filter without an index looks at, at most; it goes on from there when it is asked to.
SEARCH = 20_000

#: Pages of the event log that rates are counted in, at most: the newest 35,000 events or so. When a store writes
#: more than that in a minute, its rates are those of a shorter time.
RATE_PAGES = 500

#: How wrong the clocks may be that ids are made by, which are those of producers: a search for a time of creation
#: looks at the ids of so much more before and after it.
SKEW = timedelta(hours=1)

#: Seconds that such a span is taken to be at least.
SHORTEST_SPAN = 0.01

_NO_RATES = (0.0, 0.0)

_RUNNING = frozenset({State.RUNNING})

#: What jobs can be that are free and not due.
_NOT_DUE = frozenset({State.SCHEDULED, State.RETRYING, State.WAITING})


class _Line(NamedTuple):
    """The live jobs of a queue; `is_long`: more than are looked at one by one."""

    counts: dict[State, int]
    oldest: float | None = None
    is_long: bool = False
    #: States whose counts stopped before the cap.
    capped: frozenset[State] = frozenset()


_NOBODY = _Line({})

#: Conditions on ids, each with its value.
_Span: TypeAlias = list[tuple[str, UUID]]


class PostgresInspecting(PostgresStore):
    async def get(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Job | None]:
        live = Conditions()
        ended = live.part()
        for part in (live, ended):
            part.add("j.tenant = ?", tenant)
            part.add("j.id = ANY(?::uuid[])", list(ids))
        # One statement, one snapshot: a job that ends or is redriven meanwhile is in one table or the other.
        statement = (
            f"{self.sql('inspecting', 'live')}{live.where()} UNION ALL "
            f"{self.sql('inspecting', 'ended')}{ended.where()}"
        )
        rows = await self.reads.fetch(statement, *live.parameters, writes=False)
        found = {row["id"]: stored_job(row) for row in rows}
        return [found.get(id) for id in ids]

    async def find(
        self,
        where: JobFilter = JobFilter(),
        *,
        order: Order = "newest",
        limit: int = query.DEFAULT_PAGE,
        after: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> JobPage:
        query.check_page(limit)
        stop: UUID | None = None
        if order == "died":
            jobs = await self._died(where, limit + 1, after, tenant)
        else:
            edge, newest = None if after is None else query.parse_id_position(after), order == "newest"
            span = await self._span(where, tenant)
            if _is_search(where):
                stop = await self._search_end(where, span, edge, tenant, newest=newest)
            jobs = await self._by_id(where, span, limit + 1, edge, stop, tenant, newest=newest)
        page = jobs[:limit]
        if len(jobs) <= limit:
            return JobPage(page, None if stop is None else query.id_position(stop))
        last = page[-1]
        return JobPage(page, query.death_position(last) if order == "died" else query.id_position(last.id))

    async def _span(self, where: JobFilter, tenant: str) -> _Span:
        """Between which ids a filter's jobs are, as conditions: by the times that ids tell, and by who has a key.

        The job that has a key took it last, so those that had it before are older. (Older by their ids, that is by
        the clocks of their producers. A key is free only after its window, which is longer than clocks are apart.)
        """
        span: _Span = []
        if self.holes["now"] == REAL_CLOCK:  # a clock of tests is not the one that ids are made by
            if where.created_after is not None:
                span.append(("j.id >= ?", lowest_at(where.created_after, -SKEW)))
            if where.created_before is not None:
                span.append(("j.id < ?", lowest_at(where.created_before, SKEW)))
        if where.idempotency_key is not None:
            holder = self.sql("inspecting", "key_holder")
            held = await self.reads.value(holder, tenant, where.idempotency_key, writes=False)
            if held is not None:
                span.append(("j.id <= ?", held))
        return span

    async def _search_end(
        self, where: JobFilter, span: _Span, edge: UUID | None, tenant: str, *, newest: bool
    ) -> UUID | None:
        """How far one call looks: to where it has seen SEARCH jobs of one of the tables; None: to the end."""
        states = frozenset(State) if where.states is None else where.states
        direction, beyond = ("DESC", "<") if newest else ("ASC", ">")
        live = Conditions()
        ended = live.part()
        ends = []
        for part, table, there in ((live, "jobs", LIVE_STATES), (ended, "archive", TERMINAL_STATES)):
            if not states & there:
                continue
            part.add("j.tenant = ?", tenant)
            part.add_all(span)
            if part is ended and not states >= TERMINAL_STATES:
                part.add("j.state = ANY(?::text[])", sorted(state.value for state in states & TERMINAL_STATES))
            if edge is not None:
                part.add(f"j.id {beyond} ?", edge)
            tail = f" ORDER BY j.id {direction} OFFSET {part.mark(SEARCH - 1)} LIMIT 1"
            ends.append(f"(SELECT j.id FROM {self.schema}.{table} j{part.where()}{tail})")
        statement = f"SELECT x.id FROM ({' UNION ALL '.join(ends)}) x ORDER BY x.id {direction} LIMIT 1"
        rows = await self.reads.fetch(statement, *live.parameters, writes=False)
        return rows[0]["id"] if rows else None

    async def _by_id(
        self,
        where: JobFilter,
        span: _Span,
        limit: int,
        edge: UUID | None,
        stop: UUID | None,
        tenant: str,
        *,
        newest: bool,
    ) -> list[Job]:
        """Both tables in id order, each by its own index, merged."""
        direction = "DESC" if newest else "ASC"
        live = Conditions()
        ended = live.part()
        selects = []
        for part, name, taken in (
            (live, "live", live_conditions(live, where, tenant, self.holes["now"])),
            (ended, "ended", ended_conditions(ended, where, tenant)),
        ):
            if not taken:
                continue
            part.add_all(span)
            if part is live and where.states == _RUNNING:
                self._granted(live, tenant)
            if edge is not None:
                part.add(f"j.id {'<' if newest else '>'} ?", edge)
            if stop is not None:
                part.add(f"j.id {'>=' if newest else '<='} ?", stop)
            tail = f" ORDER BY j.id {direction} LIMIT {part.mark(limit)}"
            selects.append(f"({self.sql('inspecting', name)}{part.where()}{tail})")
        if not selects:
            return []
        both = " UNION ALL ".join(selects)
        statement = f"SELECT * FROM ({both}) x ORDER BY x.id {direction} LIMIT {live.mark(limit)}"
        rows = await self.reads.fetch(statement, *live.parameters, writes=False)
        return [stored_job(row) for row in rows]

    async def _died(self, where: JobFilter, limit: int, after: str | None, tenant: str) -> list[Job]:
        conditions = Conditions()
        edge = None if after is None else query.parse_death_position(after)
        if not ended_conditions(conditions, where, tenant):
            return []
        conditions.add("j.state = 'dead'")
        if edge is not None:
            conditions.add("(j.finished_at, j.id) < (?, ?)", *edge)
        tail = f" ORDER BY j.finished_at DESC, j.id DESC LIMIT {conditions.mark(limit)}"
        statement = self.sql("inspecting", "ended") + conditions.where() + tail
        rows = await self.reads.fetch(statement, *conditions.parameters, writes=False)
        return [stored_job(row) for row in rows]

    async def count(
        self, where: JobFilter = JobFilter(), *, cap: int = 10_000, tenant: str = DEFAULT_TENANT
    ) -> Count:
        live = Conditions()
        ended = live.part()
        selects = []
        span = await self._span(where, tenant)
        if live_conditions(live, where, tenant, self.holes["now"]):
            live.add_all(span)
            if where.states == _RUNNING:
                self._granted(live, tenant)
            elif where.queue is not None:
                # Always true; it lets the planner take the index by queue.
                live.add("j.queue <> ''")
            selects.append(f"(SELECT 1 FROM {self.schema}.jobs j{live.where()} LIMIT {live.mark(cap + 1)})")
        if ended_conditions(ended, where, tenant):
            ended.add_all(span)
            selects.append(f"(SELECT 1 FROM {self.schema}.archive j{ended.where()} LIMIT {live.mark(cap + 1)})")
        if not selects:
            return Count(0)
        statement = f"SELECT count(*) FROM ({' UNION ALL '.join(selects)}) x"
        number: int = await self.reads.value(statement, *live.parameters, writes=False)
        return Count(min(number, cap), capped=number > cap)

    def _granted(self, live: Conditions, tenant: str) -> None:
        """Running jobs are in no index. Those that grants name are few, however long the backlog is."""
        granted = f"SELECT unnest(g.job_ids) FROM {self.schema}.grants g WHERE g.tenant = ?"
        live.add(f"j.id = ANY(ARRAY({granted}))", tenant)

    async def queue_stats(
        self,
        queues: Collection[str] | None = None,
        *,
        cap: int = 10_000,
        tenant: str = DEFAULT_TENANT,
    ) -> list[QueueStats]:
        live = {row["queue"] for row in await self._read("live_queues", tenant)}
        told = await self._read("told_queues", tenant)
        paused = {row["queue"] for row in told if row["paused"]}
        settings = {row["queue"]: stored_settings(row) for row in told}
        rates = await self._rates(tenant)
        ended, cut_short = await self._ended(tenant)
        names = live | settings.keys() | ended.keys()
        asked = sorted(names if queues is None else names & set(queues))
        line = {queue: await self._line(tenant, queue, cap) for queue in asked if queue in live}
        running = await self._running(tenant) if any(each.is_long for each in line.values()) else {}
        stats = []
        for queue in asked:
            standing = line.get(queue, _NOBODY)
            counts = {**ended.get(queue, {}), **standing.counts}
            if standing.is_long:
                counts[State.RUNNING] = running.get(queue, 0)
            capped = {state for state, number in counts.items() if number > cap} | standing.capped | cut_short
            stats.append(
                QueueStats(
                    queue=queue,
                    paused=queue in paused,
                    counts={state: min(number, cap) for state, number in counts.items() if number},
                    capped=frozenset(capped),
                    oldest_age_seconds=standing.oldest,
                    enqueued_per_minute=rates.get(queue, _NO_RATES)[0],
                    finished_per_minute=rates.get(queue, _NO_RATES)[1],
                    settings=settings.get(queue, QueueSettings()),
                )
            )
        return stats

    async def _line(self, tenant: str, queue: str, cap: int) -> _Line:
        """The live jobs of a queue. Of a long one the running jobs are left for `_running`.

        Long is what was long at the last look and still has as many: to find that out anew takes longer than all
        the rest (23 of 37 ms for 50,000 jobs).
        """
        if (tenant, queue) in self.long_lines:
            line = await self._long_line(tenant, queue, cap)
            if sum(line.counts.values()) > cap:
                return line
            self.long_lines.discard((tenant, queue))
        bound = cap * SHARE + 1
        rows = await self._read("live_counts", tenant, queue, bound)
        counts = {State(row["state"]): row["number"] for row in rows}
        if sum(counts.values()) < bound:
            return _Line(counts, next((row["oldest"] for row in rows if row["state"] == State.QUEUED), None))
        self.long_lines.add((tenant, queue))
        return await self._long_line(tenant, queue, cap)

    async def _long_line(self, tenant: str, queue: str, cap: int) -> _Line:
        bound = cap * SHARE + 1
        rows = await self._read("long_counts", tenant, queue, cap + 1, bound)
        counts = {State(row["state"]): row["number"] for row in rows}
        not_due = sum(number for state, number in counts.items() if state is not State.QUEUED)
        oldest = await self.reads.value(self.sql("inspecting", "first_age"), tenant, queue, writes=False)
        return _Line(counts, oldest, is_long=True, capped=_NOT_DUE if not_due >= bound else frozenset())

    async def _running(self, tenant: str) -> dict[str, int]:
        return {row["queue"]: row["number"] for row in await self._read("running_counts", tenant)}

    async def _ended(self, tenant: str) -> tuple[dict[str, dict[State, int]], frozenset[State]]:
        """Ended jobs by queue and state, and the states of which there are more than were looked at."""
        ended: dict[str, dict[State, int]] = {}
        cut_short: set[State] = set()
        for state in TERMINAL_STATES:
            rows = await self._read(f"{state}_counts", tenant, ENDED_SCAN)
            for row in rows:
                ended.setdefault(row["queue"], {})[state] = row["number"]
            if sum(row["number"] for row in rows) >= ENDED_SCAN:
                cut_short.add(state)
        return ended, frozenset(cut_short)

    async def _rates(self, tenant: str) -> dict[str, tuple[float, float]]:
        """Jobs that came and that ended, per minute, by queue. Around midnight a queue is in two partitions."""
        rates: dict[str, tuple[float, float]] = {}
        for row in await self._read("queue_rates", tenant, query.RATE_SECONDS, RATE_PAGES):
            scale = query.RATE_SECONDS / max(row["seconds"], SHORTEST_SPAN)
            enqueued, finished = rates.get(row["queue"], _NO_RATES)
            rates[row["queue"]] = enqueued + row["enqueued"] * scale, finished + row["finished"] * scale
        return rates

    async def place(self, id: UUID, *, cap: int = 10_000, tenant: str = DEFAULT_TENANT) -> Count | None:
        ahead: int | None = await self.reads.value(
            self.sql("inspecting", "place"), tenant, id, cap + 1, writes=False
        )
        return None if ahead is None else Count(min(ahead, cap), capped=ahead > cap)

    async def _read(self, name: str, *arguments: object) -> list:  # type: ignore[type-arg]
        return await self.reads.fetch(self.sql("inspecting", name), *arguments, writes=False)


def _is_search(where: JobFilter) -> bool:
    """Whether a filter may have to look at far more jobs than it finds.

    Ended jobs lie apart by their state, and grants name the running ones; nothing else that is asked for has an
    index: they would have to be kept up for every job, for the sake of a question that is seldom asked.
    """
    if where.states == _RUNNING:
        return False
    if where.states is not None and where.states != LIVE_STATES and where.states & LIVE_STATES:
        return True
    return any(getattr(where, name) is not None for name in JobFilter.__struct_fields__ if name != "states")
