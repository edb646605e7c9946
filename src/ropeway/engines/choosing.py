"""In which order a claim walks queues and priorities: strict or drawn by weight, aged or not."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf

from ropeway.core import fields
from ropeway.core.ageing import PRIORITIES, order_priorities
from ropeway.core.errors import FieldError
from ropeway.engines.protocol import Weighted


def queue_order(queues: Sequence[str | Weighted], draw: Callable[[], float] = random.random) -> list[str]:
    """The queues of one claim, first to last.

    Plain names keep their order. With any `Weighted` the whole order is drawn: a queue's chance to be next is its
    weight among those that are left.
    """
    if not queues:
        raise FieldError("name at least one queue", pointer="/queues")
    names = [q.queue if isinstance(q, Weighted) else q for q in queues]
    for name in names:
        fields.check_name(name, "queue")
    if len(set(names)) != len(names):
        raise FieldError("a queue is named twice", pointer="/queues")
    if not any(isinstance(q, Weighted) for q in queues):
        return names
    weights = {
        name: fields.check_integer(q.weight, "weight", 1, 1_000_000) if isinstance(q, Weighted) else 1
        for name, q in zip(names, queues, strict=True)
    }
    # Each queue draws an exponential waiting time with its weight as rate: sorted, that is the drawing above.
    return sorted(names, key=lambda name: (1.0 - draw()) ** (1.0 / weights[name]), reverse=True)


#: Lanes remembered at most; a forgotten one is looked up again.
MEMORY = 20_000

#: For so long a queue that was found empty stands behind all others. Not for longer: it may be the one that
#: matters most, and whatever comes to it meanwhile waits behind theirs.
EMPTY_SECONDS = 0.5


class EmptyQueues:
    """Queues that a claim has just found empty: a worker of very many looks at the others first."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._found: dict[tuple[str, str], float] = {}

    def note(self, tenant: str, queues: Sequence[str]) -> None:
        if len(self._found) > MEMORY:
            self._found.clear()
        now = self._monotonic()
        for queue in queues:
            self._found[(tenant, queue)] = now

    def last(self, tenant: str, order: Sequence[str]) -> list[str]:
        """The same queues in the same order, but for those behind the others."""
        horizon = self._monotonic() - EMPTY_SECONDS
        empty = {queue for queue in order if self._found.get((tenant, queue), -inf) > horizon}
        return [queue for queue in order if queue not in empty] + [queue for queue in order if queue in empty]


class PriorityOrders:
    """The order of priorities per lane, looked up again at most once per `lookup_seconds`."""

    def __init__(
        self,
        step_seconds: float,
        lookup_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._step = step_seconds
        self._lookup = lookup_seconds
        self._monotonic = monotonic
        self._known: dict[tuple[str, str], tuple[float, tuple[int, ...]]] = {}

    def stale(self, tenant: str, queues: Sequence[str]) -> list[str]:
        """The queues whose waits must be looked up before they are claimed from."""
        if self._step <= 0:
            return []
        horizon = self._monotonic() - self._lookup
        return [
            queue for queue in queues if (known := self._known.get((tenant, queue))) is None or known[0] <= horizon
        ]

    def learn(self, tenant: str, queue: str, waited: Mapping[int, float]) -> None:
        """Note how long each priority's oldest due job has waited."""
        self._note(tenant, queue, order_priorities(waited, self._step))

    def emptied(self, tenant: str, queues: Sequence[str]) -> None:
        """A claim has just taken all that was due there: nothing that comes now has waited, so the plain order
        holds for as long as a look would. An idle worker's wake-up is spared that look."""
        for queue in queues:
            self._note(tenant, queue, PRIORITIES)

    def _note(self, tenant: str, queue: str, order: tuple[int, ...]) -> None:
        if len(self._known) > MEMORY:
            self._known.clear()
        self._known[(tenant, queue)] = (self._monotonic(), order)

    def of(self, tenant: str, queue: str) -> tuple[int, ...]:
        known = self._known.get((tenant, queue))
        return PRIORITIES if known is None else known[1]
