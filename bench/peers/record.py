"""The harness's side of the record: which jobs ran, how often, and when each started (see programs/kit.py).

Python workers write into one mapped file. Node has no such thing: its workers append to logs of their own, which
are read here and put into the same file, so that there is one place to look at.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_START = struct.Struct("<d")
#: An entry of a Node worker's log: the job's index and the time of its start.
_ENTRY = struct.Struct("<Id")


class Record:
    """Nothing has run yet when it is made; `size` jobs at most."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        with path.open("w+b") as file:
            file.truncate(9 * size)
            self._map = mmap.mmap(file.fileno(), 9 * size)
        self._read: dict[Path, int] = {}

    def close(self) -> None:
        self._map.close()

    # ── reading ──

    def count(self, index: int) -> int:
        """How often that job has started."""
        self._merge_logs()
        return self._map[index]

    def start(self, index: int) -> float:
        """When it started last, in seconds since 1970; 0 if it never has."""
        self._merge_logs()
        return float(_START.unpack_from(self._map, self.size + 8 * index)[0])

    def starts(self, first: int, number: int) -> array[float]:
        """The same for a range of jobs."""
        self._merge_logs()
        at = self.size + 8 * first
        times = array("d")
        times.frombytes(self._map[at : at + 8 * number])
        return times

    def ran(self, first: int, number: int) -> int:
        """How many jobs of a range have started at least once."""
        self._merge_logs()
        return number - self._map[first : first + number].count(0)

    def may_all_have_run(self, first: int, number: int) -> bool:
        """Whether there are as many starts as jobs; a job that started twice may hide one that never did.

        Cheap: putting a log into the map takes processor time that the worker should have, and time by itself.
        """
        missing = self._map[first : first + number].count(0)
        return not missing or self._entries_to_merge() >= missing

    def all_ran(self, first: int, number: int) -> bool:
        return self.may_all_have_run(first, number) and self.ran(first, number) == number

    def irregular(self, first: int, number: int) -> dict[int, int]:
        """How many jobs of a range started never, twice, …: by count, those with one start left out."""
        self._merge_logs()
        found = Counter(self._map[first : first + number])
        del found[1]
        return dict(sorted(found.items()))

    @property
    def holder(self) -> int | None:
        """The process that runs the held job, once it does."""
        try:
            return int(self._beside(".pid").read_text())
        except (FileNotFoundError, ValueError):  # not there, or not yet written
            return None

    # ── Node ──

    def _logs(self) -> Iterator[Path]:
        return self.path.parent.glob(f"{self.path.name}.*.log")

    def _entries_to_merge(self) -> int:
        return sum(log.stat().st_size - self._read.get(log, 0) for log in self._logs()) // _ENTRY.size

    def _merge_logs(self) -> None:
        for log in self._logs():
            done = self._read.get(log, 0)
            with log.open("rb") as file:
                file.seek(done)
                news = file.read()
            whole = len(news) - len(news) % _ENTRY.size  # the last entry may be half written
            for index, at in _ENTRY.iter_unpack(news[:whole]):
                self._map[index] = min(255, self._map[index] + 1)
                _START.pack_into(self._map, self.size + 8 * index, at)
            self._read[log] = done + whole

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)
