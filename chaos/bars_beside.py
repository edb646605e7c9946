"""The bars of what is kept beside the runs: mutants, simulations and peers."""

from __future__ import annotations

from collections.abc import Mapping

from chaos import modelled, simulated
from chaos.bars_verdict import Figures, Judged, Runs, Verdict, judge, total
from chaos.mutants_measure import BAR, passed
from chaos.peers.experiments import EXPERIMENTS
from chaos.peers.results import FAILED, RUN, Cell
from chaos.peers.settings import CONTENDERS, KINDS

LEAST_SEEDS = 10_000
LEAST_JOBS = 1_000_000

LEAST_PROGRAMS = 2_000
LEAST_CALLS = 100

LEAST_MUTANTS = 20
LEAST_MUTANT_SEEDS = 100
LEAST_CLEAN_SEEDS = 1_000


def of_mutants(engine: str, figures: Figures | None) -> Judged:
    bar = f"{engine}: engines that are broken on purpose (E39)"
    wanted = (
        f"at least {LEAST_MUTANTS}, each found by {100 * BAR:g} % of {LEAST_MUTANT_SEEDS} seeds;"
        f" 0 false alarms in {LEAST_CLEAN_SEEDS:,}"
    )
    if figures is None or not figures["mutants"]:
        return Judged(bar, wanted, "-", Verdict.NOT_RUN)
    found, clean = figures["mutants"], figures["clean"]
    least = min(found, key=lambda each: each["caught"] / max(1, each["seeds"]))
    enough = (
        len(found) >= LEAST_MUTANTS
        and min(each["seeds"] for each in found) >= LEAST_MUTANT_SEEDS
        and clean["seeds"] >= LEAST_CLEAN_SEEDS
    )
    told = (
        f"{len(found)}; the least, {least['mutant']}, by {least['caught']} of {least['seeds']};"
        f" {len(clean['alarms'])} in {clean['seeds']:,}"
    )
    return judge(bar, wanted, told, [figures], met=enough and passed(figures))


def of_simulations(kept: Runs) -> Judged:
    seeds, real = simulated.seeds_of(kept), simulated.seeds_of(kept, simulated.REAL)
    jobs, broken = total(kept, "jobs"), sum(len(each["broken"]) for each in kept)
    return judge(
        "simulated seeds (E37)",
        f"at least {LEAST_SEEDS:,} with {LEAST_JOBS:,} jobs, none broken",
        f"{seeds:,}, of them {real:,} with the real worker, {jobs:,} jobs; {broken} broken",
        kept,
        met=seeds >= LEAST_SEEDS and jobs >= LEAST_JOBS and not broken,
    )


def of_model(kept: Runs) -> Judged:
    done = {each["engine"]: each for each in kept}
    return judge(
        "random programs against the oracle (E36)",
        f"{LEAST_PROGRAMS:,} of {LEAST_CALLS} calls on each engine, none broken",
        ", ".join(f"{each['engine']} {each['programs']:,} of {each['calls']}" for each in kept),
        kept,
        met=all(
            engine in done
            and done[engine]["programs"] >= LEAST_PROGRAMS
            and done[engine]["calls"] >= LEAST_CALLS
            and not done[engine]["broken"]
            for engine in modelled.ENGINES
        ),
    )


def of_peers(held: Mapping[Cell, Figures]) -> Judged:
    """That everything was tried, not who came out of it how: the tables tell that."""
    cells = [
        Cell(contender.peer.name, kind, id) for contender in CONTENDERS for kind in KINDS for id in EXPERIMENTS
    ]
    lines = [held[cell] for cell in cells if cell in held]
    run, failed = (sum(line["status"] == status for line in lines) for status in (RUN, FAILED))
    told = (
        f"{run} of {len(cells)} run, {failed} failed, {len(lines) - run - failed} not run for a reason that is"
        f" told, {len(cells) - len(lines)} not tried"
    )
    return judge(
        "the same faults on peers (E40)",
        "each peer that can be had, with default and safest settings",
        told,
        lines,
        met=run > 0 and not failed and len(lines) == len(cells),
    )
