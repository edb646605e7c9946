"""The search for secrets: what it takes for a hit, and that it says where it is blind."""

from __future__ import annotations

import random
from base64 import b64encode, urlsafe_b64encode
from uuid import uuid4

import pytest

from chaos.canaries import Canary, Evidence, forms, search, word
from chaos.experiments.secrets import refused_bodies
from ropeway.core.lease import Lease
from ropeway.wire.tokens import format_token

SECRET = word(random.Random(1))


def _found(seen: bytes, secret: bytes = SECRET.encode()) -> bool:
    return any(form in seen for form in forms(secret))


@pytest.mark.parametrize(
    "seen",
    [
        f'{{"note": "{SECRET}"}}'.encode(),
        SECRET.encode().hex().encode(),
        b64encode(f":{SECRET}!".encode()),
        b64encode(f"ab{SECRET}".encode()),
        b"Basic " + b64encode(f"somebody:{SECRET}".encode()),
        urlsafe_b64encode(f"{SECRET}?>".encode()),
    ],
)
def test_a_canary_is_found_in_whatever_it_is_wrapped(seen: bytes) -> None:
    assert _found(seen)


def test_another_word_is_not_found() -> None:
    assert not _found(word(random.Random(2)).encode() * 100)
    assert not _found(b64encode(word(random.Random(2)).encode()))


def test_a_leases_token_is_found_as_workers_get_it() -> None:
    lease = Lease(uuid4(), 3, uuid4())
    assert _found(format_token(lease).encode(), lease.token.bytes)


def test_words_differ_and_are_plain() -> None:
    chance = random.Random(3)
    words = {word(chance) for _ in range(100)}
    assert len(words) == 100
    assert all(each.isalnum() and each.isascii() for each in words)


def _evidence(*sights: tuple[str, bytes]) -> Evidence:
    evidence = Evidence()
    for place, seen in sights:
        evidence.add(place, f"a file of {place}", seen)
    return evidence


def test_a_hit_is_told_with_its_place_and_without_the_secret() -> None:
    canary = Canary("a key", SECRET.encode(), allowed=frozenset({"the store"}))
    evidence = _evidence(("logs", f"x {SECRET} y".encode()), ("the store", SECRET.encode()), ("pages", b"nothing"))
    hits, found = search(evidence, [canary])
    assert (hits, [str(each) for each in found]) == (1, ["E35 a file of logs: a key is seen in logs"])


def test_a_place_in_which_the_planted_word_is_not_found_is_told() -> None:
    planted = Canary("a name", SECRET.encode(), shown=frozenset({"logs", "metrics"}))
    hits, found = search(_evidence(("logs", SECRET.encode()), ("metrics", b"")), [planted])
    assert hits == 0
    assert [each.words for each in found] == ["the search is blind: a name was not found in metrics"]


def test_the_same_sight_is_kept_once() -> None:
    evidence = _evidence(("logs", b"abc"), ("logs", b"abc"), ("pages", b"abc"))
    assert evidence.size == 6


def test_every_refused_body_holds_the_secret() -> None:
    assert all(SECRET.encode() in body for body in refused_bodies(SECRET, "planted"))
