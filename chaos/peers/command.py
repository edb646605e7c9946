"""`python -m chaos peers`: the same faults on Ropeway and on its peers."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TypeVar

from chaos.peers import results
from chaos.peers.experiments import EXPERIMENTS
from chaos.peers.results import RUN
from chaos.peers.runner import Runner, Say, plan
from chaos.peers.settings import KINDS, Kind, chosen

#: How long jobs that are not done are waited for.
LIMIT_SECONDS = 90.0
#: Most of the time all of them wait.
AT_ONCE = 4

_T = TypeVar("_T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", default="", metavar="NAMES", help="default: all; ropeway is all its entries")
    parser.add_argument("--only", default="", metavar="IDS", help=f"of {','.join(EXPERIMENTS)}; default: all")
    parser.add_argument("--settings", default="", metavar="KINDS", help=f"of {','.join(KINDS)}; default: both")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin nothing later than this")
    parser.add_argument("--resume", action="store_true", help="leave out what has been run")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_SECONDS, metavar="SECONDS", help="wait so long for lost jobs"
    )
    parser.add_argument("--at-once", type=int, default=AT_ONCE, metavar="N", help=f"default {AT_ONCE}")


def run(asked: argparse.Namespace) -> int:
    """Exit codes: 0 done, 2 called wrongly; Ctrl-C is for the caller. What was run stays in the results file."""
    began = time.monotonic()
    try:
        contenders = chosen(_words(asked.peers))
        experiments = list(_named(_words(asked.only), EXPERIMENTS, "experiment").values())
        known: dict[str, Kind] = {kind: kind for kind in KINDS}
        kinds = list(_named(_words(asked.settings), known, "setting").values())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    tasks = plan(contenders, kinds, experiments)
    if asked.resume:
        held = results.read(results.path_in(asked.out))
        tasks = [task for task in tasks if held.get(task.cell, {}).get("status") != RUN]
    # Whoever ends this ends it cleanly: servers, workers and temporary folders go.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ends_at = None if asked.minutes is None else began + 60 * asked.minutes
    runner = Runner(asked.out, limit=asked.limit, at_once=asked.at_once, say=_sayer(began), ends_at=ends_at)
    left_out = runner.run(tasks)
    if left_out:
        print(f"{left_out} were not begun for lack of time; --resume goes on with them", file=sys.stderr)
    return 0


def _named(names: Sequence[str], known: Mapping[str, _T], what: str) -> dict[str, _T]:
    """Those of these names, all when there are none. ValueError for what there is not."""
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no {what} is called {', '.join(unknown)}; there are {', '.join(known)}")
    return {name: each for name, each in known.items() if not names or name in names}


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


_lock = threading.Lock()


def _sayer(began: float) -> Say:
    def say(line: str) -> None:
        with _lock:
            print(f"[peers, {time.monotonic() - began:4.0f} s] {line}", file=sys.stderr, flush=True)

    return say
