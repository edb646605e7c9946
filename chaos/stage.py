"""The store, the processes round it, and where they write their histories: one run's world of real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from chaos.history import Recorder
from chaos.recording import RecordingEngine
from chaos.taking_part import HISTORY, ROLE
from devtools.postgres import PrivatePostgres
from devtools.private import free_port
from ropeway.core.query import JobFilter
from ropeway.core.states import LIVE_STATES
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Engine
from ropeway.settings import Settings

ROOT: Final = Path(__file__).resolve().parents[1]
TASKS: Final = "chaos/tasks.py"

#: Engines that an experiment can be asked for. `http-` ones are reached through `ropeway server`.
ENGINES: Final = ("sqlite", "postgres", "http-sqlite", "http-postgres", "http-memory")

#: Limits are consulted, and are never met: a run is about faults.
SERVER_LIMITS: Final = {
    "ROPEWAY_TENANT_RATE": "1e9",
    "ROPEWAY_TENANT_BURST": "1000000000",
    "ROPEWAY_TENANT_MAX_QUEUED": "1000000000",
    "ROPEWAY_TENANT_MAX_LEASES": "1000000000",
}

#: Seconds that a process has to come up, and that everything has to end in after the faults.
START_SECONDS: Final = 60.0
DRAIN_SECONDS: Final = 300.0


class RunBroken(Exception):
    """The run itself did not work: nothing is known about the engine."""


class Member:
    """One process of the run, with what it started. A `kept` one is started again when it has ended."""

    def __init__(
        self, stage: Stage, name: str, command: Sequence[str], env: Mapping[str, str], *, kept: bool
    ) -> None:
        self.name = name
        self.kept = kept
        self.starts = 0
        self._stage = stage
        self._command = list(command)
        self._env = dict(env)
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        self.starts += 1
        with (self._stage.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def started_with(self, env: Mapping[str, str], command: Sequence[str] | None = None) -> None:
        """End it, and start it anew with more variables; with another command line if there is one."""
        kept = self.kept
        self.end()
        self._env |= env
        if command is not None:
            self._command = list(command)
        self.start()
        self.kept = kept

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def children(self) -> list[int]:
        """The processes that it started, not theirs."""
        return children_of(self.process.pid)

    def tree(self) -> list[int]:
        """It and all that it started, and what those started: each is in a group of its own."""
        found = [self.process.pid] if self.running else []
        for pid in found:
            found += children_of(pid)
        return found

    def signal_all(self, number: signal.Signals) -> None:
        """To it and all that it started."""
        for pid in self.tree():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def log(self) -> str:
        path = self._stage.folder / f"{self.name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def end(self) -> None:
        """For good; whoever is stopped goes on to hear it."""
        self.kept = False
        if self.running:
            pids = self.tree()
            self.signal_all(signal.SIGCONT)
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Stage:
    """One run. `urls` are what producers and workers are given in turn; `direct` is the store itself."""

    def __init__(self, kind: str, folder: Path, seed: int, *, lease_seconds: float) -> None:
        self.kind = kind
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.chance = random.Random(seed)
        self.seed = seed
        self.lease_seconds = lease_seconds
        self.server: PrivatePostgres | None = None
        self.disk: Path | None = None
        self.histories = self.folder / "histories"
        self.nemesis = Recorder(self.histories, "nemesis")
        self.members: list[Member] = []
        #: More variables for every worker of this run.
        self.worker_env: dict[str, str] = {}
        self.producer_env: dict[str, str] = {}
        #: What every server was given besides (`serve_again`).
        self.server_env: dict[str, str] = {}
        self.direct = ""
        self.urls: list[str] = []
        self.token = ""
        #: How many of each kind were given one of `urls`.
        self._placed: Counter[str] = Counter()
        #: By name, where each server listens.
        self._ports: dict[str, int] = {}
        #: What the servers are led to: the store, or whatever stands before it.
        self._target = ""
        self._engine: Engine | None = None
        self._afterwards: list[Callable[[], Awaitable[None]]] = []
        self._healing: list[Callable[[], None]] = []

    @property
    def url(self) -> str:
        """The first way in. Setting it leaves everybody this one alone."""
        return self.urls[0] if self.urls else ""

    @url.setter
    def url(self, url: str) -> None:
        self.urls = [url]

    @property
    def over_http(self) -> bool:
        return self.kind.startswith("http-")

    @property
    def store(self) -> str:
        return self.kind.removeprefix("http-")

    # ── what runs ──

    def worker(
        self, name: str, *, concurrency: int = 4, processes: int = 1, url: str | None = None, **env: str
    ) -> Member:
        """A `ropeway worker`, started again whenever it has ended."""
        way = url or self._way_for("worker")
        command = ropeway("worker", TASKS, "--url", way, "--port", "-1", "--log-format", "json")
        command += ["--concurrency", str(concurrency), "--processes", str(processes)]
        command += ["--lease-seconds", str(self.lease_seconds)]
        return self.add(name, command, kept=True, env={**self.worker_env, **env})

    def producer(
        self,
        name: str,
        jobs: int,
        rate: float,
        kinds: Mapping[str, float],
        *,
        fields: Mapping[str, object] | None = None,
        url: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Member:
        way = url or self._way_for("producer")
        command = [sys.executable, "-m", "chaos.producing", "--url", way, "--name", name]
        command += ["--jobs", str(jobs), "--rate", str(rate), "--seed", str(self.chance.randrange(2**31))]
        command += ["--kinds", json.dumps(dict(kinds)), "--fields", json.dumps(dict(fields or {}))]
        if self.token:
            command += ["--token", self.token]
        return self.add(name, command, kept=False, env={**self.producer_env, **(env or {})})

    def add(
        self, name: str, command: Sequence[str], *, kept: bool, env: Mapping[str, str] | None = None
    ) -> Member:
        member = Member(self, name, command, {**self.environment(name), **(env or {})}, kept=kept)
        self.members.append(member)
        return member

    def environment(self, role: str) -> dict[str, str]:
        env = {**os.environ, "PYTHONPATH": python_path(), HISTORY: str(self.histories), ROLE: role}
        if self.token:
            env["ROPEWAY_TOKEN"] = self.token
        return env

    def _way_for(self, kind: str) -> str:
        """One of `urls`, in turn for each kind of process: every server has workers and producers."""
        place = self._placed[kind]
        self._placed[kind] += 1
        return self.urls[place % len(self.urls)]

    def named(self, prefix: str) -> list[Member]:
        return [member for member in self.members if member.name.startswith(prefix)]

    async def keep(self) -> None:
        """As a process manager would: whoever has ended is started again."""
        while True:
            for member in self.members:
                if member.kept and not member.running:
                    member.start()
            await asyncio.sleep(0.1)

    # ── the servers ──

    @property
    def servers(self) -> list[Member]:
        """The API processes; none where the store is reached directly."""
        return [member for member in self.members if member.name in self._ports]

    @property
    def addresses(self) -> list[str]:
        """Where each server listens, whatever stands before it."""
        return [f"http://127.0.0.1:{port}" for port in self._ports.values()]

    async def serve(self, target: str, ports: Sequence[int]) -> None:
        """A `ropeway server` on each port, which all lead to the same store."""
        self._target = target
        self._ports = {f"api{number}": port for number, port in enumerate(ports)}
        for name, port in self._ports.items():
            # A memory that ended would be another one.
            kept = self.store != "memory"
            self.add(name, self._server_command(port), kept=kept, env={**SERVER_LIMITS, **self.server_env})
        self.urls = self.addresses
        await self.serving()

    async def serve_again(self, *, target: str | None = None, env: Mapping[str, str] | None = None) -> None:
        """Start every server anew on its port: with another way to the store, with more variables, or both.

        Nothing happens where there is none. It returns when all are ready.
        """
        self._target = target or self._target
        self.server_env |= env or {}
        for server in self.servers:
            command = self._server_command(self._ports[server.name])
            await asyncio.to_thread(server.started_with, self.server_env, command)
        await self.serving()

    def _server_command(self, port: int) -> list[str]:
        command = ropeway("server", "--url", self._target, "--port", str(port), "--log-level", "WARNING")
        return command if self.token else [*command, "--no-auth"]

    async def serving(self) -> None:
        """Until every server says that it is ready."""
        for url in self.addresses:
            await serving(self, url)

    def kill_server(self) -> bool:
        """`kill -9` one of the servers; it is started again. False: there is none that may die."""
        mortal = [server for server in self.servers if server.kept and server.running]
        if not mortal:
            return False
        server = self.chance.choice(mortal)
        self.nemesis.write("fault", "ok", kind="server")
        server.signal_all(signal.SIGKILL)
        return True

    # ── what is in the store ──

    async def engine(self) -> Engine:
        """The store itself, as nobody's fault can reach it but its own; memory only through its server."""
        if self._engine is None:
            self._engine = await self._opened(self.direct or self.url)
        return self._engine

    async def _opened(self, url: str) -> Engine:
        token = {"token": self.token} if self.token and url.startswith("http") else {}
        engine = engine_for(Settings.load({"url": url, **token}))
        await engine.open()
        return engine

    async def moved_to(self, server: PrivatePostgres) -> None:
        """The database is on another server now."""
        self.server = server
        await self.use(server.url_for("chaos"))

    async def use(self, store: str) -> None:
        """Another store is the one to look at from now on."""
        if self._engine is not None:
            await self._engine.close()
            self._engine = None
        self.direct = store

    def at_heal(self, do: Callable[[], None]) -> None:
        """What ends faults that go on by themselves."""
        self._healing.append(do)

    def heal(self) -> None:
        """No more faults."""
        for do in self._healing:
            do()
        self.nemesis.write("phase", "ok", name="heal")

    def afterwards(self, do: Callable[[], Awaitable[None]]) -> None:
        """What is to be done when the run is over and everything has been read."""
        self._afterwards.append(do)

    async def recorded(self) -> RecordingEngine:
        """An engine with every call written down, for experiments that are their own producer and worker; through
        the server if there is one."""
        engine = await self._opened(self.url)
        self.afterwards(engine.close)
        return RecordingEngine(engine, Recorder(self.histories, "direct"))

    async def live(self) -> int:
        """How many jobs have not ended; counted no further than some."""
        engine = await self.engine()
        return (await engine.count(JobFilter(states=LIVE_STATES), cap=1_000)).number

    async def until(self, fact: Callable[[], Any], what: str, *, within: float) -> None:
        """Wait for a fact, by asking; RunBroken when it does not come true."""
        deadline = time.monotonic() + within
        while True:
            try:
                answer = fact()
                if asyncio.iscoroutine(answer):
                    answer = await answer
            except Exception:  # noqa: BLE001 - what cannot be asked is not true yet
                answer = False
            if answer:
                return
            if time.monotonic() > deadline:
                raise RunBroken(f"not within {within:g} s: {what}")
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        for member in self.members:
            member.kept = False
        for member in reversed(self.members):
            await asyncio.to_thread(member.end)
        if self._engine is not None:
            await self._engine.close()
        for do in self._afterwards:
            await do()
        self.nemesis.close()


