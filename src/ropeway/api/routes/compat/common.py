"""What the older faces share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ropeway.api.routing import Call
from ropeway.core.access import Scope

T = TypeVar("T")

ENQUEUE = (Scope.ENQUEUE,)
REFUSALS = (
    *("invalid_field", "timezone_required", "invalid_time", "conflicting_fields", "idempotency_mismatch"),
    *("key_required", "key_in_flight", "payload_too_large", "quota_exceeded", "queue_full", "indeterminate"),
)


def cost(number: Callable[[Call], int]) -> Callable[[Call], float]:
    """What a call with so many jobs takes from the rate."""
    return lambda call: float(number(call))


async def made(call: Call, make: Callable[..., T], *given: object) -> T:
    """The jobs of a body; those of a large one are made in a thread."""
    return await call.deps.heavy.by_size(len(call.raw), make, *given)
