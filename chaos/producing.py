"""`python -m chaos.producing`: asks for jobs until each has been accepted, and writes down every answer."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Collection, Mapping
from typing import Any

from chaos.recording import RecordingEngine
from chaos.taking_part import take_part
from chaos.tasks import app
from ropeway.core.errors import EngineError, KeyInFlight, RopewayError
from ropeway.core.job import NewJob
from ropeway.engines.capabilities import Capability
from ropeway.engines.protocol import Engine
from ropeway.settings import Settings

#: After so long without an answer a producer gives up: the run is broken then, not the job lost.
PATIENCE = 180.0

#: What a task says of its jobs.
DECLARED = ("max_attempts", "retry", "timeout")

#: Tasks that not every engine can run, and what it takes.
DEMANDING = {"chaos.effect": Capability.TRANSACTIONAL_COMPLETION}


async def produce(asked: argparse.Namespace) -> int:
    from ropeway.engines.open import engine_for  # late: by now it makes engines that are recorded

    chance = random.Random(asked.seed)
    settings = Settings.load({"url": asked.url, **({"token": asked.token} if asked.token else {})})
    engine = engine_for(settings)
    await _opened(engine)
    kinds = possible(json.loads(asked.kinds), engine.capabilities)
    fields = json.loads(asked.fields)
    waiting: set[asyncio.Task[None]] = set()
    try:
        for index in range(asked.jobs):
            job = _job(chance, kinds, f"{asked.name}-{index}", fields)
            waiting.add(asyncio.create_task(accepted(engine, job, chance)))
            await asyncio.sleep(chance.expovariate(asked.rate))
            await _fewer(waiting, asked.in_flight)
        await _fewer(waiting, 0)
    finally:
        await engine.close()
    return 0


async def _fewer(waiting: set[asyncio.Task[None]], most: int) -> None:
    """Wait until no more than `most` are left. What one of them raises is raised here: a job that is refused would
    otherwise be missing from the run, and nobody would know."""
    for task in [task for task in waiting if task.done()]:
        waiting.discard(task)
        task.result()
    while len(waiting) > most:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            waiting.discard(task)
            task.result()


def possible(kinds: Mapping[str, float], capabilities: Collection[Capability]) -> dict[str, float]:
    """Those that the engine can run. A handler's own transaction takes PostgreSQL, and no server in between."""
    return {
        kind: weight for kind, weight in kinds.items() if kind not in DEMANDING or DEMANDING[kind] in capabilities
    }


def new_job(kind: str, key: str, payload: object = None, **options: Any) -> NewJob:
    """A job of one of the tasks, as its declaration has it. `options` are fields that it has besides."""
    spec = app.registry.get(kind)
    declared = {name: value for name in DECLARED if (value := getattr(spec, name, None)) is not None}
    body = json.dumps({} if payload is None else payload).encode()
    return NewJob(kind, body, idempotency_key=key, **declared, **options)


def _job(chance: random.Random, kinds: Mapping[str, float], key: str, fields: Mapping[str, object]) -> NewJob:
    (kind,) = chance.choices(list(kinds), list(kinds.values()))
    late = {"delay": chance.uniform(0.2, 2.0)} if chance.random() < 0.1 else {}
    return new_job(kind, key, fields.get(kind), **late)


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
        except (TimeoutError, EngineError, KeyInFlight):
            # (An earlier try of this key may still wait for its commit.)
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
