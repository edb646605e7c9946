"""Which charts a run makes, drawn from its results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers import chart_lines, chart_rows
from bench.peers.chart_lines import Facts, Line, Panel
from bench.peers.chart_rows import Heading, Mark, Row
from bench.peers.columns import GROUPS, GROWTH, STORE_NAMES, Column, number
from bench.peers.comparing import ranked, title
from bench.peers.results import Results, is_ours, rounds
from bench.peers.svg import short
from bench.peers.tables import cell, rows_of, stores_shown

_COLUMNS = {group.title: group.columns for group in GROUPS}


class Chart(NamedTuple):
    file: str
    svg: str


def write(results: Results, folder: Path) -> list[Path]:
    """Draw every chart that there are figures for, and remove those of an earlier run that there are none for."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for chart in draw(results):
        path = folder / chart.file
        path.write_text(chart.svg, encoding="utf-8")
        written.append(path)
    for path in folder.glob("*.svg"):
        if path not in written:
            path.unlink()
    return written


def draw(results: Results) -> Iterator[Chart]:
    """All charts, in the order in which a page shows them."""
    for store in stores_shown(results):
        name = STORE_NAMES[store]
        for file, group, told in (
            ("drain", "Drain", "No-op jobs per second, until each one is recorded as finished. Longer is better."),
            ("enqueue", "Enqueue", "How many jobs per second a producer gets into the store. Longer is better."),
            ("costs", "What a drain costs", "Per worker of one process while it drains. Shorter is better."),
        ):
            yield from _bars(results, f"{file}-{store}.svg", store, f"{group}, {name}", told, _COLUMNS[group])
        for file, group, told in (
            ("latency", "Enqueue call to handler's start, idle", "One job at a time."),
            (
                "latency-half",
                "Enqueue call to handler's start, half load",
                "Each at half of what it can do by itself, so fast systems are tried with more jobs.",
            ),
        ):
            columns = tuple(column for column in _COLUMNS[group] if column.compared)
            yield from _dots(results, f"{file}-{store}.svg", store, f"{group}, {name}", told, columns)
        yield from _pinned(results, store)
    yield from _recovery(results)
    yield from _growth(results)


# ── rows ──


def _bars(
    results: Results, file: str, store: str, heading: str, told: str, columns: tuple[Column, ...]
) -> Iterator[Chart]:
    rows = _rows(results, columns, store)
    if rows:
        panels = [(column.title, column.unit) for column in columns]
        drawn = chart_rows.bars(
            Heading(heading, told, _foot(results, columns[0].measure, store, whiskers=True)), panels, rows,
            same_scale=heading.startswith("Drain"),
        )  # fmt: skip
        yield Chart(file, drawn)


def _dots(
    results: Results, file: str, store: str, heading: str, told: str, columns: tuple[Column, ...]
) -> Iterator[Chart]:
    rows = [row for row in _rows(results, columns, store) if any(mark.value is not None for mark in row.marks)]
    if rows:
        told += " Further left is better; the scale is logarithmic."
        words = Heading(heading, told, _foot(results, columns[0].measure, store))
        yield Chart(file, chart_rows.dots(words, [column.title for column in columns], rows, columns[0].unit))


def _recovery(results: Results) -> Iterator[Chart]:
    """All stores in one chart: what a killed worker costs does not depend on how fast the store is."""
    column = Column(title="s", measure="recovery", unit="s", low=True)
    names = ranked(results, column, results.measured("recovery"))
    rows = [
        Row(
            f"{results.label(name)}, {STORE_NAMES.get(results.store(name), results.store(name))}",
            [_mark(results, column, name)],
            ours=name == results.ours("recovery", "postgres"),
            kin=is_ours(name),
        )
        for name in names
        if results.values("recovery", name) or results.never("recovery", name)
    ]
    if rows:
        words = Heading(
            "A worker is killed in the middle of a job: how soon does the job run again?",
            "kill -9 to the process that runs it, defaults. Further left is better; the scale is logarithmic.",
            _foot(results, "recovery", None),
        )
        yield Chart("recovery.svg", chart_rows.dots(words, ["runs again after"], rows, "seconds"))


def _rows(results: Results, columns: tuple[Column, ...], store: str) -> list[Row]:
    names = rows_of(results, columns, store)
    return [
        Row(
            _named(results, name, store),
            [_mark(results, column, name) for column in columns],
            ours=is_ours(name) and name in {results.ours(column.measure, store) for column in columns},
            kin=is_ours(name),
        )
        for name in names
    ]


