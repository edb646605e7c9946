"""The Python peers with a core in Rust, with the settings that did best in a short sweep."""

from __future__ import annotations

from bench.peers.catalogue import Peer, Setting

_AWA = "https://github.com/hardbyte/awa/blob/main"
_TASKITO = "https://docs.byteveda.org/taskito"
_TASKITO_QUEUE = f"{_TASKITO}/python/api-reference/queue, and the docstring of Queue"

AWA = Peer(
    name="awa-pg",
    label="Awa",
    store="postgres",
    program="bench_awa.py",
    packages=("awa-pg==0.6.9", "uvloop==0.23.0"),
    rate=10_000,
    enqueue_rate=800,
    bulk_rate=49_000,
    settings=(
        Setting("throughput, latency", "1,024 workers", f"{_AWA}/docs/configuration.md, Queue configuration"),
        Setting("default", "4 workers: there is no default; so many are in its quick start", f"{_AWA}/awa-python"),
        Setting("all", "uvloop", "https://uvloop.readthedocs.io/user/index.html"),
        Setting("all", "enqueue_many_copy for bulk", f"{_AWA}/awa-python, COPY ingestion"),
    ),
    notes=(
        "keeps finished jobs for less than a minute here, then only their number",
        "its engine since 0.6 (queue storage) is installed with the schema",
    ),
)

_TASKITO_SETTINGS = (
    Setting("throughput, latency", "async handlers, async_concurrency=1000", _TASKITO_QUEUE),
    Setting("throughput, latency", "workers=1000, scheduler_batch_size=1000", _TASKITO_QUEUE),
    Setting("latency", "scheduler_poll_interval_ms=1", _TASKITO_QUEUE),
    Setting("all", "TASKITO_LOG_LEVEL=WARNING", "the docstring of taskito.log_config.configure"),
)
_TASKITO_QUIET = {"TASKITO_LOG_LEVEL": "WARNING"}
_TASKITO_NOTES = (
    "its client blocks: single jobs are enqueued from 8 threads",
    "polls every 50 ms by default, and claims one job at a time",
)

TASKITO_POSTGRES = Peer(
    name="taskito-postgres",
    label="taskito",
    store="postgres",
    program="bench_taskito.py",
    packages=("taskito==0.22.0",),
    environment="taskito",
    rate=2_400,
    enqueue_rate=1_500,
    bulk_rate=25_000,
    settings=_TASKITO_SETTINGS,
    env=_TASKITO_QUIET,
    notes=_TASKITO_NOTES,
)

TASKITO_REDIS = Peer(
    name="taskito-redis",
    label="taskito",
    store="redis",
    program="bench_taskito.py",
    packages=("taskito==0.22.0",),
    environment="taskito",
    rate=1_300,
    enqueue_rate=4_000,
    bulk_rate=41_000,
    settings=_TASKITO_SETTINGS,
    env=_TASKITO_QUIET,
    notes=_TASKITO_NOTES,
)

TASKITO_SQLITE = Peer(
    name="taskito-sqlite",
    label="taskito",
    store="sqlite",
    program="bench_taskito.py",
    packages=("taskito==0.22.0",),
    environment="taskito",
    rate=4_700,
    enqueue_rate=5_500,
    bulk_rate=37_000,
    settings=_TASKITO_SETTINGS,
    env=_TASKITO_QUIET,
    notes=(
        *_TASKITO_NOTES,
        (
            "synchronous=NORMAL, which it sets itself and lets nobody change: a power cut may take accepted jobs "
            f"({_TASKITO}/architecture/storage)"
        ),
    ),
)

PEERS = (AWA, TASKITO_POSTGRES, TASKITO_REDIS, TASKITO_SQLITE)