@asynccontextmanager
async def staged(
    kind: str,
    folder: Path,
    seed: int,
    *,
    lease_seconds: float = 3.0,
    pg_settings: Mapping[str, object] | None = None,
    disk: str | None = None,
) -> AsyncIterator[Stage]:
    """An empty store of that kind with nobody on it yet, and the servers that lead to it.

    `disk`: the store is on a disk of its own, of that size.
    """
    stage = Stage(kind, folder, seed, lease_seconds=lease_seconds)
    async with contextlib.AsyncExitStack() as stack:
        if disk is not None:
            stage.disk = stack.enter_context(_small_disk(disk))
        if stage.store == "postgres":
            stage.server = await asyncio.to_thread(_postgres, stage.disk, pg_settings)
            stack.callback(stage.server.close)
        stack.push_async_callback(stage.close)
        await _prepare(stage)
        keeping = asyncio.create_task(stage.keep())
        try:
            yield stage
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping


def _postgres(disk: Path | None, settings: Mapping[str, object] | None) -> PrivatePostgres:
    if disk is None:
        return PrivatePostgres(shared_buffers="128MB", settings=settings)
    # Its log of changes must leave room for what is stored.
    small = {"max_wal_size": "64MB", "min_wal_size": "32MB"}
    with _temporary_folders_in(disk):
        server = PrivatePostgres(shared_buffers="32MB", settings={**small, **(settings or {})})
    if not server.folder.is_relative_to(disk):
        server.close()
        raise RunBroken(f"PostgreSQL cannot be on the small disk: its user does not reach {disk}")
    return server