def _named(results: Results, name: str, store: str) -> str:
    elsewhere = results.store(name)
    return title(
        results, name, beside=f" on {STORE_NAMES.get(elsewhere, elsewhere)}" if elsewhere != store else ""
    )


def _mark(results: Results, column: Column, name: str) -> Mark:
    figure = results.figure(column.measure, name, column.name)
    if figure is None:
        return Mark(cell(results, column, name) or "not measured")
    median, low, high = (value * column.scale for value in (figure.median, figure.low, figure.high))
    return Mark(number(median), median, low, high)


# ── lines ──


def _pinned(results: Results, store: str) -> Iterator[Chart]:
    """Each system's rounds: jobs per second, and the same against its own first round."""
    rates: list[Line] = []
    shares: list[Line] = []
    sizes = set()
    for name in results.measured("pinned", store=store):
        sample = _middle(results, name)
        held = rounds(sample) if sample else []
        if sample is None or not held or not held[0]:
            continue
        sizes.add(int(sample["extra"].get("round_jobs") or 0))
        for drawn, whole in ((rates, 1.0), (shares, held[0] / 100)):
            points = [(float(turn), rate / whole) for turn, rate in enumerate(held, 1)]
            ours = name == results.ours("pinned", store)
            drawn.append(Line(results.label(name), points, ours=ours, kin=is_ours(name), colour=len(drawn)))
    if rates:
        across = f"rounds of {short(max(sizes))} jobs" + (", fewer for slow systems" if len(sizes) > 1 else "")
        words = Heading(
            f"Drain while an old transaction stays open, {STORE_NAMES[store]}",
            "An idle transaction keeps the database from cleaning up behind the queue. Level is good.",
            _foot(results, "pinned", store),
        )
        panels = [
            Panel("Jobs per second", across, rates),
            Panel("Of its own first round", across, shares, written=lambda y: f"{y:g} %", level=100.0),
        ]
        yield Chart(f"pinned-{store}.svg", chart_lines.lines(words, panels, across=2, panel_height=330))


def _middle(results: Results, name: str) -> dict[str, Any] | None:
    """The repeat whose last round is the median one: a real run, not an average of several."""
    samples = [sample for sample in results.of("pinned", name) if sample["value"] is not None]
    samples.sort(key=lambda sample: float(sample["value"]))
    return samples[len(samples) // 2] if samples else None


def _growth(results: Results) -> Iterator[Chart]:
    """A panel for each thing that grows, and the rates at both ends in words."""
    panels: list[Panel | Facts] = []
    rates = []
    for measure, (grows, across) in GROWTH.items():
        samples = [sample for sample in results.samples if sample["measure"] == measure and sample["value"]]
        samples.sort(key=lambda sample: float(sample["extra"]["x"]))
        if not samples:
            continue
        lines = [
            Line("PostgreSQL", _points(samples, "postgres_us"), ours=True),
            Line("Python", _points(samples, "python_us")),
        ]
        panels.append(Panel(grows, across, lines, logarithmic=True, written=lambda y: f"{y:g} µs"))
        first, last = samples[0], samples[-1]
        rates.append(
            [
                grows,
                f"{short(first['extra']['x'])} to {short(last['extra']['x'])}",
                number(first["value"]),
                number(last["value"]),
            ]
        )
    if panels:
        panels.append(Facts("Jobs per second at both ends", ["", "", "first", "last"], rates))
        words = Heading(
            "What a job costs Ropeway as everything grows",
            "Microseconds of processor time per drained job (lease and ack, events on). Level is good.",
            _foot(results, next(iter(GROWTH)), "postgres"),
        )
        yield Chart("growth.svg", chart_lines.lines(words, panels, across=2, panel_height=215))


def _points(samples: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(sample["extra"]["x"], sample["extra"][name]) for sample in samples if name in sample["extra"]]


def _foot(results: Results, measure: str, store: str | None, *, whiskers: bool = False) -> str:
    """What it was measured on, from the results; nothing when they do not say."""
    machine = results.machine
    words = [f"{machine['cores']} cores" if machine.get("cores") else "", str(machine.get("processor") or "")]
    if store is not None and results.stores.get(store, {}).get("version"):
        version = str(results.stores[store]["version"])
        words.append(version if STORE_NAMES[store] in version else f"{STORE_NAMES[store]} {version}")
    repeats = len({sample["repeat"] for sample in results.samples if sample["measure"] == measure})
    if repeats > 1:
        words.append(f"median of {repeats} runs" + (", thin lines: lowest to highest" if whiskers else ""))
    return ", ".join(word for word in words if word)
