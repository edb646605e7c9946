"""What handlers leave behind for a test to see, and gates at which they wait: files in one folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

VARIABLE = "ROPEWAY_TEST_FACTS"


class Note(NamedTuple):
    """One line that a handler wrote: what it says, of which job and attempt, by which process."""

    word: str
    job_id: str
    attempt: int
    pid: int


class Facts:
    """The folder, seen from a test and from the processes that a worker starts."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """The one given, or the one that the environment names now."""
        return Path(os.environ[VARIABLE]) if self._folder is None else self._folder

    def note(self, word: str, job_id: object, attempt: int = 0) -> None:
        """Append a line; whole or not at all, whoever else writes and however this process ends."""
        line = f"{word} {job_id} {attempt} {os.getpid()}\n".encode()
        fd = os.open(self.folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)

    def notes(self, *words: str) -> list[Note]:
        """The lines so far, in the order in which they were written; of these words, or all."""
        try:
            text = (self.folder / "notes").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        found = []
        # What follows the last line end is a line that is just being written.
        for line in text.split("\n")[:-1]:
            word, job_id, attempt, pid = line.split(" ")
            if not words or word in words:
                found.append(Note(word, job_id, int(attempt), int(pid)))
        return found

    def open_gate(self, name: str) -> None:
        (self.folder / f"gate-{name}").touch()

    def is_open(self, gate: str) -> bool:
        return (self.folder / f"gate-{gate}").exists()
