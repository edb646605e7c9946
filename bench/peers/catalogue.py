"""Who is measured: every peer as data, with the settings it gets and where its own documentation has them.

The peers of each kind are in a module of their own (`MODULES`), as a tuple `PEERS`; Ropeway's entries are here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Store = Literal["postgres", "redis", "sqlite", "memory"]
Profile = Literal["throughput", "latency", "default"]

#: Where the entries of the others are; each has a tuple PEERS.
MODULES = ("catalogue_postgres", "catalogue_node", "catalogue_rust", "catalogue_redis")


class Setting(NamedTuple):
    """A setting that a peer gets beyond its defaults, and the page of its own documentation that has it."""

    profile: str
    text: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One system on one store.

    name            unique, "saq-redis"; also its environment's folder, unless `environment` names another
    label           as tables show it, without a version: that comes from the environment
    program         its file in programs/
    packages        what its environment holds, pinned, the peer itself first; none: the project's own environment
    kind            "messages" for a message queue, which does less than a job queue
    rate            about how many jobs per second one worker process finishes: sizes the runs
    enqueue_rate    the same for single enqueues with 50 in flight
    bulk_rate       the same for its call for many jobs, 1,000 at a time; None: it has no such call
    settings        what it gets beyond its defaults, and where that is documented
    notes           what a fair reader must know: keeps no history, polls once a second by default …
    needs           programs that the machine must have
    env             environment variables for its programs
    """

    name: str
    label: str
    store: Store
    language: Literal["python", "node"] = "python"
    program: str
    packages: tuple[str, ...] = ()
    environment: str = ""
    kind: Literal["jobs", "messages"] = "jobs"
    rate: int
    enqueue_rate: int
    bulk_rate: int | None
    settings: tuple[Setting, ...] = ()
    notes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        """Whether it is Ropeway itself."""
        return self.name.startswith("ropeway")


def everyone() -> tuple[Peer, ...]:
    """Ropeway first, then every peer of every module."""
    found = list(ropeway_entries())
    for name in MODULES:
        found += importlib.import_module(f"bench.peers.{name}").PEERS
    names = [peer.name for peer in found]
    doubled = {name for name in names if names.count(name) > 1}
    if doubled:
        raise ValueError(f"two peers are called {', '.join(sorted(doubled))}")
    return tuple(found)


def chosen(names: Sequence[str], stores: Sequence[str]) -> tuple[Peer, ...]:
    """Those of these names (all when there are none) on these stores (any when there are none).

    "ropeway" is all of Ropeway's entries. ValueError for a wrong name.
    """
    known = everyone()
    unknown = set(names) - {peer.name for peer in known} - {"ropeway"}
    if unknown:
        raise ValueError(
            f"no peer is called {', '.join(sorted(unknown))}; there are {', '.join(p.name for p in known)}"
        )
    taken = [peer for peer in known if not names or peer.name in names or (peer.ours and "ropeway" in names)]
    return tuple(peer for peer in taken if not stores or peer.store in stores)


# ── Ropeway ──


def ropeway_entries() -> tuple[Peer, ...]:
    """Ropeway on each of its engines, as a library and over HTTP."""
    return (POSTGRES, POSTGRES_WITHOUT_EVENTS, SQLITE, HTTP)


_QUIET = Setting("all", "--log-level WARNING --port -1 (no port for health)", "docs/workers.md, Logs")
_COALESCED = "calls that are made at once share a commit"
_MEMORY = "memory is that of the supervisor and its children; pages that they share are counted for each"
_PROGRAM = "bench_ropeway.py"

POSTGRES = Peer(
    name="ropeway-postgres",
    label="Ropeway",
    store="postgres",
    program=_PROGRAM,
    rate=70_000,
    enqueue_rate=22_000,
    bulk_rate=95_000,
    settings=(_QUIET,),
    notes=("events on: every change of a job is kept as a row of its history", _COALESCED, _MEMORY),
)

POSTGRES_WITHOUT_EVENTS = Peer(
    name="ropeway-postgres-noevents",
    label="Ropeway, events off",
    store="postgres",
    program=_PROGRAM,
    rate=75_000,
    enqueue_rate=24_000,
    bulk_rate=120_000,
    settings=(_QUIET, Setting("all", "ropeway migrate events off", "docs/operations.md, Retention")),
    notes=("keeps finished jobs; of their history only what went wrong", _COALESCED, _MEMORY),
    env={"BENCH_EVENTS": "off"},
)

SQLITE = Peer(
    name="ropeway-sqlite",
    label="Ropeway",
    store="sqlite",
    program=_PROGRAM,
    rate=50_000,
    enqueue_rate=22_000,
    bulk_rate=110_000,
    settings=(_QUIET,),
    notes=("synchronous=FULL; events on", _COALESCED, _MEMORY),
)

HTTP = Peer(
    name="ropeway-http",
    label="Ropeway over HTTP",
    store="postgres",
    program=_PROGRAM,
    rate=20_000,
    enqueue_rate=6_000,
    bulk_rate=17_000,
    settings=(
        _QUIET,
        Setting("all", "ROPEWAY_TENANT_RATE=1e9 and other limits out of reach", "docs/settings.md"),
    ),
    notes=(
        "producer, server, worker and PostgreSQL share the cores; API keys and limits are on",
        "CPU and memory are the worker's: those of the server are not in them",
        "each enqueue carries an idempotency key, as the client does by default",
    ),
    env={"BENCH_THROUGH": "http"},
)
