"""Real workers, started by the command line, and what a test asks about them and their jobs."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import inspect
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import UUID

import msgspec

from ropeway.core.events import Attempt, Event, attempt_history
from ropeway.core.job import Job, NewJob
from ropeway.core.states import EventName, State
from ropeway.engines.open import engine_for, sqlite_path
from ropeway.engines.protocol import Engine
from ropeway.settings import Settings
from tests.worker.facts import VARIABLE, Facts

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
TASKS = "tests/worker/tasks.py"
#: How long a fact may take to become true on a machine that is busy with other things.
PATIENCE = 45.0

#: For tests that wait until a lease is over: the default of 30 s would take most of their patience.
SHORT_LEASE = ("--lease-seconds", "6")


async def until(fact: Callable[[], T | Awaitable[T]], what: str, *, within: float = PATIENCE) -> T:
    """Ask until the answer is true; fails after `within` seconds, naming `what`."""
    deadline = time.monotonic() + within
    while True:
        answer = fact()
        value = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {within:g} s: {what}")
        await asyncio.sleep(0.02)


class RealWorker:
    """One `ropeway worker` and its children. Its log is read from the file it writes."""

    def __init__(
        self, target: str, url: str, facts: Facts, log: Path, arguments: Sequence[str], env: Mapping[str, str]
    ) -> None:
        self._log_path = log
        self._read = 0
        self._rest = b""
        self._lines: list[dict[str, Any]] = []
        self._other: list[str] = []
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ropeway", "worker", target, "--log-format", "json", *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
                    "ROPEWAY_URL": url,
                    "ROPEWAY_REAPER_INTERVAL": "0.2",
                    "ROPEWAY_DISPATCHER_INTERVAL": "0.2",
                    VARIABLE: str(facts.folder),
                    **env,
                },
            )

    # ── what it says ──

    def lines(self, *events: str) -> list[dict[str, Any]]:
        """Its log so far; of these events, or all."""
        self._read_on()
        return [line for line in self._lines if not events or line.get("event") in events]

    def other_output(self) -> str:
        """What it wrote besides log lines: stacks."""
        self._read_on()
        return "\n".join(self._other)

    def _read_on(self) -> None:
        with self._log_path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        *whole, self._rest = (self._rest + new).split(b"\n")
        for raw in whole:
            try:
                line = msgspec.json.decode(raw)
            except msgspec.DecodeError:
                line = None
            if isinstance(line, dict):
                self._lines.append(line)
            else:
                self._other.append(raw.decode(errors="replace"))

    async def says(self, event: str, *, times: int = 1, within: float = PATIENCE, **fields: Any) -> dict[str, Any]:
        """Wait for a log line of that name with these fields; the last one."""

        def found() -> dict[str, Any] | None:
            lines = [line for line in self.lines(event) if fields.items() <= line.items()]
            return lines[-1] if len(lines) >= times else None

        try:
            return await until(found, f"{event} {fields or ''}", within=within)  # type: ignore[return-value]
        except AssertionError as error:
            raise AssertionError(f"{error}\nIts log ends:\n{self.tail()}") from None

    def tail(self, number: int = 30) -> str:
        lines = self._log_path.read_text(errors="replace").splitlines()
        return "\n".join(line[:500] for line in lines[-number:])

    # ── its processes ──

    def started_children(self) -> list[int]:
        return [line["pid"] for line in self.lines("child_started")]

    def children(self) -> list[int]:
        """The pids of its children that are alive."""
        return [pid for pid in self.started_children() if is_alive(pid)]

    def signal(self, number: int, pids: Iterable[int] | None = None) -> None:
        """To the parent, or to these processes."""
        for pid in [self.process.pid] if pids is None else pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop_between_writes(self, pids: Iterable[int], url: str) -> None:
        """SIGSTOP, but to nobody who has a SQLite file to himself just then: all others would wait for him, and
        that is another story than the one of a worker that is away."""
        with contextlib.ExitStack() as locks:
            if url.startswith("sqlite"):
                for ending in (".gate", ".turn"):
                    lock = locks.enter_context(Path(f"{sqlite_path(url)}{ending}").open("r+b"))
                    fcntl.flock(lock, fcntl.LOCK_EX)
            self.signal(signal.SIGSTOP, pids)
            for pid in pids:
                while process_state(pid) != "T":
                    time.sleep(0.001)

    def everyone(self) -> list[int]:
        """Parent first: what it does not see it cannot act on."""
        return [self.process.pid, *self.children()]

    async def exit_code(self, *, within: float = PATIENCE) -> int:
        await until(lambda: self.process.poll() is not None, f"the worker ends\n{self.tail()}", within=within)
        return self.process.returncode

    def destroy(self) -> None:
        """The end of the test: nothing of it is left."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pid in self.started_children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)


class StartWorker(Protocol):
    """Starts a worker on the test's store, or on another one."""

    def __call__(
        self, *arguments: str, env: Mapping[str, str] | None = None, url: str | None = None, target: str = TASKS
    ) -> RealWorker: ...


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    return process_state(pid) not in "ZX"


def process_state(pid: int) -> str:
    """The kernel's letter for what a process does: T when it is stopped, X when it is not there."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    return stat.rpartition(")")[2].split()[0]


class Store:
    """An engine as tests use it: jobs in, and what became of them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def add(
        self, type: str, times: int = 1, *, options: Mapping[str, Any] | None = None, **payload: Any
    ) -> list[UUID]:
        """Enqueue the same job so many times; their ids."""
        job = NewJob(type, msgspec.json.encode(payload), **(options or {}))
        return [answer.id for answer in await self.engine.enqueue([job] * times)]

    async def jobs(self, ids: Sequence[UUID]) -> list[Job]:
        jobs = []
        for start in range(0, len(ids), 500):
            jobs += await self.engine.get(ids[start : start + 500])
        assert None not in jobs
        return jobs  # type: ignore[return-value]

    async def job(self, id: UUID) -> Job:
        (job,) = await self.jobs([id])
        return job

    async def states(self, ids: Sequence[UUID]) -> Counter[State]:
        return Counter(job.state for job in await self.jobs(ids))

    async def reach(self, ids: Sequence[UUID], state: State, *, within: float = PATIENCE) -> list[Job]:
        """Wait until all of them are in that state."""
        seen: Counter[State] = Counter()

        async def all_there() -> bool:
            nonlocal seen
            seen = await self.states(ids)
            return seen == {state: len(ids)}

        try:
            await until(all_there, f"all {len(ids)} {state.value}", within=within)
        except AssertionError as error:
            raise AssertionError(f"{error}; they were {dict(seen)}") from None
        return await self.jobs(ids)

    async def events(self, id: UUID, *names: EventName) -> list[Event]:
        return [event for event in await self.engine.events_of(id) if not names or event.event in names]

    async def story(self, id: UUID) -> list[str]:
        """The job's events by name, without the `job.` that all of them have."""
        return [event.event.value.removeprefix("job.") for event in await self.engine.events_of(id)]

    async def history(self, id: UUID) -> list[Attempt]:
        return attempt_history(await self.engine.events_of(id))

    async def outcomes(self, id: UUID) -> list[str | None]:
        return [attempt.outcome for attempt in await self.history(id)]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    async with engine_for(Settings(url=url)) as engine:
        yield Store(engine)
