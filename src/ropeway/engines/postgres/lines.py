"""The log of a job: what its handler says while it runs, on a connection that no claim or outcome waits for."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ropeway.core.errors import RopewayError
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.joblog import DEFAULT_LINES, MAX_LINES, LogLine, check_lines, kept_line
from ropeway.core.lease import Lease
from ropeway.engines import settling
from ropeway.engines.postgres.outcomes import PostgresOutcomes, tickets_of
from ropeway.engines.settling import after_write


class PostgresLines(PostgresOutcomes):
    async def log(
        self, lines: Sequence[tuple[Lease, LogLine]], *, tenant: str = DEFAULT_TENANT
    ) -> list[RopewayError | None]:
        if not lines:
            return []
        leases = [lease for lease, _ in lines]
        kept = [kept_line(line, attempt=lease.attempt, n=0, at=None) for lease, line in lines]
        rows = await self.notes.fetch(
            self.sql("lines", "append"),
            tenant, *tickets_of(leases), [line.level for line in kept], [line.message for line in kept], MAX_LINES,
        )  # fmt: skip
        taken = {row["item"] for row in rows}
        refused = [lease.job_id for item, lease in enumerate(leases, 1) if item not in taken]
        tickets = await after_write(self.last_tickets(tenant, refused)) if refused else {}
        return [
            None if item in taken else settling.refusal(lease, tickets.get(lease.job_id))
            for item, lease in enumerate(leases, 1)
        ]

    async def log_of(
        self, id: UUID, *, after: int = 0, limit: int = DEFAULT_LINES, tenant: str = DEFAULT_TENANT
    ) -> list[LogLine]:
        check_lines(after, limit)
        rows = await self.reads.fetch(self.sql("lines", "lines_of"), tenant, id, after, limit, writes=False)
        return [LogLine(**row) for row in rows]
