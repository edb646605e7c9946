"""The store is migrated while the version before is at work, then both are, and then the old one again: E26.

What is covered: the code and the migrations of the last commit before the newest migration, as git has them,
beside those of today; the newest migration alone; code that is rolled back after it. Today's version refuses a
store which lacks a migration, and the run makes sure of it, so the order is: migrate, then the new version.
Beside it a store that nobody uses is migrated from nothing by somebody who is killed between two steps; the next
one waits for the dead one's lock, goes on, and leaves what one who was not killed leaves.
Not covered: schemas that are rolled back, as there is no such command, and versions further apart; SQLite, whose
file is migrated in one transaction when it is opened, and refused by the version before from then on.

Delays are told by PostgreSQL's own table of locks: it knows since when each waiter waits, and for whom. How long
calls took is only noted, because on a small machine the start of a process delays them as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos import history
from chaos.calls import failed_share, longest_between, timed_calls
from chaos.checker import Violation
from chaos.earlier import newest_migration, version_before
from chaos.experiment import MIXED, Experiment, Run, Size
from chaos.experiments.copies import dump
from chaos.experiments.networks import fault_points
from chaos.facts import Facts
from chaos.lockwaits import LockWaits
from chaos.snapshot import snapshot
from chaos.stage import (
    DRAIN_SECONDS,
    ROOT,
    START_SECONDS,
    Member,
    RunBroken,
    Stage,
    finished,
    python_path,
    ropeway,
    said,
    serving,
)
from devtools.private import free_port
from ropeway.core.errors import ConfigurationError
from ropeway.core.query import JobFilter
from ropeway.core.states import LIVE_STATES
from ropeway.engines.open import engine_for
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.postgres.migrating import LOCK_SECONDS
from ropeway.settings import Settings

#: Seconds that a call may wait for a lock because of the migration, and the share of calls that may fail.
LONGEST_WAIT: Final = 0.2
FAILED_SHARE: Final = 0.001

#: What the migration calls itself to the database.
MIGRATING: Final = "ropeway-migrating"

#: Where the migration that is killed dies, and how often it is tried: it must be neither the first thing it does
#: nor the last.
BETWEEN: Final = "migrate.between=kill:0.3"
KILLS: Final = 5
#: Seconds that the rest of it may take once the dead one's lock has run out.
REST: Final = 20.0

#: Jobs per second that are asked of each version.
RATE: Final = 60.0
#: Seconds of load before the migration begins.
BEFORE: Final = 2.0

#: Servers of the version before refuse keyed jobs whose task has a retry policy of its own. That is mended, and
#: would be counted here as calls that fail.
BY_HTTP: Final = {kind: weight for kind, weight in MIXED.items() if kind not in ("chaos.flaky", "chaos.fail")}

SCOPES: Final = "enqueue,work,read,read:payload"


@dataclass
class Earlier:
    """The source of the version before, and when the migrations of this run were under way."""

    source: Path
    migrations: list[tuple[float, float]] = field(default_factory=list)


@asynccontextmanager
async def with_the_version_before(_stage: Stage) -> AsyncIterator[Earlier]:
    with tempfile.TemporaryDirectory(prefix="ropeway-earlier-") as folder:
        yield Earlier(await asyncio.to_thread(version_before, Path(folder)))


class Crew:
    """The processes of one version on one store: a server, a worker that goes through it, and one on the store."""

    def __init__(self, stage: Stage, name: str, source: Path, store: str) -> None:
        self.name = name
        self._stage = stage
        self._store = store
        self._members: list[Member] = []
        self._arrivals = 0
        self._server = ""
        # The server's own calls are not the history of whoever asked it.
        self._plain = python_path(source, recorded=False)
        self._recorded = python_path(source)

    async def command(self, *words: str) -> str:
        """What one of this version's commands says."""
        return await asyncio.to_thread(lambda: said(self._stage, *words, PYTHONPATH=self._plain))

    async def arrive(self) -> None:
        """Its server is ready and its workers are on their way."""
        self._arrivals += 1
        stage, name, port = self._stage, f"{self.name}-{self._arrivals}", free_port()
        command = ropeway("server", "--url", self._store, "--port", str(port), "--log-level", "WARNING")
        self._members = [stage.add(f"{name}-api", command, kept=True, env={"PYTHONPATH": self._plain})]
        self._server = f"http://127.0.0.1:{port}"
        await serving(stage, self._server)
        for place, url in (("direct", self._store), ("http", self._server)):
            self._members.append(stage.worker(f"{name}-worker-{place}", url=url, PYTHONPATH=self._recorded))

    def ask(self, jobs: int) -> list[Member]:
        """Producers of this version: one on the store, one through its server."""
        number = len(self._stage.members)
        return [
            self._stage.producer(
                f"{self.name}-producer{number}-{place}",
                jobs // 2,
                RATE / 2,
                kinds,
                url=url,
                env={"PYTHONPATH": self._recorded},
            )
            for place, url, kinds in (("direct", self._store, MIXED), ("http", self._server, BY_HTTP))
        ]

    async def leave(self) -> None:
        """Told to stop, the workers first, as in a deployment."""
        for member in reversed(self._members):
            member.kept = False
            member.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(member.process.wait, 60)

    async def idle(self) -> bool:
        """Whether everything has ended, as this version's server tells today's client."""
        settings = Settings.load({"url": self._server, "token": self._stage.token})
        async with engine_for(settings) as engine:
            return (await engine.count(JobFilter(states=LIVE_STATES), cap=1)).number == 0


