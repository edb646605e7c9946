"""What a command changed is written down, as what is changed over HTTP is: by whom, what, to what."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ropeway.cli import output
from ropeway.core.errors import RopewayError

if TYPE_CHECKING:
    from ropeway.cli.services import Services


def actor() -> str:
    """Who runs this command, as the log of actions calls them."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError, ImportError):
        # A user id without a name, as in many containers.
        return "cli:unknown"


async def note(services: Services, action: str, target: str | Sequence[str], count: int | None = None) -> None:
    """Note what was done, once for each target. It is done already: a store that fails now only means a remark."""
    from ropeway.engines.capabilities import Capability

    if Capability.TENANCY not in services.engine.capabilities:
        # A server in between notes it itself, under the key's name.
        return
    targets = [target] if isinstance(target, str) else target
    try:
        await services.actions.note_each(actor(), action, targets, count)
    except RopewayError as error:
        output.note(f"It was done, but not written down in the log of actions: {error.message}")