@contextlib.contextmanager
def _temporary_folders_in(folder: Path) -> Iterator[None]:
    """By the environment: what makes the server's folder is a process of its own."""
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


@contextlib.contextmanager
def _small_disk(size: str) -> Iterator[Path]:
    """A file system in memory; it takes root. Its path is short and open to all: a server's socket is in it."""
    folder = Path(tempfile.mkdtemp(prefix="ropeway-disk-"))
    folder.chmod(0o755)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0777", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunBroken(f"a small disk cannot be mounted: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)
        folder.rmdir()


async def _prepare(stage: Stage) -> None:
    if stage.server is not None:
        stage.direct = stage.server.create_database("chaos")
        said(stage, "migrate", "up", "--url", stage.direct)
        await _make_effects(stage.direct)
    elif stage.store == "sqlite":
        stage.direct = f"sqlite:///{(stage.disk or stage.folder) / 'jobs.db'}"
    stage.url = stage.direct
    if stage.over_http:
        await _serve(stage)


async def _serve(stage: Stage) -> None:
    """Two API processes where the store can be shared, one where it cannot."""
    if stage.store != "memory":
        stage.token = json.loads(_key_for(stage))["token"]
    ports = [free_port() for _ in range(1 if stage.store == "memory" else 2)]
    await stage.serve(stage.direct or "memory://", ports)


