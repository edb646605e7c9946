"""Ids and tokens."""

from __future__ import annotations

import pickle
import time
from datetime import UTC, datetime, timedelta
from uuid import RFC_4122, UUID

import pytest

from ropeway.runtime import ids


def test_an_id_is_a_uuid_of_version_7() -> None:
    before = time.time_ns() // 1_000_000
    made = ids.uuid7()
    after = time.time_ns() // 1_000_000
    assert (made.version, made.variant) == (7, RFC_4122)
    # A large batch made just before may have borrowed a few milliseconds from the future.
    assert before <= made.int >> 80 <= after + 100
    assert UUID(str(made)) == made
    assert hash(UUID(str(made))) == hash(made)


@pytest.mark.parametrize("count", [1, 2, 4_095, 4_096, 4_097, 10_000])
def test_a_batch_rises_and_never_repeats(count: int) -> None:
    made = ids.uuid7s(count)
    assert len(made) == count
    assert made == sorted(made)
    assert len(set(made)) == count
    assert {(one.version, one.variant) for one in made} == {(7, RFC_4122)}


@pytest.mark.parametrize("first", [1 << 40, (1 << 40) + 4_090])
def test_many_ids_are_made_as_one_is(first: int) -> None:
    random = bytes(range(256)) * 200
    made = ids._by_columns(first, random)
    by_hand = [
        (moment >> 12) << 80 | 0x7 << 76 | (moment & 0xFFF) << 64 | 0x2 << 62
        for moment in range(first, first + len(random) // 8)
    ]
    fixed = ~((1 << 62) - 1)
    assert [id.int & fixed for id in made] == by_hand
    assert [id.int & fixed for id in ids._one_by_one(first, random)] == by_hand
    assert [id.bytes[9:] for id in made] == [random[at + 1 : at + 8] for at in range(0, len(random), 8)]
    assert [id.bytes[8] for id in made] == [0x80 | random[at] & 0x3F for at in range(0, len(random), 8)]


@pytest.mark.parametrize("count", [1, 1_000])
def test_ids_are_plain_uuids(count: int) -> None:
    (made, *_) = ids.uuid7s(count)
    assert type(made) is UUID
    assert (made.is_safe, pickle.loads(pickle.dumps(made))) == (UUID(int=0).is_safe, made)


def test_no_ids_is_fine() -> None:
    assert ids.uuid7s(0) == []


def test_each_id_is_higher_than_all_before_it_also_across_calls() -> None:
    made = [id for count in (1, 3, 5_000, 1, 1, 2) for id in ids.uuid7s(count)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_the_lowest_id_of_a_time_parts_earlier_ids_from_later_ones() -> None:
    made = ids.uuid7()
    at = ids.made_at(made)
    assert at is not None
    moment = timedelta(milliseconds=1)
    assert ids.lowest_at(at) <= made < ids.lowest_at(at + moment)
    assert ids.lowest_at(at, moment) == ids.lowest_at(at + moment)
    assert ids.lowest_at(datetime.min.replace(tzinfo=UTC)) == UUID(int=0)
    assert ids.lowest_at(datetime.max.replace(tzinfo=UTC), timedelta(hours=1)) > made


def test_a_token_has_128_random_bits() -> None:
    tokens = [ids.token() for _ in range(2_000)]
    assert len(set(tokens)) == 2_000
    # Each bit is 0 and 1 somewhere: no version, no variant, nothing fixed. By luck: 128 * 2^-1999.
    ones = zeros = 0
    for token in tokens:
        ones |= token.int
        zeros |= ~token.int
    assert ones == 2**128 - 1
    assert zeros & (2**128 - 1) == 2**128 - 1


def test_bytes_become_the_same_uuid() -> None:
    raw = bytes(range(16))
    made = ids.uuid_from_bytes(raw)
    assert made == UUID(bytes=raw)
    assert (made.bytes, str(made), repr(made)) == (raw, str(UUID(bytes=raw)), repr(UUID(bytes=raw)))
