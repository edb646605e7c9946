"""The page of results and the table at the end of a run. Every word about a figure comes from results.json."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.peers import charts, tables
from bench.peers.columns import STORE_NAMES
from bench.peers.comparing import title
from bench.peers.results import DECIDING, FAILED, Results, is_ours
from bench.peers.tables import escaped
from bench.peers.targets import Judged, Verdict, against, line, verdicts

#: What an accepted job survives, by store; the settings that make it so are printed beside it.
DURABILITY = {
    "postgres": "Every commit is synced to disk before it is answered. The same for every system here.",
    "redis": (
        "The append-only file is synced once a second: a crash of the machine may lose the last second. "
        "The same for every system here."
    ),
    "sqlite": "Every commit is synced to disk where the system lets one choose: taskito does not, and syncs less.",
    "memory": "Nothing survives the process.",
}

HEAD = """# Results

Written by `python -m bench peers` from [results.json](results.json): nothing here is typed by hand. How it is
measured, and the rules that keep it fair, are in [docs/benchmarks.md](../docs/benchmarks.md).

Figures are medians over the repeats; in brackets the lowest and the highest. The column *Ropeway* says how many
times better Ropeway is than that system in the same run: its rate divided by theirs; times, memory and bytes the
other way round. It is the median of the ratios within each repeat, so it need not be the ratio of the two medians
shown. Above 1 Ropeway is ahead; **bold** means that the other one is.
"""

GROWTH_TOLD = """Ropeway's engine on PostgreSQL by itself: leases and acks of up to 100 jobs, events on, tables
vacuumed before each drain. Processor time is counted over the drain only; one run."""

AGAIN = """## Run it again

