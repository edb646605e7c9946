"""Power cuts: what a disk would hold of an SQLite database, put together from a log of its writes and syncs.

`inject/powercut.c` writes the log. A disk keeps what was synced. Of what was written later it may have all, some
or nothing, in any order, and the last sector that it wrote may be in the middle of a write.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

#: What is written to a disk at once, or not at all.
SECTOR: Final = 512

#: The files of a database, by the number that the log has for each.
SUFFIXES: Final = ("", "-wal", "-journal")

_RECORD: Final = struct.Struct("<IBBHIiQQd")
_MAGIC: Final = 0x52574350


@dataclass(frozen=True)
class Record:
    """One call: W a write, T a file's new length, B and E the begin and end of a sync, U a file removed."""

    op: str
    file: int
    #: Who did it, and through which descriptor.
    by: tuple[int, int]
    offset: int
    length: int
    at: float
    data: bytes = b""


def records(log: Path) -> Iterator[Record]:
    """In the order of the log. One that was cut off when its process died is left out, with nothing behind it."""
    with log.open("rb") as file:
        while len(head := file.read(_RECORD.size)) == _RECORD.size:
            magic, op, number, _, pid, fd, offset, length, at = _RECORD.unpack(head)
            if magic != _MAGIC:
                raise ValueError(f"{log} is not a log of writes at {file.tell() - _RECORD.size}")
            data = file.read(length) if chr(op) == "W" else b""
            if chr(op) == "W" and len(data) < length:
                return
            yield Record(chr(op), number, (pid, fd), offset, length, at, data)


@dataclass
class Disk:
    """What is safe, and what has been written since."""

    safe: dict[int, bytearray] = field(default_factory=dict)
    written: list[tuple[int, Record]] = field(default_factory=list)
    _seen: int = 0
    _syncs: dict[tuple[tuple[int, int], int], int] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        """One more call."""
        self._seen += 1
        if record.op in "WT":
            self.written.append((self._seen, record))
        elif record.op == "B":
            self._syncs[record.by, record.file] = self._seen
        elif record.op == "E":
            self._synced(record.file, self._syncs.pop((record.by, record.file), 0))
        elif record.op == "U":
            # Told as if it were safe at once: SQLite removes a file only when nothing in it matters any more.
            self.safe.pop(record.file, None)
            self.written = [each for each in self.written if each[1].file != record.file]

    def _synced(self, file: int, before: int) -> None:
        left = []
        for number, record in self.written:
            if record.file == file and number < before:
                _apply(self.safe, record)
            else:
                left.append((number, record))
        self.written = left

    def after_a_cut(self, chance: random.Random) -> dict[int, bytearray]:
        """What may be found when the power is back."""
        found = {file: bytearray(content) for file, content in self.safe.items()}
        for _, record in self.written:
            fate = chance.random()
            if fate < 0.4:
                _apply(found, record)
            elif fate < 0.6 and record.op == "W":
                sectors = chance.randrange(max(1, record.length // SECTOR) + 1)
                _apply(found, record, length=min(record.length, sectors * SECTOR))
        return found

    def as_it_is(self) -> dict[int, bytearray]:
        """What whoever reads the files now would read: nothing is lost."""
        found = {file: bytearray(content) for file, content in self.safe.items()}
        for _, record in self.written:
            _apply(found, record)
        return found


def _apply(files: dict[int, bytearray], record: Record, *, length: int | None = None) -> None:
    content = files.setdefault(record.file, bytearray())
    if record.op == "T":
        del content[record.length :]
        content.extend(bytes(record.length - len(content)))
        return
    data = record.data if length is None else record.data[:length]
    if not data:
        return
    if len(content) < record.offset:
        content.extend(bytes(record.offset - len(content)))
    content[record.offset : record.offset + len(data)] = data


def lay_out(files: dict[int, bytearray], database: Path) -> None:
    """Write them as files: the database there, the others beside it."""
    for number, suffix in enumerate(SUFFIXES):
        path = database.with_name(database.name + suffix)
        path.unlink(missing_ok=True)
        if number in files:
            path.write_bytes(files[number])
    database.with_name(database.name + "-shm").unlink(missing_ok=True)
