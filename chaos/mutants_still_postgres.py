"""The PostgreSQL engine on virtual time: a schema to throw away, whose clock is the simulation's.

Each call of the simulation runs to its end on a loop of its own while the simulated world stands still. The
functions of the schema can be exchanged for broken ones meanwhile.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import asyncpg

from chaos.mutants_statements import Alteration, replaced
from chaos.simulation import EngineMaker
from ropeway.core.errors import Indeterminate
from ropeway.engines import sqlfile
from ropeway.engines.choosing import PriorityOrders
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.postgres.cursors import LaneCursors
from ropeway.engines.protocol import Engine, EngineRules
from ropeway.runtime.clock import Clock
from ropeway.testing.postgres import PostgresHarness, PostgresSubject

T = TypeVar("T")

_DEFINITIONS = """
SELECT pg_get_functiondef(p.oid) FROM pg_proc p
WHERE p.pronamespace = $1::regnamespace AND p.proname = $2 ORDER BY p.oid
"""

_HURRY = """
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$
"""


def hurry(url: str) -> None:
    """Commits to that database wait for no disk any more: what dies with the machine is no matter here, and
    waiting would be most of the time. Before anybody uses it."""
    asyncio.run(_execute(url, [_HURRY]))


async def _execute(url: str, statements: Iterable[str]) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


class _Harness(PostgresHarness):
    """Makes engines of any class, which need not be durable."""

    made: type[PostgresEngine] = PostgresEngine

    def engine(self, rules: EngineRules) -> PostgresEngine:
        return self.made(
            self.url,
            rules,
            schema=self.schema,
            durability="relaxed",
            test_clock=True,
            sweep_budget=0.0,
            days_ahead=1,
        )


class StillPostgres:
    """One run's engine. Everything that it offers it does at once, at the time that the simulation has.

    One that `is_broken` may trip over what it has done itself (two ends of one job, say), in the database's own
    words: nobody knows then what became of the call. Of a right engine that would be a defect, and ends the run.
    """

    def __init__(self, stage: PostgresStage, rules: EngineRules, clock: Clock, *, is_broken: bool) -> None:
        self._stage = stage
        self._rules = rules
        self._clock = clock
        self._is_broken = is_broken
        self._held = stage.harness.subject(rules)
        self._subject: PostgresSubject

    async def open(self) -> None:
        self._subject = self._stage.run(self._held.__aenter__())
        engine = cast("PostgresEngine", self._subject.engine)
        # Hints that age by the machine's clock would let its speed decide which job is next.
        engine.cursors = LaneCursors(0.0, self._seconds)
        engine.orders = PriorityOrders(
            self._rules.ageing_seconds, self._rules.ageing_lookup_seconds, self._seconds
        )

    async def close(self) -> None:
        self._stage.run(self._held.__aexit__(None, None, None))

    def __getattr__(self, name: str) -> Any:
        offered = getattr(self._subject.engine, name)
        if not inspect.iscoroutinefunction(offered):
            return offered

        async def at_once(*args: Any, **options: Any) -> Any:
            try:
                return self._stage.run(self._now(lambda: offered(*args, **options)))
            except asyncpg.PostgresError as error:
                if not self._is_broken:
                    raise
                raise Indeterminate(f"the store says: {error}") from error

        return at_once

    def _seconds(self) -> float:
        return self._clock.now().timestamp()

    async def _now(self, call: Callable[[], Awaitable[T]]) -> T:
        """Set the store's clock, then call."""
        passed = (self._clock.now() - self._subject.clock.now()).total_seconds()
        if passed:
            await self._subject.advance(passed)
        return await call()


class PostgresStage:
    """A schema in a database that may be spoiled. One process uses it, one run at a time."""

    def __init__(self, url: str, schema: str = "chaos") -> None:
        self.harness = _Harness(url, schema=schema)
        self._loop = asyncio.new_event_loop()
        self.run(self._migrate())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        self._loop.close()

    @contextmanager
    def broken(self, made: type[PostgresEngine], changes: Sequence[Alteration]) -> Iterator[EngineMaker]:
        """What makes engines of that class over changed functions, while the block runs."""
        before = self.run(self._definitions({change.statement for change in changes}))
        after = {
            name: [self._changed(text, [each for each in changes if each.statement == name]) for text in texts]
            for name, texts in before.items()
        }
        self._define(after)
        self.harness.made = made
        try:
            is_broken = bool(changes) or made is not PostgresEngine
            yield lambda rules, clock: cast("Engine", StillPostgres(self, rules, clock, is_broken=is_broken))
        finally:
            self.harness.made = PostgresEngine
            self._define(before)

    def _changed(self, definition: str, changes: Sequence[Alteration]) -> str:
        holes = {"schema": self.harness.schema, "now": f"{self.harness.schema}.test_now()"}
        for change in changes:
            old, new = sqlfile.fill(change.old, holes), sqlfile.fill(change.new, holes)
            definition = replaced(definition, change._replace(old=old, new=new))
        return definition

    async def _definitions(self, names: set[str]) -> dict[str, list[str]]:
        """The functions of these names, as statements that make them what they are now."""
        connection = await asyncpg.connect(self.harness.url)
        try:
            found = {
                name: [row[0] for row in await connection.fetch(_DEFINITIONS, self.harness.schema, name)]
                for name in sorted(names)
            }
        finally:
            await connection.close()
        if unknown := [name for name, texts in found.items() if not texts]:
            raise LookupError(f"there is no function {', '.join(unknown)}")
        return found

    def _define(self, definitions: Mapping[str, Sequence[str]]) -> None:
        self.run(_execute(self.harness.url, itertools.chain.from_iterable(definitions.values())))

    async def _migrate(self) -> None:
        async with self.harness.subject():
            pass
