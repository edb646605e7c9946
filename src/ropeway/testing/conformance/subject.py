"""What the suite needs of an engine's author: a fresh store, a clock that can be moved, a second handle."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from ropeway.core.decide import Rules
from ropeway.engines.capabilities import Capability
from ropeway.engines.protocol import Engine, EngineRules

#: The rules under which the suite runs, unless a test asks for others: nothing is cached by the real clock.
TEST_RULES = EngineRules(decisions=Rules(), ageing_lookup_seconds=0.0)


class Subject(Protocol):
    """One engine under test, on a store of its own that starts empty."""

    engine: Engine

    async def advance(self, seconds: float) -> None:
        """Move the engine's clock forward. It stands still otherwise."""
        ...

    async def another(self) -> Engine:
        """A second handle on the same store, as another process would have. Only for shared engines. It comes
        open, follows the same clock and is closed with the subject."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A transaction of the caller's own on the store's database: gives its connection, commits at the end of
        the block, rolls back if the block raises. Only for engines with a transactional capability."""
        ...


class Harness(Protocol):
    """How the suite gets its subjects: one per engine, given by the fixture `harness`.

    A harness may also say `inside_json = True`: payloads and results travel inside other JSON, through HTTP, so
    that white space round them is not part of them, the result null is no result, and what tells a keyed body from
    another is made from the body alone.
    """

    name: str
    capabilities: frozenset[Capability]

    def subject(self, rules: EngineRules = TEST_RULES) -> AbstractAsyncContextManager[Subject]: ...
