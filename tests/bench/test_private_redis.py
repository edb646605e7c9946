"""A private Redis: durable as it says, and gone when it is closed."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from devtools.private import NotAvailable
from devtools.redis import PrivateRedis, RedisError
from devtools.waiting import wait_until


@pytest.fixture
def redis() -> Iterator[PrivateRedis]:
    try:
        server = PrivateRedis()
    except NotAvailable as error:
        pytest.skip(f"NOT RUN: redis: {error}")
    with server:
        yield server


def test_it_answers_and_says_what_it_does_not_know(redis: PrivateRedis) -> None:
    assert redis.command("PING") == "PONG"
    assert redis.command("SET", "key", "value") == "OK"
    assert redis.command("GET", "key") == "value"
    assert redis.command("GET", "nothing") is None
    assert redis.command("INCR", "number") == 1
    assert redis.command("MGET", "key", "nothing") == ["value", None]
    with pytest.raises(RedisError, match="unknown command"):
        redis.command("NOPE")


def test_its_file_is_synced_every_second(redis: PrivateRedis) -> None:
    assert redis.command("CONFIG", "GET", "appendfsync") == ["appendfsync", "everysec"]
    assert redis.info()["aof_enabled"] == "1"
    before = int(redis.info()["aof_current_size"])
    redis.command("SET", "key", "x" * 1_000)
    wait_until(lambda: int(redis.info()["aof_current_size"]) >= before + 1_000)


def test_what_was_written_survives_a_kill(redis: PrivateRedis) -> None:
    redis.command("SET", "key", "kept")
    port = redis.port
    # A kill of the process loses nothing that it has handed to the system.
    redis.kill(signal.SIGKILL)
    assert not redis.running
    redis.start()
    assert redis.port == port
    assert redis.command("GET", "key") == "kept"


def test_nothing_stays(redis: PrivateRedis) -> None:
    folder = redis.folder
    redis.close()
    assert not folder.exists()
    assert redis.pid is None
