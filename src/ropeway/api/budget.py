"""How many bytes of requests are held at once, in all and for one tenant: large bodies must not fill the memory.

Bodies that are declared to be small are not counted: looking after them would cost more than they do.
"""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import Final

from ropeway.core.errors import QuotaExceeded, Unavailable

#: Bytes held by one process, and of them for one tenant. What ends jobs has as much again: producers who send too
#: much must not keep workers from saying that they are done.
IN_ALL: Final = 256 * 1_048_576
OF_A_TENANT: Final = 128 * 1_048_576

#: When another try may pass: large bodies come and go within about that many seconds.
_RETRY_IN = 1.0


class Budget:
    """The bytes of one application."""

    def __init__(self, in_all: int = IN_ALL, of_a_tenant: int = OF_A_TENANT) -> None:
        self.in_all = in_all
        self.of_a_tenant = of_a_tenant
        self.bytes = 0
        #: By tenant and whether it is about leased jobs; nothing stays of those who hold nothing.
        self._by_tenant: Counter[tuple[str, bool]] = Counter()

    def held(self, tenant: str, *, outcomes: bool = False) -> Held:
        """For one request. `outcomes`: it carries lease tokens."""
        return Held(self, (tenant, outcomes))

    def take(self, whose: tuple[str, bool], number: int) -> None:
        if self._by_tenant[whose] + number > self.of_a_tenant:
            raise QuotaExceeded(
                f"requests of this tenant hold {self.of_a_tenant:,} bytes already",
                retry_in=_RETRY_IN,
                hint="send fewer large bodies at once",
            )
        if self.bytes + number > self.in_all:
            raise Unavailable(
                f"the requests of all tenants hold {self.in_all:,} bytes already", hint="repeat it in a moment"
            )
        self._by_tenant[whose] += number
        self.bytes += number

    def give_back(self, whose: tuple[str, bool], number: int) -> None:
        self.bytes -= number
        self._by_tenant[whose] -= number
        if not self._by_tenant[whose]:
            del self._by_tenant[whose]


class Held:
    """What one request holds. Given back at the end of a `with`, or by `release`."""

    __slots__ = ("_budget", "_number", "_whose")

    def __init__(self, budget: Budget, whose: tuple[str, bool]) -> None:
        self._budget = budget
        self._whose = whose
        self._number = 0

    def take(self, number: int) -> None:
        """So many bytes more. Raises QuotaExceeded for the tenant, Unavailable for all of them."""
        self._budget.take(self._whose, number)
        self._number += number

    def release(self) -> None:
        if self._number:
            self._budget.give_back(self._whose, self._number)
            self._number = 0

    def __enter__(self) -> Held:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
