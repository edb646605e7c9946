"""A server with little memory and many rude clients: E19."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from chaos.checker import Violation
from chaos.experiment import Experiment, Run, Size
from chaos.experiments.direct import leased_here
from chaos.facts import Facts
from chaos.history import Recorder
from chaos.memory_groups import MemoryGroup, NoMemoryGroups, memory_group
from chaos.recording import RecordingEngine
from chaos.rude import rude
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
#: A good request is made so often: 12,000 of them take ten minutes.
GOOD_EVERY = 0.05
#: Of the different rude requests so many have to be answered, or nobody knows what the server made of them.
ANSWERED_SHARE = 0.8


@asynccontextmanager
async def little_memory(stage: Stage) -> AsyncIterator[MemoryGroup]:
    """The server's processes may hold so much memory together, and no more."""
    try:
        with memory_group("server", LIMIT_MIB) as group:
            for member in stage.named("api"):
                member.kept = False  # one that was killed for its memory stays dead, to be seen
                group.add(member.process.pid)
            yield group
    except NoMemoryGroups as error:
        raise RunBroken(str(error)) from None


class Crowd:
    """Many rude clients at once. Each makes one request after the other, and hears the beginning of the answer."""

    def __init__(self, run: Run, port: int, requests: Sequence[bytes]) -> None:
        self._run = run
        self._port = port
        self._requests = requests
        #: The requests, by place, that an answer came to, and how many answers said that the server had failed.
        self.answered: set[int] = set()
        self.failures = 0
        self.over = asyncio.Event()

    async def client(self, first: int) -> None:
        """Begins with another request than its neighbours do, so that each is made early."""
        place = first
        while not self.over.is_set():
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(10.0):
                    self._heard(place, await self._answer_to(self._requests[place]))
            self._run.faults += 1
            place = self._run.stage.chance.randrange(len(self._requests))

    async def _answer_to(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(request)
            with contextlib.suppress(ConnectionError):  # it has heard enough, and may have said so
                await writer.drain()
            return await reader.read(4_096)
        finally:
            writer.transport.abort()

    def _heard(self, place: int, answer: bytes) -> None:
        if answer:
            self.answered.add(place)
        # 503 is what a server says that has too much to do.
        self.failures += answer.startswith(b"HTTP/1.1 5") and not answer.startswith(b"HTTP/1.1 503")


async def crowd(run: Run) -> None:
    """Many rude clients at once, and one good one whose requests have to be answered."""
    stage = run.stage
    port = urlsplit(stage.url).port
    assert port is not None
    requests = rude(stage.token)
    rude_ones = Crowd(run, port, requests)
    began = time.monotonic()
    clients = [
        asyncio.create_task(rude_ones.client(number * len(requests) // CLIENTS)) for number in range(CLIENTS)
    ]
    try:
        await _good_traffic(run)
    finally:
        rude_ones.over.set()
        await asyncio.gather(*clients)
        stage.nemesis.write("fault", "ok", kind="crowd", began=began, until=time.monotonic())
    run.notes["rude requests"] = len(requests)
    run.notes["of them answered"] = len(rude_ones.answered)
    run.notes["answers of a failed server"] = rude_ones.failures
    run.notes["processes ended"] = sum(not member.running for member in stage.named("api"))
    run.notes["peak of the server, MiB"] = run.given.peak_mib()


async def _good_traffic(run: Run) -> None:
    stage = run.stage
    remote = engine_for(Settings.load({"url": stage.url, **({"token": stage.token} if stage.token else {})}))
    await remote.open()
    engine = RecordingEngine(remote, Recorder(stage.histories, "good"))
    times = []
    begin = time.monotonic()
    try:
        for index in range(run.size.jobs):
            await asyncio.sleep(begin + index * GOOD_EVERY - time.monotonic())
            began = time.monotonic()
            await engine.enqueue([NewJob("chaos.ok", idempotency_key=f"good-{index}")])
            times.append(time.monotonic() - began)
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
    if run.notes["answers of a failed server"]:
        found.append(Violation("E19", "-", f"{run.notes['answers of a failed server']} answers were 5xx"))
    if run.notes["of them answered"] < ANSWERED_SHARE * run.notes["rude requests"]:
        found.append(
            Violation(
                "E19", "-", f"{run.notes['of them answered']} requests were answered: the run proves nothing"
            )
        )
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
