"""The threads that read: connections of their own, so that no question waits for a writer."""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ropeway.core.errors import Unavailable
from ropeway.engines.sqlite.answering import check_process, deliver
from ropeway.engines.sqlite.opening import Database
from ropeway.engines.sqlite.writer import unavailable

Told = TypeVar("Told")

#: A long listing must not keep short questions waiting.
THREADS = 2


class Readers:
    """Runs questions on read-only connections."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._questions: queue.SimpleQueue[tuple[Callable[[sqlite3.Connection], Any], asyncio.Future[Any]] | None]
        self._questions = queue.SimpleQueue()
        self._process = os.getpid()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"ropeway-sqlite-reader-{number}", daemon=True)
            for number in range(1, THREADS + 1)
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, question: Callable[[sqlite3.Connection], Told]) -> asyncio.Future[Told]:
        """The answer to a question, as of the last commit before it was read."""
        check_process(self._process)
        if self._closed:
            raise Unavailable("the engine is closed")
        future: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._questions.put((question, future))
        return future

    def close(self) -> None:
        self._closed = True
        if os.getpid() != self._process:
            return
        for _ in self._threads:
            self._questions.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        db: sqlite3.Connection | None = None
        while (asked := self._questions.get()) is not None:
            question, future = asked
            if future.done():
                continue
            answer: Any
            try:
                db = db or self._database.connect(writes=False)
                answer = self._read(db, question)
            except sqlite3.Error as error:
                answer = unavailable(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, its own caller gets it
                answer = error
            deliver([(future, answer)])
        if db is not None:
            db.close()

    def _read(self, db: sqlite3.Connection, question: Callable[[sqlite3.Connection], Told]) -> Told:
        """All statements of a question see the same commit."""
        db.execute("BEGIN")
        try:
            return question(db)
        finally:
            if db.in_transaction:
                db.execute("COMMIT")
