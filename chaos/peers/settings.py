"""Who takes part and with which settings: as it comes, and as safe as its own documentation makes it.

The same two times for everybody, where they can be set at all. `LEASE_SECONDS` is for what is renewed while a job
runs; `TIMEOUT_SECONDS` for what is not and so must be longer than the longest job. The longest job of these runs
takes `BLOCK_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from bench.peers import catalogue, catalogue_postgres, catalogue_redis
from bench.peers.catalogue import Peer

Kind = Literal["default", "safest"]
KINDS: tuple[Kind, ...] = ("default", "safest")

LEASE_SECONDS = 5
BLOCK_SECONDS = 5 * LEASE_SECONDS
TIMEOUT_SECONDS = BLOCK_SECONDS + 5

PROGRAMS = Path(__file__).with_name("programs")


class Chosen(NamedTuple):
    """One setting and the page that has it; without a page it says what the default is."""

    text: str
    source: str = ""


@dataclass(frozen=True)
class Settings:
    """`silence` is how long a worker is not heard of before its jobs go to another; None: they never do.

    `renewed` is whether a worker is heard of while it runs a job; if it is not, no job may take longer than that.
    """

    silence: float | None
    chosen: tuple[Chosen, ...]
    renewed: bool = True


@dataclass(frozen=True)
class Contender:
    """A peer of the comparison, its program for faults, and both its settings."""

    peer: Peer
    program: str
    default: Settings
    safest: Settings

    def settings(self, kind: Kind) -> Settings:
        return self.default if kind == "default" else self.safest


def chosen(names: Sequence[str]) -> tuple[Contender, ...]:
    """Those of these names, or all; "ropeway" is all of Ropeway's. ValueError for a wrong name."""
    known = {each.peer.name: each for each in CONTENDERS}
    if unknown := [name for name in names if name not in known and name != "ropeway"]:
        raise ValueError(f"no peer is called {', '.join(unknown)}; there are {', '.join(known)}")
    return tuple(
        each
        for each in CONTENDERS
        if not names or each.peer.name in names or (each.peer.ours and "ropeway" in names)
    )


_ROPEWAY = (
    "chaos_ropeway.py",
    Settings(30, (Chosen("a lease of 30 s, renewed"),)),
    Settings(LEASE_SECONDS, (Chosen(f"--lease-seconds {LEASE_SECONDS}", "docs/workers.md, When a process dies"),)),
)

_CELERY = "https://docs.celeryq.dev/en/stable"
_KOMBU = "https://docs.celeryq.dev/projects/kombu/en/stable/reference/kombu.transport.redis.html"
_RQ = "https://python-rq.org/docs"
_DRAMATIQ = "https://dramatiq.io"
_HUEY = "https://huey.readthedocs.io/en/latest"
_ARQ = "https://arq-docs.helpmanual.io"
_SAQ = "https://saq-py.readthedocs.io/, API reference:"
_TASKIQ = "https://github.com/taskiq-python/taskiq-redis#readme"
_TASKIQ_BROKER = "https://github.com/taskiq-python/taskiq-redis, taskiq_redis/redis_broker.py: RedisStreamBroker"
_STREAQ = "https://streaq.readthedocs.io/en/latest/api/worker.html"
_PROCRASTINATE = "https://procrastinate.readthedocs.io/en/stable"
_PGQUEUER = "https://janbjorge.github.io/pgqueuer"

_HUEY_SETTINGS = (
    "chaos_huey.py",
    Settings(None, (Chosen("a task leaves the store when a worker takes it"),)),
    Settings(
        None,
        (
            Chosen("retries=3", f"{_HUEY}/guide.html#retrying-tasks-that-fail"),
            Chosen("nothing is documented that brings back a task whose process was killed"),
        ),
    ),
)

_SAQ_SETTINGS = (
    "chaos_saq.py",
    Settings(10, (Chosen("timeout=10, retries=1 per job; swept every 60 s"),), renewed=False),
    Settings(
        TIMEOUT_SECONDS,
        (
            Chosen(f"timeout={TIMEOUT_SECONDS}, retries=5 per job", f"{_SAQ} Job"),
            Chosen('timers={"sweep": 5}', f"{_SAQ} Worker"),
        ),
        renewed=False,
    ),
)

