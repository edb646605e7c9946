"""The experiments by id."""

from __future__ import annotations

from chaos.experiment import Experiment
from chaos.experiments import (
    batches,
    clocks,
    copies,
    databases,
    direct,
    failover,
    handlers,
    memory,
    networks,
    pooling,
    power,
    redrives,
    secrets,
    standbys,
    surroundings,
    upgrades,
    waking,
    workers,
)

EXPERIMENTS: dict[str, Experiment] = {
    each.id: each
    for room in (
        workers,
        databases,
        networks,
        handlers,
        surroundings,
        clocks,
        batches,
        direct,
        redrives,
        copies,
        failover,
        standbys,
        memory,
        power,
        pooling,
        upgrades,
        secrets,
        waking,
    )
    for each in room.EXPERIMENTS
}