def _key_for(stage: Stage) -> str:
    scopes = "enqueue,work,read,read:payload,admin"
    return said(stage, "keys", "create", "chaos", "--scope", scopes, "--url", stage.direct, "--json")


async def serving(stage: Stage, url: str) -> None:
    """Until a server says that it is ready."""

    def ready() -> bool:
        with urlopen(f"{url}/ready", timeout=2) as answer:
            return bool(answer.status == 200)

    await stage.until(lambda: asyncio.to_thread(ready), "the server is ready", within=START_SECONDS)


async def finished(producers: Sequence[Member]) -> None:
    """Until all producers have ended, each with all its jobs accepted."""
    for producer in producers:
        await asyncio.to_thread(producer.process.wait)
        if producer.process.returncode != 0:
            raise RunBroken(f"{producer.name} ended with {producer.process.returncode}: {producer.log()[-400:]}")


async def _make_effects(url: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        await connection.execute("CREATE TABLE chaos_effects (job_id uuid NOT NULL)")
    finally:
        await connection.close()


async def effects_of(stage: Stage) -> dict[str, int]:
    """The rows that transactional handlers wrote, by job."""
    if stage.server is None:
        return {}
    import asyncpg

    connection = await asyncpg.connect(stage.direct)
    try:
        rows = await connection.fetch("SELECT job_id, count(*) AS number FROM chaos_effects GROUP BY job_id")
    finally:
        await connection.close()
    return {str(row["job_id"]): row["number"] for row in rows}


def children_of(pid: int) -> list[int]:
    """The processes that one has started and that live; none if it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (OSError, ValueError):
        return []


def python_path(source: Path = ROOT / "src", *, recorded: bool = True) -> str:
    """Where Python finds Ropeway and the tasks. `recorded`: the process writes down what it asks of engines."""
    paths = [source, ROOT, *([ROOT / "chaos" / "inject"] if recorded else [])]
    return os.pathsep.join(map(str, paths))


def ropeway(*words: str) -> list[str]:
    """The command line of one of Ropeway's commands."""
    return [sys.executable, "-m", "ropeway", *words]


def said(stage: Stage, *words: str, **env: str) -> str:
    """What one of Ropeway's commands says; RunBroken when it fails."""
    known = {name: value for name, value in stage.environment("setup").items() if name != HISTORY} | env
    done = subprocess.run(ropeway(*words), cwd=ROOT, env=known, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunBroken(f"ropeway {words[0]} failed: {done.stderr[-500:]}")
    return done.stdout