CONTENDERS = (
    Contender(catalogue.POSTGRES, *_ROPEWAY),
    Contender(catalogue.SQLITE, *_ROPEWAY),
    Contender(
        catalogue_redis.CELERY,
        "chaos_celery.py",
        Settings(None, (Chosen("a task is acknowledged when it starts; prefork, --concurrency=1"),)),
        Settings(
            TIMEOUT_SECONDS,
            (
                Chosen("task_acks_late", f"{_CELERY}/userguide/configuration.html#task-acks-late"),
                Chosen(
                    "task_reject_on_worker_lost",
                    f"{_CELERY}/userguide/configuration.html#task-reject-on-worker-lost",
                ),
                Chosen(
                    "worker_prefetch_multiplier=1",
                    f"{_CELERY}/userguide/optimizing.html#reserve-one-task-at-a-time",
                ),
                Chosen(
                    f"visibility_timeout={TIMEOUT_SECONDS}",
                    f"{_CELERY}/getting-started/backends-and-brokers/redis.html#visibility-timeout",
                ),
                Chosen("unacked_restore_interval=1, unacked_restore_throttle=1", _KOMBU),
                Chosen(
                    "result_backend on Redis", f"{_CELERY}/getting-started/backends-and-brokers/redis.html#results"
                ),
            ),
            renewed=False,
        ),
    ),
    Contender(
        catalogue_redis.RQ,
        "chaos_rq.py",
        Settings(90, (Chosen("no Retry; monitored every 30 s plus a minute, looked after every 10 minutes"),)),
        Settings(
            65,
            (
                Chosen("Retry(max=3)", f"{_RQ}/exceptions/#retrying-failed-jobs"),
                Chosen(
                    "worker_ttl=20, job_monitoring_interval=5, maintenance_interval=5",
                    f"{_RQ}/workers/ (the last of them) and `rq worker --help`",
                ),
            ),
        ),
    ),
    Contender(
        catalogue_redis.DRAMATIQ,
        "chaos_dramatiq.py",
        Settings(60, (Chosen("heartbeat_timeout=60 s, maintenance_chance=1,000 in a million"),)),
        Settings(
            LEASE_SECONDS,
            (
                Chosen(
                    f"heartbeat_timeout={LEASE_SECONDS} s, maintenance_chance=1,000,000",
                    f"{_DRAMATIQ}/reference.html#dramatiq.brokers.redis.RedisBroker",
                ),
                Chosen("Results on Redis", f"{_DRAMATIQ}/reference.html#results"),
            ),
        ),
    ),
    Contender(catalogue_redis.HUEY_REDIS, *_HUEY_SETTINGS),
    Contender(catalogue_redis.HUEY_SQLITE, *_HUEY_SETTINGS),
    Contender(
        catalogue_redis.ARQ,
        "chaos_arq.py",
        Settings(310, (Chosen("job_timeout=300, locked for 10 s more; max_tries=5"),), renewed=False),
        Settings(
            TIMEOUT_SECONDS + 10,
            (Chosen(f"job_timeout={TIMEOUT_SECONDS}", f"{_ARQ}/#arq.worker.Worker"),),
            renewed=False,
        ),
    ),
    Contender(catalogue_redis.SAQ, *_SAQ_SETTINGS),
    Contender(catalogue_postgres.SAQ, *_SAQ_SETTINGS),
    Contender(
        catalogue_redis.TASKIQ,
        "chaos_taskiq.py",
        Settings(600, (Chosen("RedisStreamBroker: idle_timeout=10 min"),), renewed=False),
        Settings(
            TIMEOUT_SECONDS,
            (
                Chosen(f"idle_timeout={TIMEOUT_SECONDS} s, unacknowledged_lock_timeout=5", _TASKIQ_BROKER),
                Chosen("RedisAsyncResultBackend", _TASKIQ),
            ),
            renewed=False,
        ),
    ),
    Contender(
        catalogue_redis.STREAQ,
        "chaos_streaq.py",
        Settings(60, (Chosen("idle_timeout=60, renewed; max_tries=3"),)),
        Settings(LEASE_SECONDS, (Chosen(f"idle_timeout={LEASE_SECONDS}", _STREAQ),)),
    ),
    Contender(
        catalogue_postgres.PROCRASTINATE,
        "chaos_procrastinate.py",
        Settings(None, (Chosen("a job whose worker is gone stays `doing`"),)),
        Settings(
            LEASE_SECONDS,
            (
                Chosen(
                    f"get_stalled_jobs({LEASE_SECONDS} s) and retry_job in a task every 5 s",
                    f"{_PROCRASTINATE}/howto/production/retry_stalled_jobs.html",
                ),
                Chosen(
                    f"update_heartbeat_interval=1, stalled_worker_timeout={LEASE_SECONDS}",
                    f"{_PROCRASTINATE}/reference.html, App.run_worker_async",
                ),
            ),
        ),
    ),
    Contender(
        catalogue_postgres.PGQUEUER,
        "chaos_pgqueuer.py",
        Settings(30, (Chosen("heartbeat_timeout=30 s"),)),
        Settings(
            LEASE_SECONDS,
            (Chosen(f"heartbeat_timeout={LEASE_SECONDS} s", f"{_PGQUEUER}/guides/heartbeat/"),),
        ),
    ),
)
