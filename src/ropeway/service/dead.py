"""Dead jobs: listed by time of death, put together by what killed them, and run again after the fix."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime
from uuid import UUID

import msgspec

from ropeway.core.errorgroups import group_of, is_fingerprint
from ropeway.core.errors import (
    EngineError,
    FieldError,
    Indeterminate,
    InvalidState,
    NotFound,
    RopewayError,
    Unavailable,
)
from ropeway.core.job import DEFAULT_TENANT, Job
from ropeway.core.query import Count, JobFilter
from ropeway.core.states import State
from ropeway.engines.protocol import Engine
from ropeway.service.steps import STEP, ended_by, redrive_in_steps

#: Dead jobs that a dry run counts, at most.
MOST_COUNTED = 100_000

#: Dead jobs, the newest, that are looked at one by one when groups are asked for.
MOST_LOOKED_AT = 10_000

#: Jobs in one page of such a look: they come with their payloads.
LOOK = 100

DEAD = frozenset({State.DEAD})


class Skipped(msgspec.Struct, frozen=True):
    """A job that was not retried, and the code of the reason."""

    id: UUID
    code: str


class Retried(msgspec.Struct, frozen=True):
    """What a retry did, or would do (`dry_run`). `more`: others match, beyond the limit or the look. `broken_off`:
    the store went away before the end."""

    matched: int
    retried: int
    more: bool = False
    dry_run: bool = False
    skipped: tuple[Skipped, ...] = ()
    broken_off: bool = False


class DeadGroup(msgspec.Struct, frozen=True):
    """Dead jobs of one error: its type and its message without what differs each time."""

    fingerprint: str
    type: str
    message: str
    count: int
    first_at: datetime
    last_at: datetime
    sample_id: UUID


class DeadGroups(msgspec.Struct, frozen=True):
    """The groups, largest first. Not `complete`: only the newest `looked_at` dead jobs were looked at. `jobs` are
    the newest of them, as many as were asked for."""

    groups: list[DeadGroup]
    looked_at: int
    complete: bool
    jobs: tuple[Job, ...] = ()


class DeadJobs:
    """The dead jobs of one tenant."""

    def __init__(self, engine: Engine, *, tenant: str = DEFAULT_TENANT) -> None:
        self._engine = engine
        self._tenant = tenant

    async def count(self, where: JobFilter, *, cap: int = MOST_COUNTED) -> Count:
        """How many a filter finds."""
        return await self._engine.count(_dead(where), cap=cap, tenant=self._tenant)

    async def groups(
        self, queue: str | None = None, *, most: int | None = None, show: int = 0, only: str | None = None
    ) -> DeadGroups:
        """What killed them: the newest dead jobs, at most `most`, put together by error. `sample_id` is the newest
        one of a group. The newest `show` jobs come with them, of all groups or of `only` the one with that
        fingerprint."""
        most = MOST_LOOKED_AT if most is None else most
        found: dict[str, DeadGroup] = {}
        shown: list[Job] = []
        looked_at = 0
        complete = True
        async with aclosing(self._newest(JobFilter(queue=queue))) as jobs:
            async for job in jobs:
                if looked_at == most:
                    complete = False
                    break
                looked_at += 1
                fingerprint, type, message = group_of(job)
                died = job.dead_at or job.updated_at
                group = found.get(fingerprint) or DeadGroup(fingerprint, type, message, 0, died, died, job.id)
                # They come newest first, so the last one seen is the first that died.
                found[fingerprint] = msgspec.structs.replace(group, count=group.count + 1, first_at=died)
                if len(shown) < show and only in (None, fingerprint):
                    shown.append(job)
        return DeadGroups(_largest_first(found), looked_at, complete, tuple(shown))

    async def retry(self, ids: Sequence[UUID], *, dry_run: bool = False, by: str | None = None) -> Retried:
        """Run these dead jobs again. Each that is not dead, or not there, is skipped with the reason."""
        asked = list(dict.fromkeys(ids))
        dead: list[UUID] = []
        skipped: list[Skipped] = []
        for id, job in zip(asked, await self._engine.get(asked, tenant=self._tenant), strict=True):
            if job is None:
                skipped.append(Skipped(id, NotFound.code))
            elif job.state is not State.DEAD:
                skipped.append(Skipped(id, InvalidState.code))
            else:
                dead.append(id)
        if dry_run:
            return Retried(len(dead), 0, dry_run=True, skipped=tuple(skipped))
        return await self._redrive(dead, skipped, by=by)

    async def _redrive(self, dead: list[UUID], skipped: list[Skipped], *, by: str | None) -> Retried:
        retried, broken_off = 0, False
        for start in range(0, len(dead), STEP):
            step = dead[start : start + STEP]
            try:
                answers = await self._engine.redrive(step, by=by, tenant=self._tenant)
            except EngineError as error:
                if not retried:
                    raise
                # What the steps before it did is done: the rest is told apart, not instead of it.
                doubt = Indeterminate if isinstance(error, Indeterminate) else Unavailable
                skipped += [Skipped(id, doubt.code if id in step else Unavailable.code) for id in dead[start:]]
                broken_off = True
                break
            for id, answer in zip(step, answers, strict=True):
                if isinstance(answer, RopewayError):
                    # Somebody was faster.
                    skipped.append(Skipped(id, answer.code))
                else:
                    retried += 1
        return Retried(len(dead), retried, skipped=tuple(skipped), broken_off=broken_off)

    async def retry_where(
        self,
        where: JobFilter,
        *,
        fingerprint: str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        by: str | None = None,
    ) -> Retried:
        """Run the dead jobs again that a filter finds, at most `limit`, in no promised order.

        Only those that were dead when it began: one that runs and dies again meanwhile stays dead. With the
        `fingerprint` of a group only the jobs of that group, found among the newest dead.
        """
        if fingerprint is not None and not is_fingerprint(fingerprint):
            raise FieldError(
                "fingerprint must be 16 hexadecimal digits", pointer="/fingerprint", hint="as the groups have it"
            )
        if limit is not None and limit < 1:
            raise FieldError("limit must be at least 1", pointer="/limit")
        where = _dead(ended_by(where, await self._engine.now()))
        if fingerprint is not None:
            return await self._retry_group(where, fingerprint, limit, dry_run=dry_run, by=by)
        if dry_run:
            count = await self.count(where)
            matched = count.number if limit is None else min(count.number, limit)
            return Retried(matched, 0, more=count.capped or matched < count.number, dry_run=True)
        done = await redrive_in_steps(self._engine, where, limit=limit, by=by, tenant=self._tenant, size=STEP)
        return Retried(done.done, done.done, more=done.more, broken_off=done.broken_off)

    async def retry_groups(
        self, where: JobFilter, fingerprints: Sequence[str], *, limit: int, by: str | None = None
    ) -> Retried:
        """The same for several groups one after another, at most `limit` jobs of all together; without any for all
        that the filter finds.

        It ends where the store goes away. Raises what the store says as long as nothing was done.
        """
        # What dies again while the first groups are replayed is not of the later ones either.
        where = ended_by(where, await self._engine.now())
        matched = retried = 0
        more = broken_off = False
        chosen: Sequence[str | None] = fingerprints or [None]
        for fingerprint in chosen:
            if retried == limit:
                more = True
                break
            try:
                one = await self.retry_where(where, fingerprint=fingerprint, limit=limit - retried, by=by)
            except EngineError:
                if not retried:
                    raise
                one = Retried(0, 0, broken_off=True)
            matched, retried = matched + one.matched, retried + one.retried
            more = more or one.more
            if one.broken_off:
                more = broken_off = True
                break
        return Retried(matched, retried, more=more, broken_off=broken_off)

    async def _retry_group(
        self, where: JobFilter, fingerprint: str, limit: int | None, *, dry_run: bool, by: str | None
    ) -> Retried:
        ids: list[UUID] = []
        looked_at, more = 0, False
        async with aclosing(self._newest(where)) as jobs:
            async for job in jobs:
                looked_at += 1
                of_group = group_of(job)[0] == fingerprint
                more = looked_at > MOST_LOOKED_AT or (of_group and len(ids) == limit)
                if more:
                    break
                if of_group:
                    ids.append(job.id)
        done = Retried(len(ids), 0, dry_run=True) if dry_run else await self._redrive(ids, [], by=by)
        # A look that was cut and moved nothing would find nothing the next time either.
        return msgspec.structs.replace(done, more=more and (dry_run or done.retried > 0))

    async def _newest(self, where: JobFilter) -> AsyncGenerator[Job, None]:
        """Dead jobs, the newest death first."""
        after: str | None = None
        while True:
            page = await self._engine.find(
                _dead(where), order="died", limit=LOOK, after=after, tenant=self._tenant
            )
            for job in page.jobs:
                yield job
            after = page.next
            if after is None:
                return


def _largest_first(found: dict[str, DeadGroup]) -> list[DeadGroup]:
    return sorted(found.values(), key=lambda group: (-group.count, group.fingerprint))


def _dead(where: JobFilter) -> JobFilter:
    return msgspec.structs.replace(where, states=DEAD)
