"""Which errors are one error."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeway.core.errorgroups import MAX_MESSAGE, fingerprint, is_fingerprint, normalise


@pytest.mark.parametrize(
    ("message", "group"),
    [
        ("no user 4711", "no user <n>"),
        ("took 1.5 s, allowed 0.25", "took <n> s, allowed <n>"),
        ("balance is -3,000.00", "balance is <n>"),
        ("at 12:30:59 port 5432:5433", "at <n> port <n>"),
        ("job 0198c0de-4242-7000-8000-0123456789ab failed", "job <id> failed"),
        ("job 0198C0DE-4242-7000-8000-0123456789AB failed", "job <id> failed"),
        ("since 2026-01-31T09:00:00.123456Z", "since <time>"),
        ("since 2026-01-31 09:00:00 +0100 it fails", "since <time> it fails"),
        ("due 2026-01-31", "due <time>"),
        ("object at 0x7f3a2c", "object at <hex>"),
        ("commit 9fceb02d0ae598e95dc970b74767f19372d61af8 is bad", "commit <hex> is bad"),
        ("KeyError: 'user_id'", "KeyError: <text>"),
        ('no column "naïve name" here', "no column <text> here"),
        ("unknown `thing`", "unknown <text>"),
        ("can't open what doesn't exist", "can't open what doesn't exist"),
        ("can't read '/etc/passwd', it isn't ours", "can't read <text>, it isn't ours"),
        ("cannot open /var/lib/app/x.db: denied", "cannot open <path>: denied"),
        ("cannot open ./x/y.txt", "cannot open <path>"),
        (r"cannot open C:\Users\ada\x.txt", "cannot open <path>"),
        ("GET https://user:pw@example.com/a?b=1 gave 503", "GET <url> gave <n>"),
        ("mail to ada.l@example.co.uk bounced", "mail to <email> bounced"),
        ("either/or is no path", "either/or is no path"),
        ("IPv4 127.0.0.1", "IPv4 <n>"),
        ("worker3 of shard12", "worker3 of shard12"),
        ("queue_20260131", "queue_<n>"),
        ("  two\n\tlines ", "two lines"),
        ("deadbeef is a word, decade too", "deadbeef is a word, decade too"),
        ("", ""),
    ],
)
def test_what_differs_each_time_is_replaced(message: str, group: str) -> None:
    assert normalise(message) == group


def test_other_errors_are_other_groups() -> None:
    messages = ["no user 1", "no users 1", "user 1", "no user 'x'", "no user /a/b"]
    assert len({normalise(message) for message in messages}) == len(messages)
    assert fingerprint("ValueError", "x") != fingerprint("KeyError", "x")
    assert fingerprint("a", "bc") != fingerprint("ab", "c")


def test_a_fingerprint_is_for_ever() -> None:
    """Somebody may have written it down."""
    assert fingerprint("ValueError", normalise("no user 4711")) == "93cec0c5c8e24fd8"
    assert fingerprint("ValueError", normalise("no user 12")) == "93cec0c5c8e24fd8"


@given(st.text())
def test_any_text_has_a_group(text: str) -> None:
    group = normalise(text)
    assert len(group) <= MAX_MESSAGE
    assert is_fingerprint(fingerprint("E", group))


@pytest.mark.parametrize(
    "text",
    [
        part * 2_000
        for part in ("'", '"a', "/", "a/", "0", "1,", "a@", "a.", "-", "http://", "0x", "dead1", "~/", "\\")
    ],
)
def test_no_text_takes_long(text: str) -> None:
    began = time.process_time()
    normalise(text)
    assert time.process_time() - began < 0.25
