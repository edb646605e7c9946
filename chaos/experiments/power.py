"""The power goes while SQLite's file is being written: the second half of E24."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from chaos import history, power
from chaos.checker import Violation
from chaos.experiment import Experiment, Run, Size
from chaos.facts import Facts
from chaos.preloaded import NoCompiler, built
from chaos.stage import RunBroken, Stage
from ropeway.core.query import MAX_PAGE
from ropeway.core.states import TERMINAL_STATES
from ropeway.engines.open import engine_for
from ropeway.settings import Settings

_ENDS = {state.value for state in TERMINAL_STATES}


@dataclass(frozen=True)
class Promise:
    """What somebody was told, and when: that a job is there, or how it ended."""

    at: float
    job: UUID
    state: str | None = None


@dataclass
class Watch:
    """Where the writes are noted down, and what was found wrong by them."""

    log: Path
    broken: list[str] = field(default_factory=list)


@asynccontextmanager
async def watched(stage: Stage) -> AsyncIterator[Watch]:
    """Whoever writes the file has every write and sync of it noted down."""
    try:
        library = await asyncio.to_thread(built, "powercut", stage.folder)
    except NoCompiler as error:
        raise RunBroken(str(error)) from None
    log = stage.folder / "writes.log"
    preload = {
        "LD_PRELOAD": str(library),
        "POWERCUT_FILE": str(_database(stage)),
        "POWERCUT_LOG": str(log),
    }
    stage.worker_env |= preload
    stage.producer_env |= preload
    yield Watch(log)
    log.unlink(missing_ok=True)


async def power_cuts(run: Run) -> None:
    """When the work is done: what the disk would have held at so many moments of it, and what is missing there."""
    stage, watch = run.stage, run.given
    await stage.until(lambda: not run.producing(), "everything was enqueued", within=600)
    await stage.until(lambda: _nothing_live(stage), "every job has ended", within=300)
    for worker in stage.named("worker"):
        await asyncio.to_thread(worker.end)
    promises = list(promised(history.read(stage.histories)))
    number = sum(1 for _ in power.records(watch.log))
    cuts = set(stage.chance.sample(range(number), min(number, run.size.faults)))
    disk = power.Disk()
    with tempfile.TemporaryDirectory(dir=stage.folder, prefix="cut-") as folder:
        database = Path(folder) / "jobs.db"
        for index, record in enumerate(power.records(watch.log)):
            if index in cuts:
                power.lay_out(disk.after_a_cut(stage.chance), database)
                kept = [promise for promise in promises if promise.at < record.at]
                watch.broken += [f"at write {index}: {words}" for words in await found_missing(database, kept)]
                stage.nemesis.write("fault", "ok", kind="power", index=index)
                run.faults += 1
                run.notes["promises looked at"] = run.notes.get("promises looked at", 0) + len(kept)
            disk.take(record)
    _check_log(disk, _database(stage))
    run.notes["writes and syncs"] = number
    run.notes["promises broken"] = len(watch.broken)


async def found_missing(database: Path, promises: Sequence[Promise]) -> list[str]:
    """What is wrong with a database after a cut, in words."""
    verdict = await asyncio.to_thread(_integrity, database)
    if verdict != "ok":
        return [f"integrity_check says {verdict}"]
    if not promises:
        return []
    wrong = []
    async with engine_for(Settings.load({"url": f"sqlite:///{database}"})) as engine:
        for first in range(0, len(promises), MAX_PAGE):
            part = promises[first : first + MAX_PAGE]
            for promise, job in zip(part, await engine.get([each.job for each in part]), strict=True):
                if job is None:
                    wrong.append(f"{promise.job} was accepted, and is gone")
                elif promise.state is not None and job.state != promise.state:
                    wrong.append(f"{promise.job} was told to be {promise.state}, and is {job.state}")
    return wrong


def _integrity(database: Path) -> str:
    """What SQLite says of it; a file that is not there yet is sound."""
    connection = sqlite3.connect(database)
    try:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    except sqlite3.DatabaseError as error:
        return str(error)
    finally:
        connection.close()


def promised(lines: Sequence[dict[str, Any]]) -> Iterator[Promise]:
    """What callers were told: jobs that were accepted, and outcomes that ended theirs."""
    asked = {}
    for line in lines:
        call = (line["process"], line["pid"], line.get("n"))
        if line["phase"] == history.INVOKE and line["op"] == "settle":
            asked[call] = line["items"]
        elif line["phase"] == history.OK and line["op"] == "enqueue":
            for id, _ in line["answers"]:
                yield Promise(line["t"], UUID(id))
        elif line["phase"] == history.OK and line["op"] == "settle" and call in asked:
            for (id, *_), (state, _) in zip(asked[call], line["answers"], strict=True):
                if state in _ENDS:
                    yield Promise(line["t"], UUID(id), state)


def _check_log(disk: power.Disk, database: Path) -> None:
    """A log that does not lead to the files as they are proves nothing about them."""
    for number, content in disk.as_it_is().items():
        path = database.with_name(database.name + power.SUFFIXES[number])
        if path.exists() and path.read_bytes() != bytes(content):
            raise RunBroken(f"{path.name} is not what the log of its writes leads to")


def nothing_missing(_facts: Facts, run: Run) -> list[Violation]:
    return [Violation("E24", "-", words) for words in run.given.broken]


async def _nothing_live(stage: Stage) -> bool:
    return await stage.live() == 0


def _database(stage: Stage) -> Path:
    return Path(stage.direct.removeprefix("sqlite:///"))


EXPERIMENTS = (
    Experiment(
        id="E24P",
        title="the power goes while SQLite's file is written",
        small=Size(1_500, 40),
        full=Size(6_000, 200),
        faults=power_cuts,
        bar=nothing_missing,
        around=watched,
        engines=("sqlite",),
        workers=2,
    ),
)