async def upgrades(run: Run) -> None:
    """Each cycle on a store of its own, made by the version before with its own migrations."""
    stage = run.stage
    assert stage.server is not None
    first = stage.direct
    for cycle in range(run.size.faults):
        store = stage.server.create_database(f"upgrade{cycle}")
        before = Crew(stage, f"before{cycle}", run.given.source, store)
        after = Crew(stage, f"after{cycle}", ROOT / "src", store)
        async with _taken_up_again(run, await _killed_halfway(run, cycle), first):
            await _upgrade(run, before, after, store)
        run.states.append(await snapshot(await stage.engine(), epoch=time.time() - time.monotonic()))
        run.faults += 1
    await stage.use(first)


# ── a migration that is killed ──


async def _killed_halfway(run: Run, cycle: int) -> str:
    """A store of which a part of the migrations is applied, by somebody who died then."""
    stage = run.stage
    assert stage.server is not None
    plain = {"PYTHONPATH": python_path(recorded=False)}
    for attempt in range(KILLS):
        name = f"halfway{cycle}x{attempt}"
        store = stage.server.create_database(name)
        command = ropeway("migrate", "up", "--url", store)
        runner = stage.add(name, command, kept=False, env={**plain, **fault_points(stage, BETWEEN)})
        await asyncio.to_thread(runner.process.wait, START_SECONDS)
        if runner.process.returncode == -signal.SIGKILL and await _is_refused(store):
            return store
    raise RunBroken(f"no migration of {KILLS} was killed between two steps")


async def _is_refused(store: str) -> bool:
    """Whether some migrations are applied and some are not, and this version will not open the store."""
    engine = PostgresEngine(store)
    try:
        status = await engine.migrations.status()
        if not status.applied or not status.pending:
            return False
        try:
            await engine.open()
        except ConfigurationError:
            return True
        raise RunBroken(f"this version opens a store that lacks {len(status.pending)} migrations")
    finally:
        await engine.close()


@asynccontextmanager
async def _taken_up_again(run: Run, halfway: str, whole: str) -> AsyncIterator[None]:
    """Meanwhile somebody else migrates that store, as soon as the dead one's lock allows it."""
    resuming = asyncio.create_task(_resume(run, halfway, whole))
    try:
        yield
        await resuming
    finally:
        resuming.cancel()


async def _resume(run: Run, halfway: str, whole: str) -> None:
    began = time.monotonic()
    await asyncio.to_thread(lambda: said(run.stage, "migrate", "up", "--url", halfway))
    waited = time.monotonic() - began
    one, other = [await asyncio.to_thread(_schema, run.stage, url) for url in (halfway, whole)]
    notes = run.notes
    notes["migrations killed between two steps"] = notes.get("migrations killed between two steps", 0) + 1
    longest = max(waited, notes.get("end of one by the next, longest, s", 0.0))
    notes["end of one by the next, longest, s"] = round(longest, 2)
    notes["schemas that differ after one"] = notes.get("schemas that differ after one", 0) + (one != other)


def _schema(stage: Stage, url: str) -> list[str]:
    """What pg_dump says of Ropeway's schema, without words that it makes up each time and the run's own table."""
    assert stage.server is not None
    path = stage.folder / f"{url.rpartition('/')[2]}-schema.sql"
    ours = ("--schema-only", "--schema", Settings().schema, "--exclude-table", "*.chaos_effects")
    dump(stage.server, url, path, *ours)
    return [line for line in path.read_text().splitlines() if not line.startswith(("\\restrict", "\\unrestrict"))]


# ── one cycle ──


