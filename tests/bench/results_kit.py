"""Results made by hand, for tests of what is drawn from them."""

from __future__ import annotations

from typing import Any

from bench.peers.results import Results

#: Name: label, store, language, kind.
PEERS = {
    "ropeway-postgres": ("Ropeway", "postgres", "python", "jobs"),
    "ropeway-postgres-noevents": ("Ropeway, events off", "postgres", "python", "jobs"),
    "ropeway-sqlite": ("Ropeway", "sqlite", "python", "jobs"),
    "pgqueuer": ("PgQueuer", "postgres", "python", "jobs"),
    "saq-postgres": ("SAQ", "postgres", "python", "jobs"),
    "awa-pg": ("awa-pg", "postgres", "python", "jobs"),
    "pgmq": ("pgmq", "postgres", "python", "messages"),
    "graphile-worker": ("graphile-worker", "postgres", "node", "jobs"),
    "huey-sqlite": ("huey", "sqlite", "python", "jobs"),
    "celery": ("Celery", "redis", "python", "jobs"),
}


def made(**figures: dict[str, Any]) -> Results:
    """Results with `measure={peer: value or values by repeat}`; tests add the extras that measures have."""
    results = Results(
        machine={"cores": "2", "processor": "a processor"},
        stores={"postgres": {"version": "18.4", "settings": {"fsync": "on"}}},
    )
    for measure, by_peer in figures.items():
        for peer, values in by_peer.items():
            know(results, peer)
            for repeat, value in enumerate(values if isinstance(values, list) else [values]):
                results.add(measure, peer, repeat, value, "jobs/s")
    return results


def know(results: Results, peer: str) -> None:
    """Write down who this is."""
    label, store, language, kind = PEERS[peer]
    results.peers.setdefault(
        peer,
        {
            "label": label,
            "version": "1.2.3",
            "store": store,
            "language": language,
            "kind": kind,
            "packages": [f"{peer}==1.2.3"],
            "settings": [{"profile": "throughput", "text": "batch=500", "source": "https://example.org/docs"}],
            "notes": [],
        },
    )


def add_idle(results: Results, peer: str, p50: float, p99: float, repeat: int = 0) -> None:
    know(results, peer)
    extra = {"p50": p50, "p99": p99, "max": 2 * p99}
    results.add("idle", peer, repeat, p50, "ms", extra=extra)


def add_pinned(results: Results, peer: str, rates: list[float]) -> None:
    know(results, peer)
    extra = {"rounds": rates, "round_jobs": 100_000, "jobs": 100_000 * len(rates)}
    results.add("pinned", peer, 0, rates[-1], "jobs/s", extra=extra)
