"""The tables: one per store and group of measures for the page, one per store for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from bench.peers.columns import GROUPS, GROWTH, SHORT, STORE_NAMES, Column, Group, number, times
from bench.peers.comparing import Comparison, compare, ranked, title
from bench.peers.results import FAILED, NEVER, UNSUPPORTED, Results, Spread, is_ours


def stores_shown(results: Results) -> list[str]:
    """The stores that somebody other than Ropeway or Ropeway itself was measured on, in their usual order."""
    held = {results.store(sample["peer"]) for sample in results.samples}
    return [store for store in STORE_NAMES if store in held]


def rows_of(results: Results, columns: tuple[Column, ...], store: str) -> list[str]:
    """Whose figures are shown: everyone on that store, and the Ropeway that they are compared with."""
    measures = {column.measure for column in columns}
    here = [name for name in results.peers if results.store(name) == store]
    asked = [name for name in here if any(results.of(measure, name) for measure in measures)]
    if asked:
        for measure in measures:
            ours = results.ours(measure, store)
            if ours is not None and ours not in asked:
                asked.append(ours)
    first = next(column for column in columns if column.compared)
    return ranked(results, first, asked)


def cell(results: Results, column: Column, peer: str, *, spread: bool = True) -> str:
    """The median and how far the repeats lie apart, or a word for why there is none."""
    figure = results.figure(column.measure, peer, column.name)
    if figure is not None:
        return _spread(figure, column.scale) if spread else number(figure.median * column.scale)
    missing = results.missing(column.measure, peer)
    if missing is None:
        return ""
    if missing.get("status") == NEVER:
        return str(missing.get("reason") or "never")
    return "none" if missing.get("status") == UNSUPPORTED else "failed"


def _spread(figure: Spread, scale: float) -> str:
    median, low, high = (number(value * scale) for value in (figure.median, figure.low, figure.high))
    return median if low == high else f"{median} ({low} to {high})"


def compared(results: Results, column: Column, store: str, peer: str) -> Comparison | None:
    """The peer beside the Ropeway of its store; None for Ropeway itself and where one of the two has no figure."""
    ours = results.ours(column.measure, store)
    if ours is None or is_ours(peer) or not column.compared:
        return None
    return compare(results, column, ours, peer)


# ── the page ──


def markdown(results: Results, group: Group, store: str) -> list[str]:
    """A table with a sentence that says who is ahead; nothing when nobody was measured."""
    columns = tuple(
        column
        for column in group.columns
        if any(results.store(n) == store for n in results.measured(column.measure))
    )
    if not any(column.compared for column in columns):
        return []
    names = rows_of(results, columns, store)
    head, rule = ["system"], ["---"]
    for column in columns:
        head.append(f"{column.title}, {column.unit}")
        rule.append("---:")
        if column.compared:
            head.append("Ropeway")
            rule.append("---:")
    lines = [f"### {group.title}", "", group.told, "", _row(head), _row(rule)]
    lines += [_row(_cells(results, columns, store, name)) for name in names]
    return [*lines, "", *_ahead(results, columns, store, names), *_remarks(results, columns, names), ""]


def _cells(results: Results, columns: tuple[Column, ...], store: str, name: str) -> list[str]:
    beside = f" on {STORE_NAMES.get(results.store(name), results.store(name))}"
    named = escaped(title(results, name, beside=beside if results.store(name) != store else ""))
    cells = [f"**{named}**" if is_ours(name) else named]
    for column in columns:
        cells.append(escaped(cell(results, column, name)))
        if column.compared:
            comparison = compared(results, column, store, name)
            cells.append("" if comparison is None else _words(comparison))
    return cells


def _words(comparison: Comparison) -> str:
    """Ropeway against that system: above 1 it is ahead. Bold where the other one is."""
    if comparison.times is None:
        return "ahead" if comparison.ropeway_ahead else "**behind**"
    shown = times(comparison.times.median)
    return shown if comparison.ropeway_ahead else f"**{shown}**"


def _ahead(results: Results, columns: tuple[Column, ...], store: str, names: list[str]) -> list[str]:
    """In words: who is ahead of Ropeway, in what, by how much. Or that nobody is."""
    compared_at_all = False
    ahead: dict[str, list[str]] = {}
    for name in names:
        for column in columns:
            comparison = compared(results, column, store, name)
            compared_at_all = compared_at_all or comparison is not None
            if comparison is not None and not comparison.ropeway_ahead:
                ahead.setdefault(escaped(title(results, name)), []).append(_ahead_by(column, comparison))
    if ahead:
        told = "; ".join(f"{whom}: {', '.join(by)}" for whom, by in ahead.items())
        return [f"**Ahead of Ropeway:** {told}."]
    return ["Nobody here is ahead of Ropeway." if compared_at_all else "There is nobody to compare with."]


def _ahead_by(column: Column, comparison: Comparison) -> str:
    if comparison.times is None:
        return f"{column.title} (Ropeway did not get there)"
    doubt = " (the repeats do not agree)" if comparison.level else ""
    return f"{column.title} by {times(1 / comparison.times.median)}{doubt}"


def _remarks(results: Results, columns: tuple[Column, ...], names: list[str]) -> list[str]:
    """What the cells only hint at, with everyone that it is said of: why a measure failed or does not exist, jobs
    that did not run exactly once, what the limit was."""
    said: dict[str, list[str]] = {}
    for measure, its_title in {column.measure: column.title for column in reversed(columns)}.items():
        for name in names:
            for remark in _said_of(results, measure, name):
                said.setdefault(f"{its_title}: {remark}", []).append(escaped(title(results, name)))
    lines = [f"- {remark} ({', '.join(whom)})" for remark, whom in said.items()]
    return ["", *lines] if lines else []


def _said_of(results: Results, measure: str, name: str) -> Iterator[str]:
    missing = results.missing(measure, name)
    if missing is not None and missing.get("reason") and missing.get("status") != NEVER:
        yield f"{missing.get('status')}: {escaped(str(missing['reason']))}"
    samples = results.of(measure, name)
    failed = [sample for sample in samples if sample.get("status") == FAILED]
    if failed and missing is None:
        yield f"{len(failed)} of {len(samples)} repeats failed: {escaped(str(failed[-1]['reason']))}"
    extras = [sample.get("extra", {}) for sample in samples]
    if irregular := sum(sum(extra.get("ran_by_count", {}).values()) for extra in extras):
        yield f"{irregular:,} jobs did not run exactly once"
    if full := sorted({str(extra["full"]) for extra in extras if extra.get("full")}):
        yield f"what is full: {escaped(', '.join(full))}"
    if limits := sorted({str(extra["limited_by"]) for extra in extras if extra.get("limited_by")}):
        yield f"more is too much for the {escaped(' or the '.join(limits))}"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Text from elsewhere inside a table of the page: one line, no markup of its own."""
    flat = " ".join(text.split())
    for sign in "\\|*_`<>[]":
        flat = flat.replace(sign, f"\\{sign}" if sign not in "<>" else {"<": "&lt;", ">": "&gt;"}[sign])
    return flat


