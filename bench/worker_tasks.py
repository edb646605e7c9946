"""The tasks that the worker's measurements run."""

from __future__ import annotations

import time

from ropeway import Ropeway

app = Ropeway()


@app.task
async def noop() -> None:
    """Nothing: what is left is the worker."""


@app.task
async def arrive(sent: float) -> float:
    """Seconds from the enqueue call to here."""
    return time.time() - sent
