"""Commands run inside the test's own process, and stores with something in them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import pytest

from ropeway.cli.main import run
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Engine
from ropeway.settings import Settings

T = TypeVar("T")

SQLITE = "sqlite:///ropeway.db"


class Said(NamedTuple):
    """What a command said, and how it exited."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """`ropeway ...` in the current folder."""

    def __init__(self, capsys: pytest.CaptureFixture[str], url: str = SQLITE) -> None:
        self._capsys = capsys
        self.url = url

    def __call__(self, *arguments: str) -> Said:
        self._capsys.readouterr()
        code = run(arguments)
        out, err = self._capsys.readouterr()
        return Said(code, out, err)

    def done(self, *arguments: str) -> str:
        """What a command that must succeed prints, without its last newline."""
        said = self(*arguments)
        assert said.code == 0, said
        return said.out.removesuffix("\n")

    def engine(self, work: Callable[[Engine], Awaitable[T]]) -> T:
        """Do something with the store itself."""

        async def use() -> T:
            async with engine_for(Settings.load({"url": self.url})) as engine:
                return await work(engine)

        return asyncio.run(use())
