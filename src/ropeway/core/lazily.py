"""Sequences whose items are made when somebody looks at them: for a thousand things that are mostly the same."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

T = TypeVar("T")


class MadeLazily(Sequence[T]):
    """A list to whoever does not know more about it. All items are made at the first look at one, once."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: list[T] | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def make(self) -> list[T]:
        """All the items."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._all()[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self._all())

    def _all(self) -> list[T]:
        if self._made is None:
            self._made = self.make()
        return self._made
