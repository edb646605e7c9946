"""How each measure is shown: its place in the tables, its unit, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass

STORE_NAMES = {"postgres": "PostgreSQL", "redis": "Redis", "sqlite": "SQLite", "memory": "Memory"}


@dataclass(frozen=True, kw_only=True)
class Column:
    """One figure of a measure. `name` is the sample's value or what its extra calls it."""

    title: str
    measure: str
    name: str = "value"
    unit: str = "jobs/s"
    #: Less is better: times, memory, bytes.
    low: bool = False
    #: What the stored figure is multiplied by to be in `unit`.
    scale: float = 1.0
    #: Compared with Ropeway. What only describes the load is not.
    compared: bool = True


@dataclass(frozen=True, kw_only=True)
class Group:
    """Columns that make one table."""

    title: str
    told: str
    columns: tuple[Column, ...]


GROUPS: tuple[Group, ...] = (
    Group(
        title="Enqueue",
        told="Jobs per second: one job per call with 50 calls in flight, and 1,000 jobs per call.",
        columns=(
            Column(title="one per call", measure="single"),
            Column(title="1,000 per call", measure="bulk"),
        ),
    ),
    Group(
        title="Drain",
        told="No-op jobs per second from a filled store, until each one ran and is recorded as finished.",
        columns=(
            Column(title="1 process", measure="drain1"),
            Column(title="2 processes", measure="drain2"),
        ),
    ),
    Group(
        title="What a drain costs",
        told="During the drain with one process: the worker's CPU time and memory, and what the store wrote.",
        columns=(
            Column(
                title="CPU of the worker",
                measure="drain1",
                name="cpu_ms_per_job",
                unit="s per 1,000 jobs",
                low=True,
            ),
            Column(title="RSS of the worker", measure="drain1", name="rss_mib", unit="MiB", low=True),
            Column(title="written", measure="drain1", name="store_bytes_per_job", unit="bytes per job", low=True),
        ),
    ),
    Group(
        title="Enqueue call to handler's start, idle",
        told="Milliseconds, one job at a time, settings for latency.",
        columns=(
            Column(title="p50", measure="idle", name="p50", unit="ms", low=True),
            Column(title="p99", measure="idle", name="p99", unit="ms", low=True),
            Column(title="longest", measure="idle", name="max", unit="ms", low=True),
        ),
    ),
    Group(
        title="Enqueue call to handler's start, half load",
        told="The same at half of what each system can do by itself; faster systems are tried with more jobs.",
        columns=(
            Column(title="load", measure="half", name="sent_rate", compared=False),
            Column(title="p50", measure="half", name="p50", unit="ms", low=True),
            Column(title="p99", measure="half", name="p99", unit="ms", low=True),
            Column(title="longest", measure="half", name="max", unit="ms", low=True),
        ),
    ),
    Group(
        title="Drain while an old transaction stays open",
        told=(
            "An idle REPEATABLE READ transaction keeps PostgreSQL from cleaning up; rounds of jobs in a row. "
            "The median of the last three rounds."
        ),
        columns=(
            Column(title="last rounds", measure="pinned"),
            Column(title="last against first", measure="pinned", name="kept", unit="%", scale=100.0),
        ),
    ),
    Group(
        title="Drain with a million jobs waiting",
        told="Jobs per second, one process, over the first seconds.",
        columns=(Column(title="1 process", measure="backlog"),),
    ),
    Group(
        title="Steady load",
        told="The highest rate at which 99 of 100 jobs start within 200 ms, and the rate that fills the store.",
        columns=(
            Column(title="p99 under 200 ms", measure="steady"),
            Column(title="store saturated", measure="saturation"),
            Column(title="its own CPU", measure="saturation", name="store_cores", unit="cores", compared=False),
        ),
    ),
    Group(
        title="A spike",
        told=(
            "A fifth of the highest load that each system bore in the table above; then five times as much, all "
            "of that load, for 30 s; then as before. p99 of enqueue to start. Back to normal is the end of the "
            "last second whose p99 was above twice that before the spike."
        ),
        columns=(
            Column(title="load", measure="spike", name="rate", compared=False),
            Column(title="spike", measure="spike", name="spike_sent_rate", compared=False),
            Column(title="before", measure="spike", name="before_p99", unit="ms", low=True),
            Column(title="during", measure="spike", name="during_p99", unit="ms", low=True),
            Column(title="after", measure="spike", name="after_p99", unit="ms", low=True),
            Column(title="back to normal after", measure="spike", unit="s", low=True),
        ),
    ),
    Group(
        title="A killed worker",
        told="Default settings; `kill -9` in the middle of a job. Seconds until that job runs again.",
        columns=(
            Column(title="the process that ran it", measure="recovery", unit="s", low=True),
            Column(title="the whole worker, a new one started", measure="recovery_group", unit="s", low=True),
        ),
    ),
)

#: The table that ends a run on the terminal; short titles, one line per system.
SHORT: tuple[Column, ...] = (
    Column(title="single/s", measure="single"),
    Column(title="bulk/s", measure="bulk"),
    Column(title="drain 1/s", measure="drain1"),
    Column(title="drain 2/s", measure="drain2"),
    Column(title="idle p50", measure="idle", name="p50", unit="ms", low=True),
    Column(title="p99 ms", measure="idle", name="p99", unit="ms", low=True),
    Column(title="recovery s", measure="recovery", unit="s", low=True),
)


def number(value: float) -> str:
    """With as many digits as mean something: 41,562 / 104 / 23.5 / 2.23 / 0.031."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 or size == 0 else f"{value:.3f}"


def times(ratio: float) -> str:
    """A ratio: 2.41× / 18×."""
    return f"{ratio:,.0f}×" if ratio >= 20 else f"{ratio:.1f}×" if ratio >= 10 else f"{ratio:.2f}×"


#: What grows, by measure: the chart's title and what is counted across.
GROWTH: dict[str, tuple[str, str]] = {
    "growth_backlog": ("Jobs waiting", "jobs in the queue at the start"),
    "growth_workers": ("Workers", "workers that lease and ack at once"),
    "growth_payload": ("Size of a payload", "bytes"),
    "growth_queues": ("Queues", "queues that hold the jobs"),
    "growth_finished": ("Finished jobs kept", "rows in the archive at the start"),
}
