"""A server with little memory and many rude clients: E19."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from chaos.checker import Violation
from chaos.experiment import Experiment, Run, Size
from chaos.experiments.direct import leased_here
from chaos.facts import Facts
from chaos.history import Recorder
from chaos.recording import RecordingEngine
from chaos.stage import RunBroken, Stage
from ropeway.core.job import NewJob
from ropeway.core.outcome import Done
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Settlement
from ropeway.settings import Settings

LIMIT_MIB = 256
CLIENTS = 64
#: Seconds that a good request may take at the 99th percentile meanwhile.
GOOD_SECONDS = 1.0

_CGROUPS = Path("/sys/fs/cgroup/memory")


@asynccontextmanager
async def little_memory(stage: Stage) -> AsyncIterator[Path]:
    """The server's processes may hold so much memory together, and no more."""
    group = _CGROUPS / f"ropeway-chaos-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(LIMIT_MIB * 2**20))
    except OSError as error:
        raise RunBroken(f"memory cannot be limited here: {error}") from None
    try:
        for member in stage.named("api"):
            member.kept = False  # one that was killed for its memory stays dead, to be seen
            (group / "cgroup.procs").write_text(str(member.process.pid))
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (_CGROUPS / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            group.rmdir()


def rude(token: str) -> list[bytes]:
    """Requests that a server has to bear: too large, too deep, never ending, half sent."""
    head = (
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\n{length}\r\n"
    )

    def whole(path: str, body: bytes) -> bytes:
        return head.format(path=path, token=token, length=f"Content-Length: {len(body)}\r\n").encode() + body

    huge = b'{"type":"chaos.ok","payload":"' + b"x" * (2 * 2**20) + b'"}'
    deep = b'{"type":"chaos.ok","payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    numbers = b'{"type":"chaos.ok","payload":[' + b",".join([b"1e131071"] * 100_000) + b"]}"
    long_number = b'{"type":"chaos.ok","payload":' + b"9" * 500_000 + b"}"
    batch = b'{"jobs":[' + b",".join([b'{"type":"a b","payload":"' + b"y" * 800 + b'"}'] * 1_000) + b"]}"
    endless = head.format(path="/v1/jobs", token=token, length="Transfer-Encoding: chunked\r\n").encode()
    endless += b"".join(b"10000\r\n" + b"z" * 65_536 + b"\r\n" for _ in range(40))
    return [
        whole("/v1/jobs", huge),
        whole("/v1/jobs", deep),
        whole("/v1/jobs", numbers),
        whole("/v1/jobs", long_number),
        whole("/v1/jobs/batch", batch),
        endless,
        whole("/v1/jobs", huge)[:900_000],
    ]


async def crowd(run: Run) -> None:
    """Many rude clients at once, and one good one whose requests have to be answered."""
    stage = run.stage
    port = urlsplit(stage.url).port
    assert port is not None
    requests = rude(stage.token)
    over = asyncio.Event()

    async def client() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(10.0):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    try:
                        writer.write(stage.chance.choice(requests))
                        await writer.drain()
                        await reader.read(4_096)
                    finally:
                        writer.transport.abort()
            run.faults += 1

    stage.nemesis.write("fault", "ok", kind="crowd", until=time.monotonic() + 1e6)
    clients = [asyncio.create_task(client()) for _ in range(CLIENTS)]
    try:
        await _good_traffic(run)
    finally:
        over.set()
        await asyncio.gather(*clients)
    run.notes["processes ended"] = sum(not member.running for member in stage.named("api"))
    peak = (run.given / "memory.max_usage_in_bytes").read_text()
    run.notes["peak of the server, MiB"] = round(int(peak) / 2**20)


async def _good_traffic(run: Run) -> None:
    stage = run.stage
    remote = engine_for(Settings.load({"url": stage.url, **({"token": stage.token} if stage.token else {})}))
    await remote.open()
    engine = RecordingEngine(remote, Recorder(stage.histories, "good"))
    times = []
    try:
        for index in range(run.size.jobs):
            began = time.monotonic()
            await engine.enqueue([NewJob("chaos.ok", idempotency_key=f"good-{index}")])
            times.append(time.monotonic() - began)
            await asyncio.sleep(0.02)
    finally:
        await remote.close()
    run.notes["good requests p99, s"] = round(sorted(times)[int(0.99 * (len(times) - 1))], 3)
    direct = await stage.recorded()
    while leases := await leased_here(direct, run, "default", 500):
        await direct.settle([Settlement(each.lease, Done()) for each in leases])


def borne(_facts: Facts, run: Run) -> list[Violation]:
    found = []
    if run.notes["processes ended"]:
        found.append(Violation("E19", "-", "a server did not survive"))
    if run.notes["good requests p99, s"] > GOOD_SECONDS:
        found.append(Violation("E19", "-", f"good requests took {run.notes['good requests p99, s']} s (p99)"))
    return found


EXPERIMENTS = (
    Experiment(
        id="E19",
        harmful=False,
        title="little memory and rude clients",
        small=Size(1_000, 0),
        full=Size(12_000, 0),
        faults=crowd,
        bar=borne,
        around=little_memory,
        engines=("http-sqlite", "http-postgres"),
        alone=True,
    ),
)
