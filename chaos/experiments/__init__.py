"""The experiments by id."""

from __future__ import annotations

from chaos.experiment import Experiment
from chaos.experiments import (
    copies,
    databases,
    direct,
    failover,
    handlers,
    memory,
    networks,
    pooling,
    power,
    secrets,
    surroundings,
    upgrades,
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
        direct,
        copies,
        failover,
        memory,
        power,
        pooling,
        upgrades,
        secrets,
    )
    for each in room.EXPERIMENTS
}
