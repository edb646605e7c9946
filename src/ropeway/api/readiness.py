"""What a server needs to be ready, looked at now and then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ropeway.core.errors import EngineError

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine

OK = "ok"
#: A look at the store is shared by all who ask within this time: nobody needs a key to ask.
KEEP_SECONDS = 1.0
#: Seconds after which a store that does not answer counts as away.
PATIENCE = 2.0


class Readiness:
    """By name, whether each thing that is needed is there: `ok`, or a few words that tell no secrets."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._others: dict[str, Callable[[], str]] = {}
        self._found: dict[str, str] = {}
        self._until = 0.0
        self._look: asyncio.Task[dict[str, str]] | None = None

    def also(self, name: str, check: Callable[[], str]) -> None:
        """Something else that is needed."""
        self._others[name] = check

    async def look(self) -> dict[str, str]:
        if time.monotonic() >= self._until:
            if self._look is None:
                self._look = asyncio.create_task(self._find())
            # Shielded, for whoever goes away must not take the answer from the others.
            await asyncio.shield(self._look)
        return self._found

    async def _find(self) -> dict[str, str]:
        try:
            # An engine that could be opened had the tables it needs.
            self._found = {"engine": await self._answers(), "migrations": OK}
            self._found |= {name: check() for name, check in self._others.items()}
            self._until = time.monotonic() + KEEP_SECONDS
            return self._found
        finally:
            self._look = None

    async def _answers(self) -> str:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._engine.now()
        except TimeoutError:
            return f"no answer within {PATIENCE:g} s"
        except EngineError as error:
            return error.code
        return OK
