"""Tasks that are handed canaries and hand some back; an app like any other."""

from __future__ import annotations

from typing import Any

from ropeway import Ropeway

app = Ropeway()


@app.task(name="canary.echo")
async def echo(secret: str, result: str) -> dict[str, Any]:
    return {"result": result, "length": len(secret)}


@app.task(name="canary.fail", max_attempts=1)
async def fail(secret: str, error: str) -> None:
    raise ValueError(error)


@app.task(name="canary.leave", process=True)
def leave(secret: str) -> str:
    """In a process of its own: what it is told must not be on its command line."""
    return secret
