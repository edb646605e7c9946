"""The demo's API, called as a program in any language would: plain requests, no part of Ropeway on this side."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import UUID

import httpx


class Made(NamedTuple):
    """A job that was made over HTTP."""

    id: UUID
    duplicate: bool


class Caller:
    """Producer and worker at once, over one connection."""

    def __init__(self, url: str, token: str) -> None:
        self._client = httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=10.0, trust_env=False
        )

    async def enqueue(self, type: str, queue: str, payload: Any, key: str) -> Made:
        body = {"type": type, "queue": queue, "payload": payload}
        reply = await self._post("/v1/jobs", body, {"Idempotency-Key": key})
        return Made(UUID(reply["id"]), reply["deduplicated"])

    async def work_once(self, queue: str) -> None:
        """What a worker does: lease, say that it is alive, tell how far it is, say that it is done."""
        leased = await self._post(
            f"/v1/queues/{queue}/lease", {"worker_id": "demo-over-http", "lease_seconds": 30}
        )
        for lease in leased.get("leases", ()):
            job, ticket = f"/v1/jobs/{lease['job']['id']}", {"lease_token": lease["lease_token"]}
            await self._post(f"{job}/heartbeat", ticket)
            await self._post(f"{job}/progress", {**ticket, "done": 1, "total": 1})
            await self._post(f"{job}/ack", {**ticket, "result": {"said": lease["job"]["payload"]}})

    async def _post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        reply = await self._client.post(path, json=body, headers=headers)
        reply.raise_for_status()
        return {} if reply.status_code == 204 else reply.json()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._client.aclose()