```sh
make bench                               # the quick table, at most 15 minutes; exit code 1 when a target is missed
make bench-full                          # everything: this page, results.json and the charts
```
"""


def write(results_path: Path, folder: Path) -> list[Path]:
    """Write RESULTS.md and charts/*.svg into `folder`; the files that were written."""
    results = Results.load(results_path)
    drawn = charts.write(results, folder / "charts")
    written = folder / "RESULTS.md"
    written.write_text(markdown(results, [path.name for path in drawn]), encoding="utf-8")
    return [written, *drawn]


def markdown(results: Results, drawn: list[str]) -> str:
    """The whole page; `drawn` are the files in charts/ that it shows."""
    lines = [HEAD, *_machine(results), *_targets(results)]
    for store in tables.stores_shown(results):
        name = STORE_NAMES[store]
        lines += [f"## {name}", "", *_durability(results, store)]
        lines += [_picture(file, name) for file in drawn if file.endswith(f"-{store}.svg")]
        lines += tables.page(results, store)
    if "recovery.svg" in drawn:
        lines += ["## A killed worker, on every store", "", _picture("recovery.svg", "")]
    if grown := tables.growth(results):
        pictures = [_picture(file, "") for file in drawn if file == "growth.svg"]
        lines += ["## As everything grows", "", GROWTH_TOLD, "", *pictures, *grown]
    lines += [*_settings(results), *_absent(results), AGAIN]
    return "\n".join(lines).rstrip() + "\n"


def table(results: Results) -> str:
    """For the terminal: one table per store, the targets, and who did not run."""
    lines: list[str] = []
    for store in tables.stores_shown(results):
        about = results.stores.get(store, {})
        heading = f"{STORE_NAMES[store]} {about.get('version', '')}".strip()
        lines += [f"{heading}, {_durability_text(results, store)}", *tables.plain(results, store), ""]
    if not lines:
        lines = ["Nothing was measured.", ""]
    else:
        lines += ["N× is how many times better Ropeway is; < marks who is ahead of it.", ""]
    judged = verdicts(results)
    lines += [line(results, each) for each in judged if each.verdict is not Verdict.NOT_MEASURED]
    if left := sum(each.verdict is Verdict.NOT_MEASURED for each in judged):
        lines.append(f"{Verdict.NOT_MEASURED}: {left} of {len(judged)} targets")
    absent = results.absent()
    lines += [
        f"failed: {sample['measure']} #{sample['repeat']}, {title(results, sample['peer'])}: {sample['reason']}"
        for sample in results.samples
        if sample.get("status") == FAILED and sample["peer"] not in absent
    ]
    lines += [f"did not run: {title(results, name)}: {reason}" for name, reason in absent.items()]
    return "\n".join(lines)


# ── parts of the page ──


def _machine(results: Results) -> Iterator[str]:
    yield "## Measured on"
    yield ""
    yield "| | |"
    yield "|---|---|"
    for name, value in _flat(results.machine):
        yield f"| {escaped(name)} | {_also_elsewhere(results, name, escaped(value))} |"
    for store, about in results.stores.items():
        yield f"| {escaped(STORE_NAMES.get(store, store))} | {escaped(str(about.get('version', '')))} |"
    taken = sorted(str(sample["at"]) for sample in results.samples if sample.get("at"))
    if taken:
        yield f"| measured | {escaped(taken[0])} to {escaped(taken[-1])} |"
    if repeats := _repeats(results):
        wanted = max(most for _, most in repeats.values())
        fewer = [
            f"`{measure}` only {least if least == most else f'{least} to {most}'}"
            for measure, (least, most) in repeats.items()
            if least < wanted
        ]
        yield f"| repeats | {'; '.join([f'{wanted}, interleaved', *fewer])} |"
    yield ""


def _also_elsewhere(results: Results, name: str, value: str) -> str:
    """A fact of the machine; where figures come from several, which measures do from which of the others."""
    if name not in DECIDING:
        return value
    elsewhere: dict[str, dict[str, None]] = {}
    for sample in results.samples:
        where = escaped(str(sample.get("on", {}).get(name, results.machine[name])))
        if where != value:
            measure = str(sample["measure"])
            elsewhere.setdefault(where, {})["growth" if measure.startswith("growth_") else measure] = None
    others = [f"{where} (`{'`, `'.join(measures)}`)" for where, measures in elsewhere.items()]
    return "; ".join([value, *others])


def _repeats(results: Results) -> dict[str, tuple[int, int]]:
    """By measure, how often it was taken of those of whom it was taken least often, and of the others."""
    taken: dict[str, Counter[str]] = {}
    for sample in results.samples:
        if not str(sample["measure"]).startswith("growth_") and sample.get("status") != FAILED:
            taken.setdefault(sample["measure"], Counter())[sample["peer"]] += 1
    return {measure: (min(peers.values()), max(peers.values())) for measure, peers in taken.items()}


def _targets(results: Results) -> Iterator[str]:
    judged = verdicts(results)
    counted = {verdict: sum(each.verdict is verdict for each in judged) for verdict in Verdict}
    yield "## Targets"
    yield ""
    yield ", ".join(f"{number} {verdict}" for verdict, number in counted.items()) + "."
    yield ""
    yield "| what | against | wanted | found | |"
    yield "|---|---|---|---|---|"
    for each in judged:
        yield _target_row(results, each)
    yield ""


def _target_row(results: Results, judged: Judged) -> str:
    told = f"**{judged.verdict}**" if judged.verdict is Verdict.MISSED else str(judged.verdict)
    whom, found = escaped(against(results, judged)), escaped(judged.found)
    return f"| {judged.column.title} | {whom} | {judged.target.wanted} | {found} | {told} |"


def _durability_text(results: Results, store: str) -> str:
    about = results.stores.get(store, {})
    return str(about.get("durability") or DURABILITY.get(store, ""))


def _durability(results: Results, store: str) -> Iterator[str]:
    """What every system on this store is measured with."""
    yield escaped(_durability_text(results, store))
    settings = results.stores.get(store, {}).get("settings") or {}
    if settings:
        yield ""
        yield "Settings: " + ", ".join(f"`{name} = {value}`" for name, value in settings.items()) + "."
    yield ""


def _picture(file: str, name: str) -> str:
    words = file.removesuffix(".svg").rsplit("-", 1)[0] if name else file.removesuffix(".svg")
    return f"![{words.replace('-', ' ')}{f', {name}' if name else ''}](charts/{file})\n"


def _settings(results: Results) -> Iterator[str]:
    """Each system's settings with the page that recommends them, and what a fair reader must know."""
    if not results.peers:
        return
    yield "## Versions and settings"
    yield ""
    for name, peer in sorted(results.peers.items(), key=lambda entry: (not is_ours(entry[0]), entry[0])):
        store = STORE_NAMES.get(results.store(name), results.store(name))
        yield f"### {escaped(title(results, name))}, {store}"
        yield ""
        if peer.get("packages"):
            yield "- packages: " + ", ".join(f"`{package}`" for package in peer["packages"])
        for setting in peer.get("settings") or []:
            yield _setting(setting)
        for note in peer.get("notes") or []:
            yield f"- {escaped(str(note))}"
        yield ""


def _setting(setting: dict[str, Any]) -> str:
    source = str(setting.get("source") or "")
    # An address by itself is a link; words after it say where on that page.
    shown = f"<{source}>" if re.fullmatch(r"https?://[^\s<>]+", source) else escaped(source)
    text = " ".join(str(setting.get("text", "")).replace("`", "'").split())
    return f"- {escaped(str(setting.get('profile', '')))}: `{text}`" + (f" ({shown})" if source else "")


def _absent(results: Results) -> Iterator[str]:
    yield "## Did not run"
    yield ""
    absent = results.absent()
    for name, reason in absent.items():
        yield f"- {escaped(title(results, name))}: {escaped(reason)}"
    if not absent:
        yield "Everyone who was asked ran."
    yield ""


def _flat(machine: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in machine.items():
        if isinstance(value, dict):
            yield name, ", ".join(f"{inner} {held}" for inner, held in value.items())
        elif value not in (None, ""):
            yield name, str(value)
