"""Signals: listeners of this process are woken at once, those of other processes by a look at the file.

While someone waits, a thread reads `PRAGMA data_version` (2 µs): it changes with every commit of another
connection. Only then the lanes that are listened to are looked at. When nobody waits the thread sleeps.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import threading
import time
from collections.abc import Iterable

from ropeway.core.errors import EngineError
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.opening import Database
from ropeway.engines.sqlite.rows import micros, text
from ropeway.runtime.clock import Clock

#: (tenant, queue)
Lane = tuple[str, str]

#: Between two looks at the file while someone waits: a twentieth of the time that it has not changed for, so that
#: news comes late by a small share of what it was waited for. A hundred looks a second take about 1 % of a core.
QUIET_SHARE = 0.05
SHORTEST_PAUSE, LONGEST_PAUSE = 0.002, 0.04
#: A look at very many lanes takes longer, and a busy file changes all the time: then so much longer not to look,
#: but never for longer than half of what a poll waits.
PAUSES_PER_LOOK = 9
LONGEST_REST = 0.5

SQL = statements("ropeway.engines.sqlite", "sql/leasing.sql")
log = logging.getLogger("ropeway.engines.sqlite")


class SqliteSubscription:
    """One listener: remembers a signal until it is asked for."""

    def __init__(self, signals: Signals, lanes: frozenset[Lane]) -> None:
        self._signals = signals
        self.lanes = lanes
        self.signalled = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    async def wait(self, timeout: float) -> bool:
        if not self.signalled.is_set():
            self._signals.begin_waiting()
            try:
                async with asyncio.timeout(timeout):
                    await self.signalled.wait()
            except TimeoutError:
                return False
            finally:
                self._signals.end_waiting()
        self.signalled.clear()
        return True

    async def close(self) -> None:
        self._signals.unsubscribe(self)


class Signals:
    """The listeners of one handle."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._subscriptions: set[SqliteSubscription] = set()
        self._waiting = 0
        self._someone_waits = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def subscribe(self, lanes: frozenset[Lane]) -> SqliteSubscription:
        subscription = SqliteSubscription(self, lanes)
        with self._lock:
            self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: SqliteSubscription) -> None:
        with self._lock:
            self._subscriptions.discard(subscription)

    def wake(self, lanes: Iterable[Lane]) -> None:
        """Tell listeners that there may be work. Called from any thread, once per transaction."""
        if not self._subscriptions:
            return
        lanes = frozenset(lanes)
        with self._lock:
            woken = [s for s in self._subscriptions if not s.lanes.isdisjoint(lanes)]
        by_loop: dict[asyncio.AbstractEventLoop, list[SqliteSubscription]] = {}
        for subscription in woken:
            by_loop.setdefault(subscription.loop, []).append(subscription)
        for loop, listeners in by_loop.items():
            try:
                loop.call_soon_threadsafe(_signal, listeners)
            except RuntimeError:
                # The loop was closed: nobody listens there any more.
                continue

    def begin_waiting(self) -> None:
        with self._lock:
            self._waiting += 1
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="ropeway-sqlite-signals", daemon=True)
                self._thread.start()
        self._someone_waits.set()

    def end_waiting(self) -> None:
        with self._lock:
            self._waiting -= 1
            if self._waiting == 0:
                self._someone_waits.clear()

    def close(self) -> None:
        """End the looking; who still waits goes by its own timeout."""
        self._closed.set()
        self._someone_waits.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._closed.clear()
        self._someone_waits.clear()

    def _run(self) -> None:
        try:
            db = self._database.connect(writes=False)
        except EngineError as error:
            log.warning("other processes' new jobs are only found by polling: %s", error)
            return
        version = None
        changed_at = time.monotonic()
        known: dict[Lane, float] = {}
        while not self._closed.is_set():
            began = time.thread_time()
            try:
                (seen,) = db.execute("PRAGMA data_version").fetchone()
                if seen != version:
                    version = seen
                    changed_at = time.monotonic()
                    self.wake(self._look(db, known))
            except sqlite3.Error as error:
                log.warning("could not look for other processes' new jobs: %s", error)
            # The processor's time: what waits for the interpreter, or for a lock, is no work to spare.
            took = time.thread_time() - began
            self._closed.wait(pause_after(time.monotonic() - changed_at, took=took))
            self._someone_waits.wait()
        db.close()

    def _look(self, db: sqlite3.Connection, known: dict[Lane, float]) -> list[Lane]:
        """The lanes with a job that is due, or due sooner than at the last look."""
        with self._lock:
            lanes = sorted({lane for subscription in self._subscriptions for lane in subscription.lanes})
        now = micros(self._clock.now())
        dues = dict.fromkeys(lanes, math.inf)
        dues |= {
            lanes[position]: due
            for position, due in db.execute(SQL["next_due"], {"lanes": text(lanes), "now": now})
            if due is not None
        }
        news = [lane for lane, due in dues.items() if due <= now or due < known.get(lane, due)]
        known.clear()
        known.update(dues)
        return news


def pause_after(quiet_seconds: float, *, took: float) -> float:
    """How long not to look at a file that has not changed for so long, when the last look took so much work."""
    pause = min(max(QUIET_SHARE * quiet_seconds, SHORTEST_PAUSE), LONGEST_PAUSE)
    return max(pause, min(PAUSES_PER_LOOK * took, LONGEST_REST))


def _signal(subscriptions: Iterable[SqliteSubscription]) -> None:
    for subscription in subscriptions:
        subscription.signalled.set()
