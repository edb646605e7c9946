"""An answer leaves in one write, and nothing of it is kept back."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ropeway.api.corking import OneWrite

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Written:
    """A transport that keeps what is done to it."""

    def __init__(self) -> None:
        self.did: list[Any] = []

    def write(self, data: bytes) -> None:
        self.did.append(data)

    def close(self) -> None:
        self.did.append("close")

    def write_eof(self) -> None:
        self.did.append("eof")

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> str:
        return name

    def pause_reading(self) -> None:
        self.did.append("pause")


def corked() -> tuple[OneWrite, Written]:
    written = Written()
    return OneWrite(cast(asyncio.Transport, written), asyncio.get_running_loop()), written


async def test_head_and_body_are_one_write() -> None:
    transport, written = corked()
    for _ in range(2):
        transport.write(HEAD)
        transport.write(b"{}")
    await asyncio.sleep(0)
    assert written.did == [HEAD + b"{}", HEAD + b"{}"]


async def test_a_head_whose_body_takes_its_time_does_not_wait_for_it() -> None:
    transport, written = corked()
    transport.write(HEAD)
    assert written.did == []
    await asyncio.sleep(0)
    assert written.did == [HEAD]
    transport.write(b"data: 1")
    assert written.did == [HEAD, b"data: 1"]


@pytest.mark.parametrize(("verb", "seen"), [("close", "close"), ("write_eof", "eof")])
async def test_a_head_goes_out_before_the_end(verb: str, seen: str) -> None:
    transport, written = corked()
    transport.write(HEAD)
    getattr(transport, verb)()
    await asyncio.sleep(0)
    assert written.did == [HEAD, seen]


async def test_the_rest_is_the_transports_own() -> None:
    transport, written = corked()
    transport.pause_reading()
    assert written.did == ["pause"]
    assert transport.get_extra_info("peername") == "peername"
    assert not transport.is_closing()
