"""How long the dashboard's pages take over a large store: 1M jobs that wait, 10M that ended, some of them dead."""

from __future__ import annotations

import time

import httpx

from bench import loads
from bench.figures import Figure, Report, say
from bench.http import Server, running
from bench.peers.growing import ask, keep_finished
from bench.stores import Stores
from ropeway.core.history import EMPTY, KEEP_LONG_STEPS, KEEP_STEPS, LONG_STEP, STEP
from ropeway.engines.protocol import Engine
from ropeway.service.overview import look

#: Milliseconds that a page may take, at the 95th percentile.
TARGET = 100.0

LIVE = 1_000_000
FINISHED = 10_000_000
DEAD = 20_000
QUEUES = 20
VISITS = 60
LOOKS = 15

PAGES = {
    "overview": "/",
    "queues": "/ui/queues",
    "jobs, the newest": "/ui/jobs",
    "jobs of a queue": "/ui/jobs?queue=q3",
    "jobs that succeeded": "/ui/jobs?status=succeeded",
    "jobs that died": "/ui/jobs?status=dead",
    "jobs by type": "/ui/jobs?type=bench",
    "jobs of a type that there is none of": "/ui/jobs?type=nowhere",
    "jobs by an error text that there is none of": "/ui/jobs?error=nowhere",
    "jobs that run": "/ui/jobs?status=running",
    "a job": "",
    "dead letters": "/ui/dead",
    "schedules": "/ui/schedules",
    "workers": "/ui/workers",
    "events": "/ui/events",
    "audit": "/ui/audit",
    "settings": "/ui/settings",
    "charts of 15 minutes": "/ui/history?range=15m",
    "charts of 7 days": "/ui/history?range=7d",
}

#: Dead jobs of five errors, spread over the queues.
_KILL = """
    INSERT INTO ropeway.archive_dead (
        tenant, id, finished_at, run_at, created_at, started_at, attempt, event_seq, priority, attempts,
        max_attempts, failures, lost, state, queue, type, reason, last_error, payload
    )
    SELECT 'default', gen_random_uuid(), now() - n * interval '1 millisecond', now(), now(), now(), 5, 10, 5, 5, 5,
           5, 0, 'dead', 'q' || n % {queues}, 'bench', 'max_attempts',
           '{{"type": "ValueError", "message": "error ' || n % 5 || ' of job ' || n || '", "traceback": null}}',
           '{payload}'
    FROM generate_series(1, {number}) n
"""


#: What upkeep has kept of the last hours and days, of every queue.
_REMEMBER = """
    INSERT INTO ropeway.history
    SELECT 'default', {step}, to_timestamp((floor(extract(epoch FROM now()) / {step}) - n) * {step}), queue,
           100, 90, 3, 1, 0, 500, 20, 4.5, array_fill(7, ARRAY[{buckets}]), array_fill(7, ARRAY[{buckets}])
    FROM generate_series(1, {number}) n,
         (SELECT 'q' || q FROM generate_series(0, {queues} - 1) q UNION ALL SELECT '') AS queues (queue)
"""


class DashboardBench:
    """One run. `scale` shrinks the store for a quick look; the target needs scale 1."""

    def __init__(self, stores: Stores, *, scale: float = 1.0, quiet: bool = False, only: str = "") -> None:
        self._stores = stores
        self._scale = scale
        self._quiet = quiet
        self._only = only
        self.report = Report(stores.kind, stores.version)

    async def run(self) -> Report:
        store = await self._stores.fresh()
        try:
            live, finished = self._size(LIVE), self._size(FINISHED)
            say(f"Filling a store: {live:,} jobs live, {finished:,} finished", quiet=self._quiet)
            async with store.engine() as engine:
                await loads.fill(engine, live, queues=QUEUES)
            keep_finished(store.address, finished)
            kill = _KILL.format(queues=QUEUES, number=self._size(DEAD), payload=loads.PAYLOAD.decode())
            ask(store.address, kill)
            for step, kept in ((STEP, KEEP_STEPS), (LONG_STEP, KEEP_LONG_STEPS)):
                asked = {"step": step, "number": kept // step, "queues": QUEUES, "buckets": len(EMPTY)}
                ask(store.address, _REMEMBER.format(**asked))
            ask(store.address, "VACUUM (ANALYZE) ropeway.archive, ropeway.jobs, ropeway.history")
            async with store.engine() as engine:
                job = await _newest(engine)
                await self._look(engine)
            say(f"{VISITS} visits of each page", quiet=self._quiet)
            async with running(store) as server, _signed_in(server) as visitor:
                for name, path in PAGES.items():
                    if not self._only or self._only in name:
                        await self._visit(visitor, name, path or f"/ui/jobs/{job}")
        finally:
            self._stores.drop(store)
        return self.report

    async def _look(self, engine: Engine) -> None:
        """What a server does once a second while somebody looks."""
        taken = []
        for _ in range(LOOKS):
            began = time.perf_counter()
            await look(engine)
            taken.append((time.perf_counter() - began) * 1000)
        middle = sorted(taken)[LOOKS // 2]
        self.report.add(Figure("one look at everything, p50", middle, "ms"), quiet=self._quiet)

    async def _visit(self, visitor: httpx.AsyncClient, name: str, path: str) -> None:
        taken: list[float] = []
        for _ in range(VISITS):
            began = time.perf_counter()
            reply = await visitor.get(path)
            taken.append((time.perf_counter() - began) * 1000)
            if reply.status_code != 200:
                raise AssertionError(f"{path} was answered {reply.status_code}: {reply.text[-500:]}")
        taken.sort()
        p95 = taken[int(len(taken) * 0.95) - 1]
        note = f"p50 {taken[len(taken) // 2]:.0f} ms, longest {taken[-1]:.0f} ms"
        target = TARGET if self._scale >= 1 else None
        self.report.add(Figure(f"{name}, p95", p95, "ms", target, at_most=True, note=note), quiet=self._quiet)

    def _size(self, number: int) -> int:
        return max(1_000, round(number * self._scale / 1_000) * 1_000)


async def _newest(engine: Engine) -> str:
    return str((await engine.find(limit=1)).jobs[0].id)


def _signed_in(server: Server) -> httpx.AsyncClient:
    """A visitor with a session, as a browser has it."""
    base = f"http://127.0.0.1:{server.port}"
    with httpx.Client(base_url=base) as client:
        client.post("/ui/login", data={"key": server.token})
        cookies = dict(client.cookies)
    if not cookies:
        raise AssertionError("the dashboard did not let us in")
    return httpx.AsyncClient(base_url=base, cookies=cookies, timeout=30.0)
