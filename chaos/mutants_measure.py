"""How many seeds find each engine that is broken on purpose, and what seeds say of a right one (E39)."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

from chaos import mutants, mutants_sqlite
from chaos.simulation import EngineMaker, Size, simulate
from ropeway.engines.memory import MemoryEngine

ENGINES = ("memory", "sqlite", "postgres")

#: Of the seeds that look for a mutant, so many have to find it.
BAR = 0.95

#: More jobs than usual: with 70, six of a hundred seeds on PostgreSQL had no late ack that would be noticed.
SIZE = Size(jobs=100)

#: Where the seeds begin: those that look for mutants, and those that look at a right engine.
FIRST_SEED = 1_000
FIRST_CLEAN_SEED = 2_000

#: Seeds that a process is given at a time.
SHARE = 10


@dataclass(frozen=True)
class Kind:
    """One store: by mutant the rules that are meant to find it, and what makes its engines while a block runs (the
    right ones for None)."""

    rules: Mapping[str, frozenset[str]]
    broken: Callable[[str | None], AbstractContextManager[EngineMaker]]


def in_memory() -> Kind:
    def broken(name: str | None) -> AbstractContextManager[EngineMaker]:
        return nullcontext(MemoryEngine if name is None else mutants.MUTANTS[name][0])

    return Kind({name: rules for name, (_, rules) in mutants.MUTANTS.items()}, broken)


@cache
def kind_of(engine: str, url: str = "") -> Kind:
    """Once per process: a schema of its own is made for each on PostgreSQL."""
    if engine == "memory":
        return in_memory()
    if engine == "sqlite":
        return Kind(mutants_sqlite.RULES, mutants_sqlite.broken)
    # Late: the driver is not needed for the others.
    from chaos import mutants_postgres
    from chaos.mutants_still_postgres import PostgresStage

    stage = PostgresStage(url, f"chaos_{os.getpid()}")
    return Kind(mutants_postgres.RULES, partial(mutants_postgres.broken, stage))


class Found(NamedTuple):
    """The first that is wrong with one seed's run, of what is meant to be looked for."""

    seed: int
    rule: str
    words: str


def look(kind: Kind, mutant: str | None, seeds: Sequence[int], size: Size = SIZE) -> list[Found]:
    """What these seeds find: of a mutant by the rules that are meant for it, of a right engine by any."""
    rules = None if mutant is None else kind.rules[mutant]
    found = []
    with kind.broken(mutant) as make:
        for seed in seeds:
            for violation in simulate(seed, make, size).violations:
                if rules is None or violation.rule in rules:
                    found.append(Found(seed, violation.rule, str(violation)))
                    break
    return found


def _look(engine: str, url: str, mutant: str | None, seeds: Sequence[int]) -> list[Found]:
    return look(kind_of(engine, url), mutant, seeds)


def measure(
    engine: str,
    *,
    seeds: int,
    clean: int,
    only: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
    commit: str = "",
) -> dict[str, Any]:
    """The figures of one engine, with all processors. `only`: these mutants; otherwise all."""
    began = time.monotonic()
    names = list(only or mutants.MUTANTS)
    with _database(engine) as url, _processes() as pool:
        asked = {name: _shares(pool, engine, url, name, FIRST_SEED, seeds) for name in names}
        right = _shares(pool, engine, url, None, FIRST_CLEAN_SEED, clean)
        told = []
        for name in names:
            told.append(_figures(name, seeds, _gathered(asked[name])))
            say(f"{name}: {told[-1]['caught']} of {seeds}")
        alarms = _gathered(right)
        say(f"right engine: {len(alarms)} of {clean}")
    return {
        "engine": engine,
        "commit": commit,
        "seconds": round(time.monotonic() - began, 1),
        "first_seed": FIRST_SEED,
        "mutants": told,
        "clean": {"first_seed": FIRST_CLEAN_SEED, "seeds": clean, "alarms": [found._asdict() for found in alarms]},
    }


@contextmanager
def _processes() -> Iterator[ProcessPoolExecutor]:
    """One per processor. What has not begun when the block breaks is not begun."""
    # Forked: to start afresh would run this command once more in each.
    pool = ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _shares(
    pool: ProcessPoolExecutor, engine: str, url: str, mutant: str | None, first: int, number: int
) -> list[Future[list[Found]]]:
    seeds = range(first, first + number)
    return [
        pool.submit(_look, engine, url, mutant, seeds[start : start + SHARE]) for start in range(0, number, SHARE)
    ]


def _gathered(shares: Sequence[Future[list[Found]]]) -> list[Found]:
    return [found for share in shares for found in share.result()]


def _figures(name: str, seeds: int, found: Sequence[Found]) -> dict[str, Any]:
    known = {each.seed for each in found}
    return {
        "mutant": name,
        "seeds": seeds,
        "caught": len(found),
        #: How often each rule was the first that was broken.
        "rules": dict(Counter(each.rule for each in found).most_common()),
        "first": found[0].words if found else None,
        "missed": [seed for seed in range(FIRST_SEED, FIRST_SEED + seeds) if seed not in known],
    }


def passed(figures: Mapping[str, Any]) -> bool:
    """Every mutant was found often enough, and nothing in a right engine."""
    found = all(each["caught"] >= BAR * each["seeds"] for each in figures["mutants"])
    return found and not figures["clean"]["alarms"]


@contextmanager
def _database(engine: str) -> Iterator[str]:
    """The URL of a database to spoil, for engines that need one."""
    if engine != "postgres":
        yield ""
        return
    from chaos.mutants_still_postgres import hurry
    from devtools.postgres import PrivatePostgres

    with PrivatePostgres() as server:
        url = server.create_database("mutants")
        hurry(url)
        yield url
