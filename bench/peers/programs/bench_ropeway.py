"""Ropeway: as a library on PostgreSQL or SQLite, or (BENCH_THROUGH=http) through `ropeway server` on PostgreSQL.

Runs in the project's own environment. Tasks and calls are those of docs/tasks.md, the worker is `ropeway worker`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kit

from ropeway import JobFilter, Ropeway, State
from ropeway.core.states import LIVE_STATES

app = Ropeway(kit.url() if "BENCH_URL" in os.environ else None)

#: Limits are consulted, and are never met.
SERVER_LIMITS = {
    "ROPEWAY_TENANT_RATE": "1e9",
    "ROPEWAY_TENANT_BURST": "1000000000",
    "ROPEWAY_TENANT_MAX_QUEUED": "1000000000",
    "ROPEWAY_TENANT_MAX_LEASES": "1000000000",
}


@app.task
async def noop(i: int, pad: str) -> None:
    kit.ran(i)


@app.task
async def hold(i: int) -> None:
    await kit.ahold(i)


class Library:
    """A program that declares tasks and calls them."""

    async def setup(self) -> dict[str, Any]:
        if kit.url().startswith("postgresql"):
            run_ropeway("migrate", "up", "--url", kit.url())
            run_ropeway("migrate", "events", os.environ.get("BENCH_EVENTS", "on"), "--url", kit.url())
        await app.engine()
        return {}

    async def enqueue(self, index: int) -> None:
        await noop.aenqueue(index, kit.PAD)

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        await noop.aenqueue_many([(index, kit.PAD) for index in indexes])

    async def enqueue_held(self, index: int) -> None:
        await hold.aenqueue(index)

    async def pending(self) -> int:
        engine = await app.engine()
        return (await engine.count(JobFilter(states=LIVE_STATES), cap=10_000_000)).number

    async def finished(self) -> int | None:
        engine = await app.engine()
        return (await engine.count(JobFilter(states=frozenset({State.SUCCEEDED})), cap=10_000_000)).number

    async def close(self) -> None:
        await app.aclose()


class OverHttp(Library):
    """The same through a server that this process starts, with the SDK's client."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._client: Any = None

    async def setup(self) -> dict[str, Any]:
        from ropeway import AsyncClient  # late: the worker reads this file too, and has no use for it

        await super().setup()
        scopes = "enqueue,work,read,read:payload"
        key = json.loads(run_ropeway("keys", "create", "bench", "--scope", scopes, "--url", kit.url(), "--json"))
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = ropeway("server", "--url", kit.url(), "--port", str(port), "--log-level", "WARNING")
        self._server = start(command, {**os.environ, **SERVER_LIMITS})
        wait_until_ready(url, self._server)
        server_file().write_text(json.dumps({"url": url, "token": key["token"]}))
        self._client = AsyncClient(url, key["token"])
        return {}

    async def enqueue(self, index: int) -> None:
        await self._client.enqueue("noop", {"i": index, "pad": kit.PAD})

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        await self._client.enqueue_batch(
            [{"type": "noop", "payload": {"i": index, "pad": kit.PAD}} for index in indexes]
        )

    async def enqueue_held(self, index: int) -> None:
        await self._client.enqueue("hold", {"i": index})

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
        if self._server is not None:
            self._server.terminate()
            self._server.wait()
        await super().close()


def through_http() -> bool:
    return os.environ.get("BENCH_THROUGH") == "http"


def server_file() -> Path:
    """Where the control program leaves the server's address and key for the worker."""
    return Path(os.environ["BENCH_RECORD"] + ".server")


def start(command: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=env, stdout=sys.stderr)


def wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with {server.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise RuntimeError("the server was not ready within 30 s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ropeway(*words: str) -> list[str]:
    return [sys.executable, "-m", "ropeway", *words]


def run_ropeway(*words: str) -> str:
    done = subprocess.run(ropeway(*words), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ropeway {words[0]} failed: {done.stderr[-500:]}")
    return done.stdout


async def make() -> Library:
    return OverHttp() if through_http() else Library()


def work() -> None:
    """`ropeway worker` with its own processes. Every profile is the defaults: nothing has to be tuned."""
    server = json.loads(server_file().read_text()) if through_http() else {"url": kit.url()}
    if "token" in server:
        os.environ["ROPEWAY_TOKEN"] = server["token"]
    command = ropeway("worker", __file__, "--url", server["url"], "--port", "-1", "--log-level", "WARNING")
    command += ["--processes", str(kit.processes())]
    os.execv(command[0], command)


if __name__ == "__main__":
    kit.main(make, work)
