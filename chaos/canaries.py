"""Words that are nowhere else, put where secrets are, and the search for them in all that others can see."""

from __future__ import annotations

import random
import string
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from chaos.checker import Violation

_SIGNS: Final = string.ascii_letters + string.digits


@dataclass(frozen=True)
class Canary:
    """`name` is what it stands for. It may be seen in the places `allowed`, and must be in the places `shown`."""

    name: str
    secret: bytes
    allowed: frozenset[str] = frozenset()
    shown: frozenset[str] = frozenset()


def word(chance: random.Random) -> str:
    """Letters and digits alone, so that it looks the same in JSON, in HTML, in URLs and in command lines."""
    return "".join(chance.choices(_SIGNS, k=24))


def forms(secret: bytes) -> frozenset[bytes]:
    """As it is, in hexadecimal digits, and in base64 as a part of something longer."""
    found = {secret, secret.hex().encode()}
    for before in range(3):
        # Bytes do not begin where signs do: only what comes of the secret alone is looked for.
        first, last = -(-before * 8 // 6), (before + len(secret)) * 8 // 6
        for encode in (b64encode, urlsafe_b64encode):
            found.add(encode(b"\0" * before + secret)[first:last])
    return frozenset(found)


@dataclass(frozen=True)
class Sight:
    """Something that somebody could see: in what kind of place, where exactly, and what."""

    place: str
    where: str
    seen: bytes


class Evidence:
    """All that was seen. The same in the same place is kept once."""

    def __init__(self) -> None:
        self._sights: dict[tuple[str, bytes], Sight] = {}

    def add(self, place: str, where: str, seen: bytes) -> None:
        self._sights.setdefault((place, seen), Sight(place, where, seen))

    @property
    def size(self) -> int:
        return sum(len(sight.seen) for sight in self._sights.values())

    def sights_of(self, canary: Canary) -> list[Sight]:
        wanted = forms(canary.secret)
        return [sight for sight in self._sights.values() if any(form in sight.seen for form in wanted)]


def search(evidence: Evidence, canaries: Iterable[Canary]) -> tuple[int, list[Violation]]:
    """How often a canary was seen where it must not be, and what to say of it.

    A place where a canary had to be seen and was not is told as well: there the search is blind.
    """
    hits, found = 0, []
    for canary in canaries:
        sights = evidence.sights_of(canary)
        for sight in sights:
            if sight.place not in canary.allowed | canary.shown:
                hits += 1
                found.append(Violation("E35", sight.where, f"{canary.name} is seen in {sight.place}"))
        found += [
            Violation("E35", "-", f"the search is blind: {canary.name} was not found in {place}")
            for place in sorted(canary.shown - _places(sights))
        ]
    return hits, found


def _places(sights: Collection[Sight]) -> set[str]:
    return {sight.place for sight in sights}
