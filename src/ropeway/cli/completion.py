"""What the shell completes beside commands and options: statuses, and names that the store knows.

A completion must be quick and must never speak: a store that is away, slow or not there completes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer

from ropeway.core.errors import RopewayError
from ropeway.core.fields import PRIORITY_NAMES
from ropeway.core.states import State

if TYPE_CHECKING:
    from ropeway.cli.services import Services

#: Seconds that a store may take to answer.
PATIENCE = 1.0


def states(incomplete: str) -> list[str]:
    return [state.value for state in State if state.value.startswith(incomplete)]


def priorities(incomplete: str) -> list[str]:
    return [name for name in PRIORITY_NAMES if name.startswith(incomplete)]


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    return _known(ctx, incomplete, lambda services: services.names.queues())


def types(ctx: typer.Context, incomplete: str) -> list[str]:
    return _known(ctx, incomplete, lambda services: services.names.types())


def schedules(ctx: typer.Context, incomplete: str) -> list[str]:
    async def names(services: Services) -> list[str]:
        return [schedule.name for schedule in await services.schedules.all()]

    return _known(ctx, incomplete, names)


def _known(ctx: typer.Context, incomplete: str, ask: Callable[[Services], Awaitable[list[str]]]) -> list[str]:
    from ropeway.cli.options import DEFAULT, use

    async def quickly(services: Services) -> list[str]:
        return await asyncio.wait_for(ask(services), PATIENCE)

    with contextlib.suppress(RopewayError, TimeoutError, OSError):
        found = use(ctx.params.get("url"), ctx.params.get("tenant") or DEFAULT, quickly)
        return [name for name in found if name.startswith(incomplete)]
    return []
