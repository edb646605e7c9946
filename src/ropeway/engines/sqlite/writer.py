"""The one thread that writes: everything that was asked for meanwhile goes into one transaction.

A call is a verb and its arguments. Calls of the same verb that follow one another are handed to the verb together,
so that it can move them with one statement. Callers are answered after the commit, all at once: what they are told
is durable. A verb refuses before it writes, so a refused call leaves nothing behind; if something unforeseen
breaks a transaction, it is rolled back and its calls are done again one by one, so that only the culprit fails.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from ropeway.core.errors import EngineError, Indeterminate, RopewayError, Unavailable
from ropeway.engines.sqlite.answering import Answer, check_process, deliver
from ropeway.engines.sqlite.opening import Database, primary_code
from ropeway.engines.sqlite.rows import micros
from ropeway.engines.sqlite.signalling import Lane
from ropeway.engines.sqlite.turnstile import Turnstile
from ropeway.runtime.clock import Clock
from ropeway.runtime.faultpoints import fault

Asked = TypeVar("Asked")
Told = TypeVar("Told")

#: A transaction takes calls until they weigh this much (one job weighs one).
FLUSH_WEIGHT = 5_000

log = logging.getLogger("ropeway.engines.sqlite")


class Transaction:
    """The open transaction of a flush: its connection, its time, and the lanes to wake once it is committed."""

    __slots__ = ("db", "now", "woken")

    def __init__(self, db: sqlite3.Connection, now: int) -> None:
        self.db = db
        self.now = now
        self.woken: set[Lane] = set()


#: What a verb is: the arguments of several calls to their answers, in order; an error is raised to its caller.
Verb = Callable[[Transaction, Sequence[Asked]], Sequence[Told | RopewayError]]


def one_by_one(verb: Callable[[Transaction, Asked], Told]) -> Verb[Asked, Told]:
    """A verb that gains nothing from being called for many: its calls are done one after the other."""

    def many(tx: Transaction, calls: Sequence[Asked]) -> Sequence[Told | RopewayError]:
        answers: list[Told | RopewayError] = []
        for asked in calls:
            try:
                answers.append(verb(tx, asked))
            except RopewayError as error:
                answers.append(error)
        return answers

    return many


class _Call(NamedTuple):
    verb: Verb[Any, Any]
    asked: Any
    future: asyncio.Future[Any]
    weight: int


_of_verb = attrgetter("verb")


class Writer:
    """Owns the write connection and the turnstile."""

    def __init__(
        self,
        database: Database,
        db: sqlite3.Connection,
        turnstile: Turnstile,
        clock: Clock,
        wake: Callable[[set[Lane]], None],
    ) -> None:
        self._database = database
        self._file = database.identity()
        self._db = db
        self._turnstile = turnstile
        self._clock = clock
        self._wake = wake
        self._woken: set[Lane] = set()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._process = os.getpid()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="ropeway-sqlite-writer", daemon=True)
        self._thread.start()

    def submit(self, verb: Verb[Asked, Told], asked: Asked, weight: int = 1) -> asyncio.Future[Told]:
        """The answer to a call, once it is durable."""
        check_process(self._process)
        if self._closed:
            raise Unavailable("the engine is closed")
        future: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._calls.put(_Call(verb, asked, future, weight))
        return future

    def close(self) -> None:
        """Finish what was submitted and close the connection. Blocks for as long as that takes."""
        self._closed = True
        if os.getpid() == self._process:
            self._calls.put(None)
            self._thread.join()

    def _run(self) -> None:
        more = True
        while more:
            calls, more = self._gather()
            if calls:
                deliver(self._flush(calls))
                if self._woken:
                    self._wake(self._woken)
                    self._woken = set()
        self._db.close()
        self._turnstile.close()

    def _gather(self) -> tuple[list[_Call], bool]:
        """Wait for a call and take what else is there; False when it was the last."""
        calls: list[_Call] = []
        weight = 0
        try:
            call = self._calls.get()
            while call is not None:
                # A caller that gave up before its call was begun gets what it wants: nothing is done.
                if not call.future.done():
                    calls.append(call)
                    weight += call.weight
                if weight >= FLUSH_WEIGHT:
                    return calls, True
                call = self._calls.get_nowait()
        except queue.Empty:
            return calls, True
        return calls, False

    def _flush(self, calls: list[_Call]) -> list[Answer]:
        try:
            return self._transact(calls)
        except (sqlite3.Error, EngineError) as error:
            if not _belongs_to_a_call(error):
                return [(call.future, _store_error(error)) for call in calls]
            failure: Exception = error
        except Exception as error:  # noqa: BLE001 - whatever it is, its own caller gets it
            failure = error
        if len(calls) == 1:
            log.error("a call failed inside the database", exc_info=failure)
            return [(calls[0].future, failure)]
        return [answer for call in calls for answer in self._flush([call])]

    def _transact(self, calls: list[_Call]) -> list[Answer]:
        """All calls in one transaction, durable when this returns."""
        self._turnstile.enter()
        try:
            self._check_file()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                tx = Transaction(self._db, micros(self._clock.now()))
                answers: list[Answer] = []
                for verb, group in groupby(calls, _of_verb):
                    together = list(group)
                    told = verb(tx, [call.asked for call in together])
                    answers += [(call.future, answer) for call, answer in zip(together, told, strict=True)]
                fault("commit.before")
            except BaseException:
                self._roll_back()
                raise
            self._commit()
        finally:
            self._turnstile.leave()
        # Nothing may fail between the commit and the answers: calls that fail are done again.
        self._woken |= tx.woken
        return answers

    def _check_file(self) -> None:
        """SQLite would go on writing to a file that was deleted, and everything would be gone with the process."""
        if self._database.identity() != self._file:
            raise Unavailable(
                f"the database {self._database.path} was removed or replaced while it was open",
                hint="put it back or restart; nothing was stored",
            )

    def _commit(self) -> None:
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            if primary_code(error) in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT):
                # The log may hold the whole transaction although its sync failed.
                raise Indeterminate(f"the disk failed during the commit: {error}") from error
            raise

    def _roll_back(self) -> None:
        # SQLite has rolled back by itself after some errors, a full disk among them.
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")


def _belongs_to_a_call(error: Exception) -> bool:
    """Whether an error comes from what one call asked for, rather than from the state of the store."""
    return isinstance(error, sqlite3.Error) and primary_code(error) in _OF_A_CALL


_OF_A_CALL = frozenset(
    {0, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG}
)


def _store_error(error: Exception) -> EngineError:
    """What every caller of a broken flush is told; a new error for each, as tracebacks grow on it."""
    if isinstance(error, EngineError):
        return type(error)(error.message, hint=error.hint)
    return unavailable(error)


def unavailable(error: Exception) -> Unavailable:
    """SQLite's own words for why nothing can be done now."""
    code = primary_code(error)
    if code == sqlite3.SQLITE_FULL:
        return Unavailable("the disk is full", hint="nothing was stored; make room and try again")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable("the database is locked by another program", hint="nothing was stored; try again")
    return Unavailable(f"the database cannot be used: {error}")
