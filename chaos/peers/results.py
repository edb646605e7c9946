"""The results file: a line of JSON per run, appended when it is over. Of two about the same the later counts."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

#: What a line's `status` may be.
RUN = "run"
#: It was begun and could not be brought to an end: nothing is known.
FAILED = "failed"
#: It was not begun.
NOT_RUN = "not run"

_lock = threading.Lock()


class Cell(NamedTuple):
    """One peer, one of its settings, one experiment."""

    peer: str
    settings: str
    experiment: str


def path_in(out: Path) -> Path:
    return out / "peers.jsonl"


def append(path: Path, line: Mapping[str, Any]) -> None:
    with _lock, path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read(path: Path) -> dict[Cell, dict[str, Any]]:
    """The last line about each cell; none when there is no file. A half written line is left out."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    return {Cell(line["peer"], line["settings"], line["experiment"]): line for line in lines}
