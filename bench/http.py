"""The HTTP service as it is run in production: `ropeway server` in a process of its own, keys and limits on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

import msgspec

from bench import loads
from bench.asking import Line, flood, lines, request
from bench.figures import Figure, Report, say
from bench.processes import cpu_seconds, rss_mib
from bench.stores import Store, Stores
from devtools.private import free_port
from ropeway.core.access import Limits, Scope
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.protocol import Engine
from ropeway.service.keys import Keys

#: Floors (ceilings where it says so) on a 2-core machine that server, load and PostgreSQL share.
TARGETS = {
    "single enqueue": 9_000,
    "single enqueue, p99": 25.0,
    "batch enqueue, 1,000 jobs per request": 50_000,
    "lease and ack, 100 jobs per request": 15_000,
    "pickup through a long poll, p50": 5.0,
    "RSS with idle long polls": 400,
}
#: More than a measurement can use, so that the limits are consulted and never met.
LIMITS = Limits(rate_per_second=1e9, burst=2**53, max_queued=2**53, max_leases=2**53)

CONNECTIONS = 64
SINGLES = 100_000
BATCHES = 400
BATCH = 1_000
DRAIN_JOBS = 150_000
DRAIN_BATCH = 100
DRAIN_WORKERS = 8
PICKUPS = 400
IDLE_POLLS = 10_000
IDLE_QUEUES = 100

_JOB = b'{"type":"bench","queue":"q0","payload":' + loads.PAYLOAD + b"}"


class HttpBench:
    """One run over one kind of engine. `scale` shrinks the sizes for a quick look; targets need scale 1."""

    def __init__(self, stores: Stores, *, scale: float = 1.0, quiet: bool = False, only: str = "") -> None:
        self._stores = stores
        self._scale = scale
        self._quiet = quiet
        self._only = only
        self.report = Report(stores.kind, stores.version)

    async def run(self) -> Report:
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "single": self._single,
            "batch": self._batch,
            "drain": self._drain,
            "pickup": self._pickup,
            "idle": self._idle,
        }
        for name, part in parts.items():
            if not self._only or name in self._only.split(","):
                await part()
        return self.report

    # ── producers ──

    async def _single(self) -> None:
        say(f"One job per request, {CONNECTIONS} connections", quiet=self._quiet)
        number = self._size(SINGLES)
        async with self._server() as server:
            for name, extra in (("single enqueue", b""), ("single enqueue, keyed", b"key")):
                bodies = _singles(server.token, number, keyed=bool(extra))
                # The first ones open database connections and import what is imported late.
                await flood(server.port, itertools.islice(bodies, 500), connections=CONNECTIONS, good=201)
                before = server.cpu_seconds()
                load = await flood(server.port, bodies, connections=CONNECTIONS, good=201)
                sent = len(load.latencies)
                cpu = (server.cpu_seconds() - before) / sent * 1e6
                self._add(name, sent / load.seconds, "req/s", note=f"{cpu:.0f} µs CPU of the server/request")
                self._add(f"{name}, p50", load.at(0.50), "ms", at_most=True)
                self._add(f"{name}, p99", load.at(0.99), "ms", at_most=True)

    async def _batch(self) -> None:
        say("A thousand jobs per request", quiet=self._quiet)
        batches = max(4, int(BATCHES * self._scale))
        async with self._server() as server:
            body = b'{"jobs":[' + b",".join([_JOB] * BATCH) + b"]}"
            sent = request("POST", "/v1/jobs/batch", server.token, body)
            await flood(server.port, iter([sent] * 2), connections=2, good=201)
            before = server.cpu_seconds()
            # Two under way: one is read and written while the store commits the other.
            load = await flood(server.port, iter([sent] * batches), connections=2, good=201)
            cpu = (server.cpu_seconds() - before) / (batches * BATCH) * 1e6
        self._add(
            "batch enqueue, 1,000 jobs per request",
            batches * BATCH / load.seconds,
            "jobs/s",
            note=f"{cpu:.1f} µs CPU of the server/job",
        )

    # ── workers ──

    async def _drain(self) -> None:
        say(f"Lease and ack {DRAIN_BATCH} jobs per request", quiet=self._quiet)
        number = self._size(DRAIN_JOBS)
        async with self._server() as server:
            async with server.store.engine() as engine:
                await loads.fill(engine, number)
            before = server.cpu_seconds()
            began = time.perf_counter()
            async with lines(server.port, DRAIN_WORKERS) as opened:
                done = sum(await asyncio.gather(*(_worker(line, server.token) for line in opened)))
            seconds = time.perf_counter() - began
            cpu = (server.cpu_seconds() - before) / number * 1e6
        if done != number:
            raise AssertionError(f"{done:,} of {number:,} jobs were acked")
        self._add(
            "lease and ack, 100 jobs per request",
            number / seconds,
            "jobs/s",
            note=f"{cpu:.1f} µs CPU of the server/job",
        )

    async def _pickup(self) -> None:
        say("From the enqueue request to the reply of a waiting lease request", quiet=self._quiet)
        samples = max(30, int(PICKUPS * self._scale))
        async with self._server() as server, lines(server.port, 3) as (producer, worker, acker):
            await _pickups(server.token, producer, worker, acker, 20)
            taken = sorted(await _pickups(server.token, producer, worker, acker, samples))
        self._add("pickup through a long poll, p50", statistics.median(taken), "ms", at_most=True)
        self._add("pickup through a long poll, p99", taken[int(len(taken) * 0.99) - 1], "ms", at_most=True)

    async def _idle(self) -> None:
        polls = max(100, int(IDLE_POLLS * self._scale))
        say(f"{polls:,} long polls with nothing to do", quiet=self._quiet)
        raise_file_limit(polls + 1_000)
        async with self._server() as server:
            empty = server.rss_mib()
            async with lines(server.port, polls) as opened:
                for index, line in enumerate(opened):
                    line.send(poll_request(server.token, f"q{index % IDLE_QUEUES}", f"w{index}", wait=30))
                await settled(server.pid)
                rss = server.rss_mib()
                before = server.cpu_seconds()
                await asyncio.sleep(2.0)
                percent = 100 * (server.cpu_seconds() - before) / 2.0
                if (held := server.connections()) < polls:
                    raise AssertionError(f"the server holds {held:,} of {polls:,} connections")
        self._add(
            "RSS with idle long polls", rss, "MiB", at_most=True, note=f"{polls:,} polls, {empty:.0f} without"
        )
        self._add("CPU with idle long polls", percent, "% of a core", at_most=True)

    # ── what they share ──

    @contextlib.asynccontextmanager
    async def _server(self) -> AsyncIterator[Server]:
        store = await self._stores.fresh()
        try:
            async with running(store) as server:
                yield server
        finally:
            self._stores.drop(store)

    def _add(self, name: str, value: float, unit: str, *, at_most: bool = False, note: str = "") -> None:
        strict = self._scale >= 1 and self._stores.kind == "postgres"
        target = TARGETS.get(name) if strict else None
        self.report.add(Figure(name, value, unit, target, at_most=at_most, note=note), quiet=self._quiet)

    def _size(self, number: int) -> int:
        return max(1_000, round(number * self._scale / 1_000) * 1_000)


class Server:
    """A `ropeway server` and a key to it."""

    def __init__(
        self, process: subprocess.Popen[bytes], log: BinaryIO, port: int, store: Store, token: str
    ) -> None:
        self._process = process
        self._log = log
        self.pid = process.pid
        self.port = port
        self.store = store
        self.token = token

    def check(self) -> None:
        """Raise if it has ended: nothing that is waited for would come."""
        if self._process.poll() is not None:
            self._log.seek(0)
            raise AssertionError(f"the server ended: {self._log.read()[-2000:].decode()}")

    def cpu_seconds(self) -> float:
        self.check()
        return cpu_seconds(self.pid)

    def rss_mib(self) -> float:
        return rss_mib(self.pid)

    def connections(self) -> int:
        """Sockets that it holds, its own few included."""
        held = 0
        for file in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                held += str(file.readlink()).startswith("socket:")
        return held


@contextlib.asynccontextmanager
async def running(store: Store) -> AsyncIterator[Server]:
    """A server on that store, ready to answer."""
    async with store.engine() as engine:
        token = await _key(engine)
    url = store.address if store.kind == "postgres" else f"sqlite:///{store.address}"
    port = free_port()
    command = [sys.executable, "-m", "ropeway", "server", "--url", url, "--port", str(port)]
    with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory(prefix="ropeway-bench-") as folder:
        process = subprocess.Popen(  # noqa: ASYNC220 - nothing else happens meanwhile
            command, stdout=log, stderr=log, cwd=folder
        )
        server = Server(process, log, port, store, token)
        try:
            await _until_ready(server)
            yield server
            server.check()
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait)


async def _key(engine: Engine) -> str:
    await engine.change_tenant(DEFAULT_TENANT, limits=LIMITS)
    _, token = await Keys(engine, tenant=DEFAULT_TENANT).create("bench", frozenset(Scope))
    return token


async def _until_ready(server: Server) -> None:
    for _ in range(600):
        server.check()
        try:
            async with lines(server.port, 1) as (line,):
                if (await line.ask(request("GET", "/ready", server.token))).status == 200:
                    return
        except OSError:
            pass
        await asyncio.sleep(0.05)
    raise AssertionError("the server was not ready within 30 s")


def _singles(token: str, number: int, *, keyed: bool) -> itertools.chain[bytes]:
    """The requests, made beforehand: with no key they are all the same."""
    if not keyed:
        return itertools.chain([request("POST", "/v1/jobs", token, _JOB)] * (number + 500))
    return itertools.chain(
        [
            request("POST", "/v1/jobs", token, _JOB[:-1] + f',"idempotency_key":"key-{n}"}}'.encode())
            for n in range(number + 500)
        ]
    )


# ── a worker in a few lines ──


class _LeasedJob(msgspec.Struct):
    id: UUID


class _Lease(msgspec.Struct):
    job: _LeasedJob
    lease_token: str


class _Leases(msgspec.Struct):
    leases: list[_Lease]


class _Item(msgspec.Struct):
    id: UUID
    lease_token: str


class _Items(msgspec.Struct):
    items: list[_Item]


_leases = msgspec.json.Decoder(_Leases).decode
_encode = msgspec.json.Encoder().encode


async def _worker(line: Line, token: str) -> int:
    """Lease and ack until the queue is empty; how many were acked."""
    body = json.dumps({"worker_id": "bench", "count": DRAIN_BATCH, "lease_seconds": 600}).encode()
    lease = request("POST", "/v1/queues/q0/lease", token, body)
    done = 0
    while (reply := await line.ask(lease)).status == 200:
        leases = _leases(reply.body).leases
        items = _encode(_Items([_Item(leased.job.id, leased.lease_token) for leased in leases]))
        answer = await line.ask(request("POST", "/v1/leases/ack", token, items))
        if answer.status != 200 or (acked := answer.body.count(b'"ok":true')) != len(leases):
            raise AssertionError(f"an ack was refused: {answer.body[:500]!r}")
        done += acked
    if reply.status != 204:
        raise AssertionError(f"a lease was answered {reply.status}: {reply.body[:300]!r}")
    return done


def poll_request(token: str, queue: str, worker: str, *, wait: float) -> bytes:
    body = json.dumps({"worker_id": worker, "wait": wait}).encode()
    return request("POST", f"/v1/queues/{queue}/lease", token, body)


async def _pickups(token: str, producer: Line, worker: Line, acker: Line, samples: int) -> list[float]:
    """Milliseconds on their way, one job at a time with pauses that fall out of step with every timer."""
    poll = poll_request(token, "q0", "bench", wait=30)
    enqueue = request("POST", "/v1/jobs", token, _JOB)
    taken = []
    for index in range(samples):
        waiting = asyncio.ensure_future(worker.ask(poll))
        # So long that the poll is surely waiting.
        await asyncio.sleep(0.011 + 0.007 * (index % 5))
        began = time.perf_counter()
        producer.send(enqueue)
        reply = await waiting
        taken.append((time.perf_counter() - began) * 1000)
        (leased,) = _leases(reply.body).leases
        items = _encode(_Items([_Item(leased.job.id, leased.lease_token)]))
        await acker.ask(request("POST", "/v1/leases/ack", token, items))
    return taken


async def settled(pid: int) -> None:
    """Until the process has done what it was asked and only waits: two looks with next to no work in between."""
    used = cpu_seconds(pid)
    for _ in range(60):
        await asyncio.sleep(0.5)
        if (now := cpu_seconds(pid)) - used < 0.1:
            return
        used = now
    raise AssertionError("the server was still busy after 30 s")


def raise_file_limit(wanted: int) -> None:
    """This process, and what it starts, may hold so many sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise AssertionError(f"{wanted:,} open files are needed, the limit is {hard:,} (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