def page(results: Results, store: str) -> list[str]:
    """All tables of a store."""
    return [line for group in GROUPS for line in markdown(results, group, store)]


def growth(results: Results) -> list[str]:
    """What a job costs Ropeway at each size of each thing that grows; nothing when it was not measured."""
    lines = []
    for measure, (grows, across) in GROWTH.items():
        samples = [sample for sample in results.samples if sample["measure"] == measure]
        for sample in sorted(samples, key=lambda sample: float(sample["extra"]["x"])):
            extra = sample["extra"]
            figures = (sample["value"], extra.get("postgres_us"), extra.get("python_us"))
            cells = ["failed" if figure is None else number(figure) for figure in figures]
            lines.append(_row([grows, f"{extra['x']:,.0f}", across, *cells]))
    if not lines:
        return []
    head = ["what grows", "to", "of", "jobs/s", "PostgreSQL, µs per job", "Python, µs per job"]
    return [_row(head), _row(["---", "---:", "---", "---:", "---:", "---:"]), *lines, ""]


# ── the terminal ──


def plain(results: Results, store: str) -> list[str]:
    """One line per system; after each figure how many times better Ropeway is. `<` marks who is ahead."""
    columns = tuple(
        column for column in SHORT if any(results.store(n) == store for n in results.measured(column.measure))
    )
    if not columns:
        return []
    names = rows_of(results, columns, store)
    table = [["", *(head for column in columns for head in (column.title, ""))]]
    for name in names:
        beside = f" on {STORE_NAMES[results.store(name)]}" if results.store(name) not in (store, "") else ""
        line = [title(results, name, beside=beside)]
        for column in columns:
            comparison = compared(results, column, store, name)
            line += [cell(results, column, name, spread=False), _mark(comparison)]
        table.append(line)
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    return [
        "  ".join(
            text.ljust(width) if at == 0 or at % 2 == 0 else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def _mark(comparison: Comparison | None) -> str:
    if comparison is None:
        return ""
    shown = times(comparison.times.median) if comparison.times else ""
    return f"{shown}{'' if comparison.ropeway_ahead else ' <'}".strip()
