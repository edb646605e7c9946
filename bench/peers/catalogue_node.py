"""The peers that run on Node, with the settings that did best in a short sweep."""

from __future__ import annotations

from bench.peers.catalogue import Peer, Setting

_GRAPHILE_PERFORMANCE = "https://worker.graphile.org/docs/performance"
_GRAPHILE_OPTIONS = "https://worker.graphile.org/docs/config"
_PG_BOSS_WORKERS = "https://pgboss.io/api/workers"
_PG_BOSS_CONSTRUCTOR = "https://pgboss.io/api/constructor"
_PG_BOSS_QUEUES = "https://pgboss.io/api/queues"
_BULLMQ_CONCURRENCY = "https://docs.bullmq.io/guide/workers/concurrency"
_BULLMQ_PRODUCTION = "https://docs.bullmq.io/guide/going-to-production"

GRAPHILE_WORKER = Peer(
    name="graphile-worker",
    label="graphile-worker",
    store="postgres",
    language="node",
    program="bench_graphile_worker.mjs",
    packages=("graphile-worker@0.18.0",),
    needs=("node",),
    rate=72_000,
    enqueue_rate=1_000,
    bulk_rate=68_000,
    settings=(
        Setting("throughput, latency", "concurrentJobs: 24, maxPoolSize: 25", _GRAPHILE_PERFORMANCE),
        Setting(
            "throughput",
            "localQueue: { size: 8000 }",
            f"{_GRAPHILE_PERFORMANCE}#batching; for extremely fast tasks {_GRAPHILE_OPTIONS} advises a large one",
        ),
        Setting(
            "throughput", "completeJobBatchDelay: 0, failJobBatchDelay: 0", f"{_GRAPHILE_PERFORMANCE}#batching"
        ),
    ),
    notes=(
        "keeps no history: a job that is done is deleted",
        "a killed process keeps its jobs locked for four hours",
    ),
)

PG_BOSS = Peer(
    name="pg-boss",
    label="pg-boss",
    store="postgres",
    language="node",
    program="bench_pg_boss.mjs",
    # The last one is for schedules, which are not measured; it is pinned because pg-boss asks for a release of it
    # that not every mirror has yet.
    packages=("pg-boss@12.38.0", "rrule-temporal@2.2.7"),
    needs=("node",),
    rate=48_000,
    enqueue_rate=2_400,
    bulk_rate=35_000,
    settings=(
        Setting("throughput", "batchSize: 3000, localConcurrency: 2, burstWhenBatchFull: true", _PG_BOSS_WORKERS),
        Setting("latency", "batchSize: 1000, burstWhenBatchFull: true", _PG_BOSS_WORKERS),
        Setting("throughput, latency", "pollingIntervalSeconds: 0.5, the least it takes", _PG_BOSS_WORKERS),
        Setting("latency", "useListenNotify: true", _PG_BOSS_CONSTRUCTOR),
        Setting("latency", "a queue with notify: true", _PG_BOSS_QUEUES),
    ),
    notes=(
        "a handler gets a whole batch: the jobs of a batch are done, or fail, together",
        "polls every two seconds by default",
        "with notify on, as for latencies, it takes about a quarter as many single jobs",
        "a killed process's jobs expire after 15 minutes",
    ),
)

BULLMQ = Peer(
    name="bullmq",
    label="BullMQ",
    store="redis",
    language="node",
    program="bench_bullmq.mjs",
    packages=("bullmq@6.7.0", "ioredis@6.0.0"),
    needs=("node",),
    rate=26_000,
    enqueue_rate=30_000,
    bulk_rate=27_000,
    settings=(
        Setting("throughput, latency", "concurrency: 100", _BULLMQ_CONCURRENCY),
        Setting("all", "maxRetriesPerRequest: null for workers", f"{_BULLMQ_PRODUCTION}#maxretriesperrequest"),
    ),
    notes=("keeps finished jobs for ever by default",),
)

PEERS = (GRAPHILE_WORKER, PG_BOSS, BULLMQ)
