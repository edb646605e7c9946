"""Runs cells, some at a time, each on a store of its own; each is written down as soon as it is over."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.peers.environments import Environment, prepare_all
from bench.peers.failing import NoFigure
from bench.peers.places import Places
from chaos.peers import results
from chaos.peers.experiments import Experiment, Found
from chaos.peers.figures import figures
from chaos.peers.results import FAILED, NOT_RUN, RUN, Cell
from chaos.peers.settings import Contender, Kind
from chaos.peers.stand import Stopped, standing
from chaos.runner import commit
from devtools.private import NotAvailable

Say = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """A cell with all that it takes to run it."""

    contender: Contender
    kind: Kind
    experiment: Experiment

    @property
    def cell(self) -> Cell:
        return Cell(self.contender.peer.name, self.kind, self.experiment.id)


def plan(contenders: Iterable[Contender], kinds: Sequence[Kind], experiments: Sequence[Experiment]) -> list[Task]:
    """All experiments of one peer after one another: what is run at the same time is not all of one kind."""
    return [
        Task(contender, kind, experiment)
        for contender in contenders
        for kind in kinds
        for experiment in experiments
    ]


class Runner:
    """`limit` is how long lost jobs are waited for; after `ends_at` (monotonic) nothing more is begun."""

    def __init__(self, out: Path, *, limit: float, at_once: int, say: Say, ends_at: float | None = None) -> None:
        self._out = out
        self._path = results.path_in(out)
        self._limit = limit
        self._at_once = at_once
        self._say = say
        self._ends_at = ends_at
        self._stopping = threading.Event()
        self._commit = commit()

    def run(self, tasks: Sequence[Task]) -> int:
        """Do them all; how many were left out for lack of time. After Ctrl-C what has begun is given up."""
        self._out.mkdir(parents=True, exist_ok=True)
        made = self._environments(tasks)
        left_out = 0
        with Places() as places:
            for store in {task.contender.peer.store for task in tasks}:
                places.prepare(store)
            pool = ThreadPoolExecutor(self._at_once)
            try:
                begun = [pool.submit(self._one, task, made, places) for task in tasks]
                left_out = sum(not was_begun for was_begun in self._told(tasks, begun))
            finally:
                self._stopping.set()
                pool.shutdown(cancel_futures=True)
        return left_out

    def _told(self, tasks: Sequence[Task], begun: Sequence[Future[dict[str, Any] | None]]) -> Iterable[bool]:
        """For each as it ends, whether it was begun; says what came of it."""
        for number, future in enumerate(as_completed(begun), 1):
            line = future.result()
            if line is not None:
                self._say(f"{number} of {len(tasks)}: {summary(line)}")
            yield line is not None

    def _environments(self, tasks: Sequence[Task]) -> Mapping[str, Environment | str]:
        peers = {task.contender.peer.name: task.contender.peer for task in tasks}
        self._say(f"environments of {', '.join(peers)}")
        return prepare_all(peers.values(), lambda _peer, _made: None)

    def _one(self, task: Task, made: Mapping[str, Environment | str], places: Places) -> dict[str, Any] | None:
        """The line of one cell, written; None when there was no time to begin."""
        if self._stopping.is_set() or (self._ends_at is not None and time.monotonic() > self._ends_at):
            return None
        environment = made[task.contender.peer.name]
        unfit = task.experiment.unfit(task.contender.settings(task.kind))
        began = time.monotonic()
        self._say(f"{', '.join(task.cell)}: begins")
        with contextlib.suppress(Stopped):
            if isinstance(environment, str):
                told: dict[str, Any] = {"status": NOT_RUN, "reason": environment}
            elif unfit is not None:
                told = {"status": NOT_RUN, "reason": unfit}
            else:
                told = self._play(task, environment, places)
            line = {**self._about(task, environment), "seconds": round(time.monotonic() - began, 1), **told}
            results.append(self._path, line)
            return line
        return None

    def _play(self, task: Task, environment: Environment, places: Places) -> dict[str, Any]:
        settings = task.contender.settings(task.kind)
        try:
            with standing(
                task.contender,
                task.kind,
                environment,
                places,
                script=task.experiment.script(settings),
                folder=self._folder(task),
                limit=self._limit,
                stopping=self._stopping,
            ) as stand:
                found = task.experiment.play(stand, settings, self._limit)
                held = stand.pending()
                self._write_down(task, found)
                told = figures(found, stand.counted(), held=held)
                return {"status": RUN, **told, "restarts": stand.workers.restarts}
        except Stopped:
            raise
        except NotAvailable as reason:
            return {"status": NOT_RUN, "reason": str(reason)}
        except NoFigure as reason:
            return {"status": FAILED, "reason": str(reason)}
        except Exception as error:  # noqa: BLE001 - one peer's trouble must not end the run of the others
            return {"status": FAILED, "reason": f"{type(error).__name__}: {error}"}

    def _write_down(self, task: Task, found: Found) -> None:
        """The kills beside the ledger, so that the figures can be had again from both."""
        kills = [{"at": kill.at, "pids": sorted(kill.pids), "whole": kill.whole} for kill in found.kills]
        (self._folder(task) / "kills.json").write_text(json.dumps(kills))

    def _folder(self, task: Task) -> Path:
        return self._out / "peers" / "-".join(task.cell)

    def _about(self, task: Task, environment: Environment | str) -> dict[str, Any]:
        peer = task.contender.peer
        return {
            **task.cell._asdict(),
            "label": peer.label,
            "store": peer.store,
            "version": "" if isinstance(environment, str) else environment.version,
            "chosen": [each._asdict() for each in task.contender.settings(task.kind).chosen],
            "limit_seconds": self._limit,
            "at_once": self._at_once,
            "cores": os.cpu_count(),
            "commit": self._commit,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def summary(line: Mapping[str, Any]) -> str:
    """One line for whoever watches."""
    name = f"{line['peer']}, {line['settings']}, {line['experiment']}"
    if line["status"] != RUN:
        return f"{name}: {line['status']}: {line['reason']}"
    notes = ", ".join(f"{key} {value}" for key, value in line["notes"].items())
    killed = f", {line['interrupted']}" if "interrupted" in line else ""
    counted = f"{line['accepted']} accepted, {line['lost']} lost, {line['done_twice']} done twice"
    return f"{name}: {counted}, {line['held']} held{killed}; {notes} ({line['seconds']:g} s)"
