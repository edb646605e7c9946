"""Sample tasks, to try a worker with and to test against: `ropeway worker ropeway.samples:app`.

| task | what it does |
|---|---|
| `noop` | nothing, with any payload |
| `sleep` | waits `seconds` |
| `email.send` | notes in the job's log that an email to `to` would go out; sends nothing |
| `http.call` | requests `url` once and returns the status |
| `mock` | waits `sleep_ms` and fails in `failure_percent` of its runs |
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, Literal

from ropeway import FieldError, JobContext, Ropeway

app = Ropeway()

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


class MockFailure(RuntimeError):
    """The failure that was asked for."""


class UnfitStatus(RuntimeError):
    """The server answered that it could not do it now (429 or 5xx): another attempt may do better."""


@app.task(name="noop")
async def noop(payload: Any = None) -> None:
    """Nothing."""


@app.task(name="sleep")
async def sleep(seconds: float = 1.0) -> None:
    """Wait."""
    await asyncio.sleep(seconds)


@app.task(name="email.send")
async def send_email(ctx: JobContext, to: str, subject: str = "", body: str = "") -> dict[str, str]:
    """Pretend to send an email. The message id is the same in every attempt, so that a mail server could tell."""
    if "@" not in to:
        ctx.discard(f"{to!r} is not an email address")
    ctx.log(f"an email to {to} would go out now: {subject or '(no subject)'}, {len(body)} characters")
    return {"to": to, "subject": subject, "message_id": f"<{ctx.key}@ropeway>"}


@app.task(name="http.call", give_up_on=FieldError)
async def call_http(
    url: str,
    method: Method = "GET",
    headers: dict[str, str] | None = None,
    json: Any = None,
    timeout: float = 10.0,
) -> dict[str, Any]:
    """Request `url` once, following no redirect, and return the status. 429 and 5xx are failed attempts.

    Whoever may enqueue this task can have the worker's host call any address that it reaches: do not run it for
    people you would not allow that.
    """
    # Late: a worker that never calls anybody need not load it.
    import httpx

    if not url.startswith(("http://", "https://")):
        raise FieldError("url must start with http:// or https://", pointer="/payload/url")
    began = time.monotonic()
    async with (
        httpx.AsyncClient(timeout=timeout, follow_redirects=False) as client,
        client.stream(method, url, headers=headers, json=json) as response,
    ):
        status = response.status_code
    if status == 429 or status >= 500:
        raise UnfitStatus(f"{method} {url} answered {status}")
    return {"status": status, "elapsed_ms": round((time.monotonic() - began) * 1000)}


@app.task(name="mock")
async def mock(sleep_ms: float = 1000, failure_percent: float = 25) -> dict[str, float]:
    """Work for `sleep_ms` and fail now and then, as `failure_percent` says (0 never, 100 always)."""
    await asyncio.sleep(sleep_ms / 1000)
    if random.random() * 100 < failure_percent:
        raise MockFailure(f"failed on purpose: failure_percent is {failure_percent:g}")
    return {"slept_ms": sleep_ms}
