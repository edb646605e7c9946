"""The SQLite engine on virtual time: all of its statements and transactions, none of its threads.

What is asked for is done before the call returns. So it runs in a world whose tasks are no asyncio tasks, as the
memory engine does, and a run is a matter of its seed alone.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ropeway.engines.choosing import PriorityOrders
from ropeway.engines.protocol import EngineRules
from ropeway.engines.sqlite import SqliteEngine
from ropeway.engines.sqlite.answering import _resolve
from ropeway.engines.sqlite.opening import Database
from ropeway.engines.sqlite.readers import Readers
from ropeway.engines.sqlite.signalling import Signals
from ropeway.engines.sqlite.writer import Verb, Writer, _Call
from ropeway.runtime.clock import Clock

Asked = TypeVar("Asked")
Told = TypeVar("Told")

#: In memory, where there is such a place: virtual time does not wait for disks.
_FOLDERS = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class WriterAtOnce(Writer):
    """Each call is a transaction, done where it is asked for; the thread has nothing to do."""

    #: Makes the futures. It never runs: whoever awaits one of them finds it done.
    loop: asyncio.AbstractEventLoop

    def submit(self, verb: Verb[Asked, Told], asked: Asked, weight: int = 1) -> asyncio.Future[Told]:
        future: asyncio.Future[Told] = self.loop.create_future()
        _resolve(self._flush([_Call(verb, asked, future, weight)]))
        woken, self._woken = self._woken, set()
        self._wake(woken)
        return future


class ReadersAtOnce(Readers):
    """Questions are answered where they are asked."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._db = database.connect(writes=False)

    def ask(self, question: Callable[[sqlite3.Connection], Told]) -> asyncio.Future[Told]:
        future: asyncio.Future[Told] = self.loop.create_future()
        future.set_result(self._read(self._db, question))
        return future

    def close(self) -> None:
        super().close()
        self._db.close()


class _OwnSignals(Signals):
    """Nobody else writes to the file, so nobody has to look for what others wrote."""

    def begin_waiting(self) -> None:
        pass

    def end_waiting(self) -> None:
        pass


class StillSqlite(SqliteEngine):
    """A database of its own, which is gone once it is closed."""

    writer = WriterAtOnce

    def __init__(self, rules: EngineRules, clock: Clock) -> None:
        self._folder = tempfile.mkdtemp(prefix="ropeway-chaos-", dir=_FOLDERS)
        super().__init__(Path(self._folder) / "ropeway.db", rules, clock)
        self.signals = _OwnSignals(self.database, clock)
        self.orders = PriorityOrders(
            rules.ageing_seconds, rules.ageing_lookup_seconds, lambda: clock.now().timestamp()
        )
        self._loop = asyncio.new_event_loop()

    async def open(self) -> None:
        db, turnstile = self._open()
        writer = self.writer(self.database, db, turnstile, self.clock, self.signals.wake)
        readers = ReadersAtOnce(self.database)
        writer.loop = readers.loop = self._loop
        self._writer, self._readers = writer, readers

    async def close(self) -> None:
        writer, readers = self._writer, self._readers
        self._writer = self._readers = None
        if writer is not None and readers is not None:
            readers.close()
            writer.close()
        self._loop.close()
        shutil.rmtree(self._folder)
