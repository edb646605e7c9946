"""`python -m chaos.producing`: asks for jobs until each has been accepted, and writes down every answer."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys

from chaos.recording import RecordingEngine
from chaos.taking_part import take_part
from ropeway.core.errors import EngineError, RopewayError
from ropeway.core.job import NewJob
from ropeway.engines.protocol import Engine
from ropeway.settings import Settings

#: After so long without an answer a producer gives up: the run is broken then, not the job lost.
PATIENCE = 180.0


async def produce(asked: argparse.Namespace) -> int:
    from ropeway.engines.open import engine_for  # late: by now it makes engines that are recorded

    chance = random.Random(asked.seed)
    kinds: dict[str, float] = json.loads(asked.kinds)
    settings = Settings.load({"url": asked.url, **({"token": asked.token} if asked.token else {})})
    engine = engine_for(settings)
    await _opened(engine)
    try:
        waiting: set[asyncio.Task[None]] = set()
        for index in range(asked.jobs):
            job = _job(chance, kinds, f"{asked.name}-{index}", json.loads(asked.fields))
            task = asyncio.create_task(accepted(engine, job, chance))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
            await asyncio.sleep(chance.expovariate(asked.rate))
            while len(waiting) > asked.in_flight:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if waiting:
            await asyncio.wait(waiting)
    finally:
        await engine.close()
    return 0


def _job(chance: random.Random, kinds: dict[str, float], key: str, fields: dict[str, object]) -> NewJob:
    (kind,) = chance.choices(list(kinds), list(kinds.values()))
    options: dict[str, object] = {}
    if chance.random() < 0.1:
        options["delay"] = chance.uniform(0.2, 2.0)
    if kind == "chaos.fail":
        options["max_attempts"] = 3
    elif kind == "chaos.flaky":
        options["max_attempts"] = 10
    payload = fields.get(kind, {})
    return NewJob(kind, json.dumps(payload).encode(), idempotency_key=key, **options)  # type: ignore[arg-type]


async def _opened(engine: Engine) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE
    while True:
        try:
            await engine.open()
        except EngineError:
            if loop.time() > until:
                raise
            await asyncio.sleep(0.2)
        else:
            return


async def accepted(engine: Engine | RecordingEngine, job: NewJob, chance: random.Random) -> None:
    """Ask for a job, under the same key again until there is an answer."""
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE
    while True:
        try:
            async with asyncio.timeout(10.0):
                await engine.enqueue([job])
        except (TimeoutError, EngineError):
            if loop.time() > until:
                raise
            await asyncio.sleep(chance.uniform(0.05, 0.3))
        else:
            return


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--token", default="")
    parser.add_argument("--name", required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--in-flight", type=int, default=50)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--kinds", required=True)
    parser.add_argument("--fields", default="{}")
    asked = parser.parse_args()
    take_part()
    try:
        return asyncio.run(produce(asked))
    except RopewayError as error:
        print(f"the producer gave up: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
