"""`python -m bench peers`: measure Ropeway and its peers side by side."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bench.peers import machine, report
from bench.peers.catalogue import Peer, chosen
from bench.peers.environments import Environment, folder, prepare_all
from bench.peers.measures import MEASURES, Measure, in_quick_run, named
from bench.peers.places import Places
from bench.peers.results import Results
from bench.peers.runner import Runner, always, plan
from bench.peers.sizing import FULL, QUICK
from bench.peers.targets import misses
from devtools.private import NotAvailable, ServerFailed

#: For figures that are published.
FULL_REPEATS = 5
#: As many as there is time for.
QUICK_REPEATS = 3
#: A quick run ends within 15 minutes; some of them are for the environment that runs this.
QUICK_SECONDS = 12.5 * 60

FULL_RESULTS = Path(__file__).resolve().parents[1] / "results.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", metavar="MEASURES", help=f"of {','.join(m.name for m in MEASURES)}")
    parser.add_argument("--peers", default="", metavar="NAMES", help="default: all; ropeway is all its entries")
    parser.add_argument("--stores", default="", metavar="STORES", help="of postgres,redis,sqlite")
    parser.add_argument("--repeats", type=int, metavar="N", help=f"default {FULL_REPEATS}; quick: time permitting")
    parser.add_argument("--quick", action="store_true", help="the short table, small sizes, at most 15 minutes")
    parser.add_argument("--resume", action="store_true", help="go on with the samples that the results hold")
    parser.add_argument(
        "--anew",
        action="store_true",
        help="the same, but what --only names is forgotten, of every peer, and measured again",
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no sample that would be over later")
    parser.add_argument("--report", action="store_true", help="measure nothing: write the report anew")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of the table")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--results", type=Path, metavar="PATH", help="default bench/results.json")
    parser.add_argument(
        "--postgres", type=int, metavar="VERSION", help="a major version; default the newest found"
    )


def run(asked: argparse.Namespace) -> int:
    """Exit codes: 0 done, 1 a target is missed and a check was asked for, 2 called wrongly, 130 Ctrl-C."""
    began = time.monotonic()
    try:
        peers = chosen(_words(asked.peers), _words(asked.stores))
        measures = named(_words(asked.only) or [measure.name for measure in MEASURES])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    path: Path = asked.results or (folder() / "quick.json" if asked.quick else FULL_RESULTS)
    if asked.report:
        return _report(asked, Results.load(path), path)
    results = _begun(path, resume=asked.resume, anew=measures if asked.anew else ())
    # Whoever ends this ends it cleanly: servers, workers and temporary folders go.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        quick = QUICK_SECONDS if asked.quick else None
        seconds = quick if asked.minutes is None else 60 * asked.minutes
        ends_at = None if seconds is None else began + seconds
        left_out = _measure(asked, peers, measures, results, path, ends_at=ends_at)
    except KeyboardInterrupt:
        _say(f"stopped; what was measured is in {path}, and --resume goes on with it")
        return 130
    except (NotAvailable, ServerFailed) as error:
        print(error, file=sys.stderr)
        return 2
    if left_out:
        _say(f"{left_out} further samples would have taken too long; --resume goes on with them")
    return _report(asked, results, path)


def _begun(path: Path, *, resume: bool, anew: Sequence[Measure]) -> Results:
    """What a run begins with: everything, all but what is measured `anew`, or only what another command
    (`python -m bench growth`) has measured.

    What is measured anew is forgotten of every peer, also of those that are not asked now: a ratio is of one run.
    """
    held = Results.load(path)
    if anew:
        names = {measure.name for measure in anew}
        held.samples = [each for each in held.samples if each["measure"] not in names]
    elif not resume:
        held = Results(samples=[each for each in held.samples if each["measure"].startswith("growth_")])
    return held


def _report(asked: argparse.Namespace, results: Results, path: Path) -> int:
    if not asked.quick:
        for file in report.write(path, path.parent):
            _say(f"wrote {file}")
    print(json.dumps(json.loads(path.read_text()), indent=1) if asked.json else report.table(results))
    return 1 if asked.check and misses(results) else 0


def _measure(
    asked: argparse.Namespace,
    peers: Sequence[Peer],
    measures: Sequence[Measure],
    results: Results,
    path: Path,
    *,
    ends_at: float | None,
) -> int:
    """Take the samples; how many were left out."""
    scale = QUICK if asked.quick else FULL
    repeats = asked.repeats or (QUICK_REPEATS if asked.quick else FULL_REPEATS)
    environments = _prepare(peers, results)
    there = [peer for peer in peers if peer.name in environments]
    results.go_on(machine.describe())
    steps = plan(
        measures,
        there,
        repeats,
        results=results,
        by_repeat=ends_at is not None,
        wanted=in_quick_run if asked.quick and not asked.only else always,
    )
    results.save(path)
    with Places(postgres_version=asked.postgres) as places:
        for store in {peer.store for step in steps for peer in step.peers}:
            places.prepare(store)
        runner = Runner(
            results,
            path,
            environments=environments,
            places=places,
            scale=scale,
            say=_say,
            ends_at=ends_at,
        )
        return len(runner.run(steps))


def _prepare(peers: Sequence[Peer], results: Results) -> dict[str, Environment]:
    """Make the environments and write into the results who is who, and who cannot take part and why."""

    def told(peer: Peer, made: Environment | str) -> None:
        if isinstance(made, str):
            _say(f"without {peer.name}: {made}")

    made = prepare_all(peers, told)
    for peer in peers:
        environment = made[peer.name]
        results.peers[peer.name] = {
            "label": peer.label,
            "version": "" if isinstance(environment, str) else environment.version,
            "language": peer.language,
            "store": peer.store,
            "kind": peer.kind,
            "packages": [f"{name} {version}" for name, version in environment.versions.items()]
            if isinstance(environment, Environment)
            else list(peer.packages),
            "settings": [setting._asdict() for setting in peer.settings],
            "notes": list(peer.notes),
            **({"absent": environment} if isinstance(environment, str) else {}),
        }
    return {name: environment for name, environment in made.items() if isinstance(environment, Environment)}


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


_lock = threading.Lock()


def _say(line: str) -> None:
    with _lock:
        print(line, file=sys.stderr, flush=True)
