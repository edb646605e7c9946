"""What an engine may lack. A lack is declared and refused loudly, never emulated in silence."""

from __future__ import annotations

from enum import StrEnum

from ropeway.core.errors import NotSupported


class Capability(StrEnum):
    """Something that not every engine can do."""

    #: What was accepted survives the process.
    DURABLE = "durable"
    #: Several processes may open the same store at once.
    SHARED = "shared"
    #: Enqueue inside the caller's own database transaction.
    TRANSACTIONAL_ENQUEUE = "transactional_enqueue"
    #: Complete a job inside the handler's own database transaction (G4).
    TRANSACTIONAL_COMPLETION = "transactional_completion"
    #: Chores of the whole store (rescue, expire, prune, fire); a server does them for its remote engines.
    UPKEEP = "upkeep"
    #: Tenants, keys, shared limits and the log of actions: what a server needs of the store behind it.
    TENANCY = "tenancy"


def lacks(engine: str, capability: Capability) -> NotSupported:
    """The refusal of what an engine declares it lacks."""
    return NotSupported(
        f"the {engine} engine has no {capability.value.replace('_', ' ')}",
        hint="it needs the PostgreSQL engine" if "transactional" in capability.value else None,
    )
