"""Wake-ups that never arrive: E10.

Whoever listens for them does so on a connection that is good at first and then says nothing any more. It does not
break, so nobody notices. That it did carry wake-ups is seen in how soon the jobs before that were started.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final
from urllib.parse import urlsplit

from chaos.checker import Violation
from chaos.experiment import Experiment, Run, Size
from chaos.facts import Facts
from chaos.proxy import FaultProxy
from chaos.stage import Stage, finished
from ropeway.settings import Settings

#: How long beyond a poll's interval a job may wait for its start, in seconds.
SLACK: Final = 0.2

#: Where wake-ups are lost half of the jobs wait longer than this share of a poll's interval, and longer than this
#: multiple of what they waited before.
LONGER: Final = 0.1
TIMES: Final = 2.0

#: Producers, before and after: their jobs' keys begin with these.
HEARD: Final = "producer-heard"
UNHEARD: Final = "producer-unheard"

KINDS: Final = {"chaos.ok": 1.0}
RATE: Final = 20.0


@dataclass
class Listening:
    """The way of the wake-ups, and where jobs are to be asked for so that they need it."""

    proxy: FaultProxy
    entrance: str


@asynccontextmanager
async def through_a_proxy(stage: Stage) -> AsyncIterator[Listening]:
    """Workers, or the server that they ask, listen through a proxy.

    Producers have another server than workers: within one process a wake-up needs no connection.
    """
    port = urlsplit(stage.direct).port
    assert port is not None
    async with FaultProxy(port, stage.chance) as proxy:
        way = {"ROPEWAY_LISTEN_URL": proxy.way(stage.direct)}
        stage.worker_env |= way
        await stage.serve_again(env=way)
        entrance = stage.urls[-1]
        stage.url = stage.urls[0]
        yield Listening(proxy, entrance)


async def fall_silent(run: Run) -> None:
    """Some jobs while wake-ups are heard, then the rest, of which nobody hears."""
    stage, size, listening = run.stage, run.size, run.given

    async def ask(name: str, jobs: int) -> None:
        await finished([stage.producer(name, jobs, RATE, KINDS, url=listening.entrance)])

    await ask(HEARD, size.jobs - size.faults)
    stage.nemesis.write("fault", "ok", kind="deaf")
    listening.proxy.hushed = True
    await ask(UNHEARD, size.faults)
    run.faults = size.faults


def found_by_polling(facts: Facts, run: Run) -> list[Violation]:
    """Without wake-ups a job starts when somebody looks next; with them it started sooner."""
    heard, unheard = waits(facts, HEARD), waits(facts, UNHEARD)
    poll = Settings().poll_seconds
    if not heard or not unheard:
        return [Violation("E10", "-", "no job's start was seen: the run proves nothing")]
    p99 = unheard[int(0.99 * (len(unheard) - 1))]
    run.notes["pickup p50 with wake-ups, s"] = round(median(heard), 3)
    run.notes["pickup p50, s"] = round(median(unheard), 3)
    run.notes["pickup p99, s"] = round(p99, 3)
    found = []
    if p99 > poll + SLACK:
        found.append(Violation("E10", "-", f"pickup p99 {p99:.2f} s is over {poll + SLACK:g} s"))
    if median(unheard) < max(LONGER * poll, TIMES * median(heard)):
        found.append(
            Violation(
                "E10", "-", f"half of the jobs waited {median(unheard):.3f} s at most: the run proves nothing"
            )
        )
    return found


def waits(facts: Facts, producer: str) -> list[float]:
    """Seconds from the answer to the first start, of the producer's jobs that were due at once; longest last."""
    return sorted(
        min(start.at for start in facts.starts[id]) - each.ended
        for id, each in facts.accepted.items()
        if each.key is not None
        and each.key.startswith(f"{producer}-")
        and each.ended is not None
        and not each.delay
        and facts.starts.get(id)
    )


EXPERIMENTS = (
    Experiment(
        id="E10",
        harmful=False,
        title="wake-ups are lost",
        small=Size(900, 600),
        full=Size(2_600, 2_000),
        faults=fall_silent,
        bar=found_by_polling,
        around=through_a_proxy,
        engines=("postgres", "http-postgres"),
        rate=0.0,
        workers=2,
    ),
)
