"""What all parts of the SQLite engine share: the open file, its writer and readers, its clock."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from ropeway.core.errors import ConfigurationError, Unavailable
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.choosing import PriorityOrders
from ropeway.engines.protocol import EngineRules
from ropeway.engines.sqlite.migrating import bring_up_to_date
from ropeway.engines.sqlite.opening import Database, Durability, opening_error
from ropeway.engines.sqlite.readers import Readers
from ropeway.engines.sqlite.rows import micros
from ropeway.engines.sqlite.signalling import Signals, SqliteSubscription
from ropeway.engines.sqlite.turnstile import Turnstile
from ropeway.engines.sqlite.writer import Verb, Writer
from ropeway.runtime.clock import Clock, SystemClock

Asked = TypeVar("Asked")
Told = TypeVar("Told")


class SqliteStore:
    """One handle on a database file."""

    def __init__(
        self,
        path: str | Path,
        rules: EngineRules = EngineRules(),
        clock: Clock | None = None,
        durability: Durability = "full",
    ) -> None:
        if not str(path) or str(path) == ":memory:":
            raise ConfigurationError(
                "the SQLite engine needs a file", hint="sqlite:///ropeway.db; for tests there is memory://"
            )
        self.rules = rules
        self.clock: Clock = clock or SystemClock()
        self.database = Database(Path(path).absolute(), durability)
        self.orders = PriorityOrders(rules.ageing_seconds, rules.ageing_lookup_seconds)
        self.signals = Signals(self.database, self.clock)
        self._writer: Writer | None = None
        self._readers: Readers | None = None

    async def open(self) -> None:
        """Check the place, SQLite and its settings, and bring the schema up to date."""
        if self._writer is not None:
            return
        db, turnstile = await asyncio.to_thread(self._open)
        self._writer = Writer(self.database, db, turnstile, self.clock, self.signals.wake)
        self._readers = Readers(self.database)

    def _open(self) -> tuple[sqlite3.Connection, Turnstile]:
        self.database.check()
        try:
            turnstile = Turnstile(self.database.path)
        except OSError as error:
            raise ConfigurationError(
                f"the lock files beside {self.database.path} cannot be used: {error}"
            ) from error
        try:
            turnstile.enter()
            try:
                db = self.database.connect(writes=True)
                try:
                    bring_up_to_date(db, self.database, micros(self.clock.now()))
                except BaseException:
                    db.close()
                    raise
            finally:
                turnstile.leave()
        except sqlite3.Error as error:
            turnstile.close()
            raise opening_error(self.database.path, error) from error
        except BaseException:
            turnstile.close()
            raise
        return db, turnstile

    async def close(self) -> None:
        """Finish what was asked for, then let go of the file."""
        writer, readers = self._writer, self._readers
        self._writer = self._readers = None
        await asyncio.to_thread(self.signals.close)
        if writer is not None and readers is not None:
            await asyncio.to_thread(readers.close)
            await asyncio.to_thread(writer.close)

    async def now(self) -> datetime:
        return self.clock.now()

    async def subscribe(self, queues: Collection[str], *, tenant: str = DEFAULT_TENANT) -> SqliteSubscription:
        return self.signals.subscribe(frozenset((tenant, queue) for queue in queues))

    def write(self, verb: Verb[Asked, Told], asked: Asked, weight: int = 1) -> asyncio.Future[Told]:
        """Do `verb` in the next transaction; answered when it is durable."""
        if self._writer is None:
            raise _not_open()
        return self._writer.submit(verb, asked, weight)

    def read(self, question: Callable[[sqlite3.Connection], Told]) -> asyncio.Future[Told]:
        """Ask the database; all statements of one question see the same commit."""
        if self._readers is None:
            raise _not_open()
        return self._readers.ask(question)


def _not_open() -> Unavailable:
    return Unavailable("the engine is not open", hint="use it inside `async with`, or await open() first")