async def _upgrade(run: Run, before: Crew, after: Crew, store: str) -> None:
    """Migrate first, then the new version comes, the old one goes, comes back, and the new one goes."""
    stage, tenth = run.stage, run.size.jobs // run.size.faults // 10
    await before.command("migrate", "up", "--url", store)
    told = await before.command("keys", "create", "chaos", "--scope", SCOPES, "--url", store, "--json")
    stage.token = json.loads(told)["token"]
    await _refused_before_the_migration(store)
    await before.arrive()
    await finished(before.ask(40))
    await stage.until(before.idle, "the first jobs have ended", within=START_SECONDS)
    load = before.ask(4 * tenth)
    await asyncio.sleep(BEFORE)
    await _migrate(run, after, store, load)
    await after.arrive()
    await finished([*load, *before.ask(tenth), *after.ask(2 * tenth)])
    load = after.ask(tenth)
    await before.leave()
    await finished(load)
    await before.arrive()
    load = before.ask(2 * tenth)
    await after.leave()
    await finished(load)
    await stage.use(store)
    # What has not ended by then the checker names.
    with contextlib.suppress(RunBroken):
        await stage.until(lambda: _nothing_live(stage), "every job has ended", within=DRAIN_SECONDS)
    await before.leave()


async def _nothing_live(stage: Stage) -> bool:
    return await stage.live() == 0


async def _refused_before_the_migration(store: str) -> None:
    """This version lacks the newest migration, and that one alone, and will not open the store without it."""
    engine = PostgresEngine(store)
    try:
        pending = (await engine.migrations.status()).pending
        if pending != [newest_migration()]:
            raise RunBroken(f"the version before left {pending} to be applied")
        try:
            await engine.open()
        except ConfigurationError:
            return
        raise RunBroken("this version opens a store that is not migrated: then the order of steps is another one")
    finally:
        await engine.close()


async def _migrate(run: Run, after: Crew, store: str, load: list[Member]) -> None:
    """`ropeway migrate up` of this version, with an eye on all locks."""
    async with LockWaits(store, MIGRATING) as waits:
        began = time.monotonic()
        await after.command("migrate", "up", "--url", f"{store}?application_name={MIGRATING}")
        ended = time.monotonic()
    run.given.migrations.append((began, ended))
    for name, value in (
        ("longest wait for a lock behind the migration, s", waits.longest_behind),
        ("longest wait for any lock meanwhile, s", waits.longest),
        ("longest time between two looks at locks, s", waits.blind),
        ("migrations that no load saw", float(not all(member.running for member in load))),
    ):
        run.notes[name] = round(max(run.notes.get(name, 0.0), value), 4)


def went_smoothly(_facts: Facts, run: Run) -> list[Violation]:
    """Nobody waited for the migration, hardly any call failed, and the run could have seen otherwise."""
    calls = timed_calls(history.read(run.stage.histories))
    share = failed_share(calls)
    run.notes["calls"] = len(calls)
    run.notes["failed calls, %"] = round(100 * share, 4)
    run.notes["longest call during a migration, s"] = max(
        round(longest_between(calls, *each), 3) for each in run.given.migrations
    )
    run.notes["longest call just before one, s"] = max(
        round(longest_between(calls, began - BEFORE, began), 3) for began, _ in run.given.migrations
    )
    found = went_on(run.notes, run.size.faults)
    waited = run.notes["longest wait for a lock behind the migration, s"]
    blind = run.notes["longest time between two looks at locks, s"]
    # It may have gone on until just before the next look.
    if waited and waited + blind > LONGEST_WAIT:
        found.append(Violation("E26", "-", f"a call waited {waited:g} s for a lock behind the migration"))
    if blind > LONGEST_WAIT:
        found.append(Violation("E26", "-", f"nobody looked at the locks for {blind:g} s: the run proves nothing"))
    if run.notes["migrations that no load saw"]:
        found.append(Violation("E26", "-", "the load was over before the migration: the run proves nothing"))
    if share >= FAILED_SHARE:
        found.append(Violation("E26", "-", f"{share:.2%} of all calls failed"))
    return found


def went_on(notes: Mapping[str, float], cycles: int) -> list[Violation]:
    """Each migration that was killed was taken up by another, in time, and to the same end."""
    found = []
    killed = notes.get("migrations killed between two steps", 0)
    if killed < cycles:
        found.append(
            Violation("E26", "-", f"{killed:g} of {cycles} were killed and taken up: the run proves nothing")
        )
    if different := notes.get("schemas that differ after one", 0):
        found.append(Violation("E26", "-", f"{different:g} schemas differ after a migration that was killed"))
    if (waited := notes.get("end of one by the next, longest, s", 0.0)) > LOCK_SECONDS + REST:
        found.append(Violation("E26", "-", f"a migration that was killed kept the next one for {waited:g} s"))
    return found


EXPERIMENTS = (
    Experiment(
        id="E26",
        harmful=False,
        title="migrated while the version before is at work, and back to it",
        small=Size(2_000, 1),
        full=Size(20_000, 5),
        faults=upgrades,
        bar=went_smoothly,
        around=with_the_version_before,
        engines=("postgres",),
        lease_seconds=6.0,
        alone=True,
    ),
)
