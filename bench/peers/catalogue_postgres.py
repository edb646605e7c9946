"""The Python peers on PostgreSQL, with the settings that did best in a short sweep.

All of them leave durability to the server, which commits everything to disk here.
"""

from __future__ import annotations

from bench.peers.catalogue import Peer, Setting

#: What is not "default", where every peer is as it comes.
_TUNED = "throughput, latency"

_UVLOOP = "uvloop==0.23.0"
_PSYCOPG = "psycopg[binary,pool]==3.3.8"
_ASYNCPG = "asyncpg==0.32.0"

_PGQUEUER_TUNING = "https://janbjorge.github.io/pgqueuer/guides/performance-tuning/"
_PROCRASTINATE_REFERENCE = "https://procrastinate.readthedocs.io/en/stable/reference.html"
_STALLED = "https://procrastinate.readthedocs.io/en/stable/howto/production/retry_stalled_jobs.html"
_SAQ = "https://saq-py.readthedocs.io/, API reference:"
_ABSURD = "https://earendil-works.github.io/absurd/sdks/python/"
_PGMQ = "https://pgmq.github.io/pgmq-py/"

PGQUEUER = Peer(
    name="pgqueuer",
    label="PgQueuer",
    store="postgres",
    program="bench_pgqueuer.py",
    packages=("pgqueuer==1.6.0", _ASYNCPG, _UVLOOP),
    rate=20_000,
    enqueue_rate=2_400,
    bulk_rate=45_000,
    settings=(
        Setting("all", "pgq autovac (fillfactor 70, eager vacuum)", f"{_PGQUEUER_TUNING}#autovacuum-tuning"),
        Setting(
            "all", "a pool (10) for producers, one connection per worker", f"{_PGQUEUER_TUNING}#connection-pooling"
        ),
        Setting("all", "asyncpg", "https://janbjorge.github.io/pgqueuer/comparisons/benchmarks/"),
        Setting(_TUNED, "batch_size=500", f"{_PGQUEUER_TUNING}#batch-size"),
    ),
    notes=("keeps one row of a finished job in its log, without the payload",),
)

PROCRASTINATE = Peer(
    name="procrastinate",
    label="Procrastinate",
    store="postgres",
    program="bench_procrastinate.py",
    packages=("procrastinate==3.10.0", _PSYCOPG, _UVLOOP),
    rate=750,
    enqueue_rate=2_200,
    bulk_rate=13_000,
    settings=(
        Setting(_TUNED, "concurrency=10", f"{_PROCRASTINATE_REFERENCE}, App.run_worker_async"),
        Setting(
            _TUNED,
            "open_async(pool) with 10 connections that are not tried before each query",
            f"{_PROCRASTINATE_REFERENCE}, App.open_async",
        ),
    ),
    notes=(
        f"a job whose worker was killed stays `doing`: a task of one's own has to retry it ({_STALLED})",
        "keeps finished jobs, and a row for every change of a job",
    ),
)

SAQ = Peer(
    name="saq-postgres",
    label="SAQ",
    store="postgres",
    program="bench_saq_postgres.py",
    packages=("saq[postgres]==0.26.4", _PSYCOPG, _UVLOOP),
    rate=1_350,
    enqueue_rate=2_700,
    bulk_rate=None,
    settings=(
        Setting(_TUNED, "concurrency=50", f"{_SAQ} Worker"),
        Setting(
            _TUNED,
            "PostgresQueue(pool) on connections that are not tried before each query",
            f"{_SAQ} PostgresQueue",
        ),
    ),
    notes=(
        "keeps a finished job for 10 minutes",
        "by default a job has 10 s and one attempt: one whose worker was killed is swept and given up",
    ),
)

ABSURD = Peer(
    name="absurd",
    label="Absurd",
    store="postgres",
    program="bench_absurd.py",
    packages=("absurd-sdk==0.5.1", "absurdctl==0.5.1", _PSYCOPG, _UVLOOP),
    rate=1_650,
    enqueue_rate=3_700,
    bulk_rate=None,
    settings=(
        Setting("all", "20 clients enqueue, as each has one connection", f"{_ABSURD}#creating-a-client"),
        Setting(_TUNED, "concurrency=50, batch_size=100", f"{_ABSURD}#starting-a-worker"),
        Setting(_TUNED, "poll_interval=0.005 (default: 0.25)", f"{_ABSURD}#starting-a-worker"),
    ),
    notes=(
        "runs durable workflows: a task is loaded with its checkpoints before it runs",
        "has no wake-up: a worker polls every 250 ms by default",
    ),
)

PGMQ = Peer(
    name="pgmq",
    label="pgmq",
    store="postgres",
    program="bench_pgmq.py",
    packages=("pgmq[async]==1.1.4", _ASYNCPG, _UVLOOP),
    kind="messages",
    rate=64_000,
    enqueue_rate=3_800,
    bulk_rate=150_000,
    settings=(
        Setting("all", "AsyncPGMQueue (asyncpg)", f"{_PGMQ}clients/"),
        Setting(_TUNED, "read_with_poll(qty=1000), delete_batch", f"{_PGMQ}reading_messages/"),
        Setting(_TUNED, "read_with_poll(poll_interval_ms=2) (default: 100)", f"{_PGMQ}reading_messages/"),
    ),
    notes=(
        "a message queue without workers: the loop that reads, calls the handler and deletes is the program's own",
        "the extension (1.13.0) is plain SQL here, installed by its client; of a deleted message nothing is kept",
        "a message that was read and not deleted is read again after 30 s, whether its reader lives or not",
    ),
)

PEERS = (PGQUEUER, PROCRASTINATE, SAQ, ABSURD, PGMQ)
