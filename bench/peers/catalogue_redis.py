"""The Python peers on Redis, and huey on SQLite beside it, with the settings that did best in a short sweep.

Redis syncs its append-only file once a second for all of them.
"""

from __future__ import annotations

from bench.peers.catalogue import Peer, Setting

_HIREDIS = "hiredis==3.5.0"
_REDIS = "redis==8.1.0"
_UVLOOP = "uvloop==0.23.0"

_CELERY = "https://docs.celeryq.dev/en/stable/userguide"
_RQ = "https://python-rq.org/docs"
_DRAMATIQ = "https://dramatiq.io"
_ARQ_WORKER = "https://arq-docs.helpmanual.io/#arq.worker.Worker"
_SAQ_WORKER = "https://saq-py.readthedocs.io/, API reference: Worker"
_TASKIQ_CLI = "https://taskiq-python.github.io/guide/cli.html"
_STREAQ_WORKER = "https://streaq.readthedocs.io/en/latest/api/worker.html"
_UVLOOP_USAGE = "https://uvloop.readthedocs.io/user/index.html"
_HUEY = "https://huey.readthedocs.io/en/latest"

#: How the calls of a blocking client come to be "50 in flight".
_IN_TURN = "its client blocks: single enqueues follow one another, which is faster than threads"
_IN_THREADS = "its client blocks: single enqueues are made by four threads"

CELERY = Peer(
    name="celery",
    label="Celery",
    store="redis",
    program="bench_celery.py",
    packages=("celery[redis]==5.7.0", _REDIS, _HIREDIS),
    rate=1_900,
    enqueue_rate=1_100,
    bulk_rate=None,
    settings=(
        Setting("throughput, latency", "--pool=solo", f"{_CELERY}/concurrency/index.html"),
        Setting("throughput", "--prefetch-multiplier=128", f"{_CELERY}/optimizing.html#prefetch-limits"),
        Setting(
            "throughput, latency",
            "--without-gossip --without-mingle --without-heartbeat",
            f"{_CELERY.removesuffix('/userguide')}/reference/cli.html#celery-worker",
        ),
    ),
    notes=(
        "a task is acknowledged when it starts, the default: one whose process is killed is lost",
        "keeps no results, the default",
        _IN_THREADS,
    ),
)

RQ = Peer(
    name="rq",
    label="RQ",
    store="redis",
    program="bench_rq.py",
    packages=("rq==2.12.0", _REDIS, _HIREDIS),
    rate=520,
    enqueue_rate=2_400,
    bulk_rate=13_000,
    settings=(
        Setting(
            "throughput, latency",
            "SimpleWorker: no fork for each job",
            "https://github.com/rq/rq/blob/master/docs/benchmark.md",
        ),
        Setting("all", "enqueue_many for bulk", f"{_RQ}/#bulk-job-enqueueing"),
    ),
    notes=(
        "SimpleWorker is several times as fast as the default, which forks a process for each job",
        "a job whose process is killed goes to the registry of failed jobs: only with a Retry it runs again",
        "keeps results for 500 s",
        _IN_THREADS,
    ),
)

DRAMATIQ = Peer(
    name="dramatiq",
    label="Dramatiq",
    store="redis",
    program="bench_dramatiq.py",
    packages=("dramatiq[redis]==2.2.1", _REDIS, _HIREDIS),
    rate=7_000,
    enqueue_rate=5_000,
    bulk_rate=None,
    settings=(
        Setting("throughput", "dramatiq_queue_prefetch=500", f"{_DRAMATIQ}/reference.html#environment-variables"),
        Setting("latency", "dramatiq_worker_timeout=10 ms", f"{_DRAMATIQ}/reference.html#dramatiq.Worker"),
    ),
    notes=(
        "polls; by default the pause grows to one second",
        "its main process ends when a worker process is killed, and leaves the restart to a supervisor",
        "a dead worker's messages go back a minute after its last sign of life, by chance: in 1 of 1,000 commands",
        "keeps nothing of what is done",
        "one more process than workers: it watches them",
        _IN_TURN,
    ),
)

ARQ = Peer(
    name="arq",
    label="arq",
    store="redis",
    program="bench_arq.py",
    packages=("arq==0.28.0", "redis==5.3.1", _HIREDIS, _UVLOOP),
    rate=3_500,
    enqueue_rate=5_400,
    bulk_rate=None,
    settings=(
        Setting("throughput, latency", "poll_delay=0.01", _ARQ_WORKER),
        Setting("all", "uvloop", _UVLOOP_USAGE),
    ),
    notes=(
        "polls: every half second by default",
        "a job whose worker was killed runs again when its lock has expired: job_timeout + 10 s, 310 s by default",
        "keeps results for an hour",
    ),
)

