"""The documents as programs: which blocks of a page are run, and how.

A page is walked from top to bottom in one folder that is empty at first:

- a `python` block whose first line is a comment with a file's name (`# tasks.py`) is written there and imported by
  whoever needs it;
- any other `python` block is run; all of a page share their names, and may `await` at the top level;
- a `sh` block is run line by line: `ropeway ...` for real (a worker or a server is started and has to come up),
  `python ...` as well, `export A=b` (and `A=$(cat file)`) counts for the rest of the page. What needs another
  machine or the network is left out: the programs named in NOT_RUN, and no others;
- a `bash` block is given to bash as it is, curl and all, and stops at the first failure;
- `<!-- not run: why -->` before a block leaves it out; Python is compiled all the same.

`postgresql://localhost/app` stands for a database, `http://127.0.0.1:8000` for a server: a real one replaces it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

#: Stands in the documents for the reader's own database.
DATABASE = "postgresql://localhost/app"

#: Where a server is that nobody told otherwise.
SERVER = "http://127.0.0.1:8000"

#: Programs whose lines are for reading.
NOT_RUN = (
    "pip",
    "make",
    "curl",
    "createdb",
    "pg_dump",
    "systemctl",
    "journalctl",
    "docker",
    "kubectl",
    "kill",
    "cd",
)

_BLOCK = re.compile(
    r"(?P<skip><!-- not run: [^>]+ -->\n+)?^```(?P<language>[a-z]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_FILE = re.compile(r"# (?P<name>[\w/]+\.py)(?: .*)?\n")


class Block(NamedTuple):
    """One fenced block of a page."""

    language: str
    text: str
    #: The line of the page where its text begins.
    line: int
    skipped: bool

    @property
    def file(self) -> str | None:
        """The file that it is, if it is one."""
        found = _FILE.match(self.text) if self.language == "python" else None
        return None if found is None else found["name"]


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["text"], text.count("\n", 0, found.start("text")) + 1, bool(found["skip"]))
        for found in _BLOCK.finditer(text)
    ]


def commands(block: Block) -> list[tuple[int, str]]:
    """The lines of a shell block, with their numbers; one that ends with a backslash goes on in the next."""
    found: list[tuple[int, str]] = []
    held = ""
    for number, line in enumerate(block.text.splitlines(), block.line):
        held += line.strip()
        if held.endswith("\\"):
            held = held[:-1]
            continue
        if held and not held.startswith("#"):
            found.append((number, held))
        held = ""
    return found
