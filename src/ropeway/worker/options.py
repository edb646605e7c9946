"""How a worker was asked to run: queues, slots, limits. Checked once, sent to every child."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

import msgspec

from ropeway.core import fields
from ropeway.core.errors import ConfigurationError, RopewayError
from ropeway.core.job import DEFAULT_QUEUE, DEFAULT_TENANT
from ropeway.engines.protocol import Weighted
from ropeway.settings import Settings

MAX_WEIGHT = 1_000
MAX_CONCURRENCY = 10_000


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker process does; durations in seconds."""

    queues: tuple[str | Weighted, ...] = (DEFAULT_QUEUE,)
    #: Slots that one queue may fill at most.
    caps: dict[str, int] = {}
    concurrency: int = 100
    #: Processes for handlers that are CPU-bound (`process=True`), per child.
    cpu_processes: int = max(1, os.cpu_count() or 1)
    lease_seconds: float = 30.0
    poll_seconds: float = 1.0
    drain_seconds: float = 25.0
    #: A child that has run so many jobs is replaced; 0: never.
    max_jobs: int = 0
    #: A child that holds so many bytes is replaced; 0: never.
    max_memory_bytes: int = 0
    tenant: str = DEFAULT_TENANT

    def with_settings(self, settings: Settings) -> WorkerOptions:
        """The same, with what the settings say about slots and times."""
        return msgspec.structs.replace(
            self,
            concurrency=settings.concurrency,
            lease_seconds=settings.lease_seconds,
            poll_seconds=settings.poll_seconds,
            drain_seconds=settings.drain_seconds,
        )

    def queue_names(self) -> tuple[str, ...]:
        return tuple(queue_name(queue) for queue in self.queues)


def queue_name(queue: str | Weighted) -> str:
    return queue.queue if isinstance(queue, Weighted) else queue


def overlaid(settings: Settings, flags: Mapping[str, object]) -> Settings:
    """An app's settings, with what was asked for on the command line over them."""
    given = {name: value for name, value in flags.items() if value is not None}
    if not given:
        return settings
    loaded = Settings.load(given)
    values = {name: getattr(loaded, name) for name in given}
    sources = {**settings.sources, **{name: loaded.sources[name] for name in given}}
    return msgspec.structs.replace(settings, **values, sources=sources)


def parse_queues(text: str) -> tuple[str | Weighted, ...]:
    """`a,b` is strict order; any `name:weight` makes all of them weights, a missing one is 1."""
    names: list[tuple[str, int | None]] = []
    for part in text.split(","):
        name, colon, weight = part.strip().partition(":")
        _check_queue(name, text)
        if colon and (not weight.isascii() or not weight.isdigit() or not 1 <= int(weight) <= MAX_WEIGHT):
            raise ConfigurationError(
                f"-q {text}: {weight!r} is not a weight", hint=f"a whole number from 1 to {MAX_WEIGHT}"
            )
        if name in (seen for seen, _ in names):
            raise ConfigurationError(f"-q {text}: {name!r} is named twice")
        names.append((name, int(weight) if colon else None))
    if all(weight is None for _, weight in names):
        return tuple(name for name, _ in names)
    return tuple(Weighted(name, weight or 1) for name, weight in names)


def parse_caps(texts: Sequence[str], queues: Sequence[str]) -> Mapping[str, int]:
    """`mail=5`: at most five jobs of the queue at once, per child."""
    caps: dict[str, int] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if not equals or not number.isascii() or not number.isdigit() or not 1 <= int(number) <= MAX_CONCURRENCY:
            raise ConfigurationError(f"--max {text} is not understood", hint="write it as --max mail=5")
        if name not in queues:
            raise ConfigurationError(
                f"--max {text}: this worker does not serve {name!r}", hint=f"it serves {', '.join(queues)}"
            )
        caps[name] = int(number)
    return caps


def worker_name(index: int) -> str:
    """The name people see, unique on the network while the process lives."""
    host = "".join(c if c.isalnum() or c in "-_." else "-" for c in socket.gethostname())[:60] or "host"
    return f"{host}-{os.getpid()}-{index}"


def _check_queue(name: str, text: str) -> None:
    try:
        fields.check_name(name, "queue")
    except RopewayError as error:
        raise ConfigurationError(f"-q {text}: {error.message}", hint="for example -q mail:5,default") from None
