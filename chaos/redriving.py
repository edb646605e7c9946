"""`python -m chaos.redriving URL QUEUE`: makes the dead of a queue run again, step by step, until none is left."""

from __future__ import annotations

import asyncio
import sys

from ropeway.core.query import JobFilter
from ropeway.engines.open import engine_for
from ropeway.settings import Settings

#: So few at a time that it takes many steps, and a kill falls between two of them.
STEP = 100


async def redrive(url: str, queue: str) -> None:
    async with engine_for(Settings.load({"url": url})) as engine:
        while True:
            report = await engine.redrive_where(JobFilter(queue=queue), limit=STEP, by="chaos")
            if not report.more:
                return


if __name__ == "__main__":
    asyncio.run(redrive(sys.argv[1], sys.argv[2]))