SAQ = Peer(
    name="saq-redis",
    label="SAQ",
    store="redis",
    program="bench_saq_redis.py",
    # It imports typing_extensions, which nothing else here asks for.
    packages=("saq[redis,hiredis]==0.26.4", "redis==7.4.1", _HIREDIS, _UVLOOP, "typing-extensions==4.16.0"),
    rate=3_500,
    enqueue_rate=10_000,
    bulk_rate=None,
    settings=(
        Setting("throughput", "concurrency=30", _SAQ_WORKER),
        Setting("all", "hiredis", "https://github.com/tobymao/saq#install"),
        Setting("all", "uvloop", _UVLOOP_USAGE),
    ),
    notes=(
        "a job whose worker was killed is swept after its timeout, and aborted: by default it is not tried again",
        "its sweep may take a job that is just handed over for a stuck one: it runs twice (tobymao/saq#277)",
        "keeps results for 600 s",
    ),
)

TASKIQ = Peer(
    name="taskiq",
    label="taskiq",
    store="redis",
    program="bench_taskiq.py",
    packages=("taskiq==0.13.0", "taskiq-redis==1.2.4", _REDIS, _HIREDIS, _UVLOOP),
    rate=5_400,
    enqueue_rate=4_100,
    bulk_rate=None,
    settings=(
        Setting(
            "all",
            "RedisStreamBroker: acknowledges messages",
            "https://github.com/taskiq-python/taskiq-redis#readme",
        ),
        Setting("throughput, latency", "--no-parse", f"{_TASKIQ_CLI}#type-casts"),
    ),
    notes=(
        "a message of a killed worker is claimed by another after ten minutes, and only when new messages come in",
        "the stream is never cut, the default: it holds what is done",
        "keeps no results, the default",
        "one more process than workers: it watches them",
    ),
)

STREAQ = Peer(
    name="streaq",
    label="streaQ",
    store="redis",
    program="bench_streaq.py",
    packages=("streaq==7.2.0", _UVLOOP),
    rate=1_900,
    enqueue_rate=6_000,
    bulk_rate=14_000,
    settings=(
        Setting("throughput", "concurrency=64, prefetch=500", _STREAQ_WORKER),
        Setting("throughput, latency", "uvloop (anyio_kwargs)", _STREAQ_WORKER),
        Setting("all", "enqueue_many for bulk", "https://streaq.readthedocs.io/en/latest/task.html"),
    ),
    notes=("keeps results for five minutes",),
)

_HUEY_NOTES = (
    "a task leaves the store when a worker takes it: one whose process is killed is lost",
    "the store does not tell when all are done: only the record does",
    "keeps no result of a task that returns None, the default",
)

HUEY_REDIS = Peer(
    name="huey-redis",
    label="huey",
    store="redis",
    program="bench_huey.py",
    packages=("huey==3.5.4", _REDIS, _HIREDIS),
    environment="huey",
    rate=6_200,
    enqueue_rate=7_200,
    bulk_rate=None,
    settings=(Setting("throughput", "--workers 4 (threads)", f"{_HUEY}/consumer.html"),),
    notes=(*_HUEY_NOTES, _IN_TURN),
)

HUEY_SQLITE = Peer(
    name="huey-sqlite",
    label="huey",
    store="sqlite",
    program="bench_huey.py",
    packages=HUEY_REDIS.packages,
    environment="huey",
    rate=5_500,
    enqueue_rate=3_100,
    bulk_rate=None,
    settings=(
        Setting("all", "fsync=True: synchronous=FULL, in WAL mode", f"{_HUEY}/api.html#SqliteHuey"),
        Setting("throughput", "--workers 2 (threads)", f"{_HUEY}/consumer.html"),
        Setting("throughput, latency", "--delay 0.001 --max-delay 0.001", f"{_HUEY}/consumer.html"),
    ),
    notes=(
        "polls: every tenth of a second by default, then less often, up to ten seconds",
        *_HUEY_NOTES,
        _IN_THREADS,
    ),
)

PEERS = (CELERY, RQ, DRAMATIQ, ARQ, SAQ, TASKIQ, STREAQ, HUEY_REDIS, HUEY_SQLITE)
