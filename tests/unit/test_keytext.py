"""A key as text: its form, its check, and what passes for one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeway.core import keytext
from ropeway.core.errors import FieldError

ID, SECRET = "abcdefghijk2", "A" * 43
LABELS = st.from_regex(r"[a-z0-9]{1,16}", fullmatch=True)
#: What a scanner for leaked secrets is told to look for.
SCANNER = re.compile(r"rw_[a-z0-9]{1,16}_[a-z2-7]{12}_[0-9A-Za-z]{43}_[0-9a-z]{7}")


@given(st.binary(min_size=8, max_size=8), st.binary(min_size=32, max_size=32), LABELS)
def test_what_is_written_is_read(id_bytes: bytes, secret_bytes: bytes, environment: str) -> None:
    id, secret = keytext.make_id(id_bytes), keytext.make_secret(secret_bytes)
    text = keytext.key_text(environment, id, secret)
    assert keytext.parse_key(text) == (id, secret)
    assert SCANNER.fullmatch(text)
    assert keytext.is_key_id(id)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_a_secret_keeps_all_its_bits(one: bytes, other: bytes) -> None:
    assert (keytext.make_secret(one) == keytext.make_secret(other)) == (one == other)


@given(st.integers(0, 73), st.sampled_from("abcxyz0123456789ABCXYZ_-"))
def test_one_wrong_character_is_noticed_without_a_look(place: int, character: str) -> None:
    text = keytext.key_text("live", ID, SECRET)
    wrong = text[:place] + character + text[place + 1 :]
    assert (keytext.parse_key(wrong) is None) == (wrong != text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rw_",
        "Bearer",
        keytext.key_text("live", ID, SECRET)[:-1],
        keytext.key_text("live", ID, SECRET) + "\n",
        " " + keytext.key_text("live", ID, SECRET),
        keytext.key_text("live", ID, SECRET).upper(),
        "rw_live_" + "a" * 100_000,
        "\ud800",
        "rw_live_ａｂｃ",
    ],
)
def test_what_is_no_key(text: str) -> None:
    assert keytext.parse_key(text) is None


@pytest.mark.parametrize("word", ["", "Live", "a_b", "a" * 17, "é"])
def test_the_label_of_an_environment(word: str) -> None:
    with pytest.raises(FieldError, match="environment"):
        keytext.key_text(word, ID, SECRET)
