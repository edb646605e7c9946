"""What a child runs now, in memory that its parent sees even when the child is dead, stopped or blocked.

A file mapping without a name: a header with signs of life, then one entry per slot. The child writes, the parent
reads; both clocks are the machine's monotonic one. An entry counts only while its first byte says so, which is
written last at a start and first at an end: a child that dies between two writes leaves no half-told start.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from typing import NamedTuple
from uuid import UUID

from ropeway.worker.options import MAX_CONCURRENCY

_ENTRY = struct.Struct("<16sdd")
_HEADER_SIZE = 64
_ENTRY_SIZE = 64
_BODY = 8

_FREE, _SHARED, _ISOLATED = 0, 1, 2
_ALIVE, _CLAIMED, _FINISHED, _WATCHED, _LEFT, _BLOCKED = 0, 8, 16, 24, 32, 40
_double = struct.Struct("<d")
_whole = struct.Struct("<Q")


class Running(NamedTuple):
    """One entry: a job that has been started and has not ended."""

    job_id: UUID
    started: float
    #: When the parent must kill the child for it (monotonic); 0: never.
    hard_deadline: float
    #: It runs in a process of its own, so its child's death is not its doing.
    isolated: bool


class Ledger:
    """`Ledger.create()` in the parent, `Ledger(fd)` in the child; `slots` is set once it is known.

    The mapping has room for the most slots there can be; pages that nobody writes to take no memory.
    """

    def __init__(self, fd: int, slots: int = 0) -> None:
        self.fd = fd
        self.slots = slots
        self._map = mmap.mmap(fd, _HEADER_SIZE + MAX_CONCURRENCY * _ENTRY_SIZE)

    @classmethod
    def create(cls, slots: int = 0) -> Ledger:
        size = _HEADER_SIZE + MAX_CONCURRENCY * _ENTRY_SIZE
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("ropeway-ledger")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, size)
        return cls(fd, slots)

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)

    # ── the child writes ──

    def start(self, slot: int, job_id: UUID, started: float, hard_deadline: float, *, isolated: bool) -> None:
        offset = _HEADER_SIZE + slot * _ENTRY_SIZE
        _ENTRY.pack_into(self._map, offset + _BODY, job_id.bytes, started, hard_deadline)
        self._map[offset] = _ISOLATED if isolated else _SHARED

    def end(self, slot: int) -> None:
        self._map[_HEADER_SIZE + slot * _ENTRY_SIZE] = _FREE

    def alive(self, now: float) -> None:
        """The event loop turns."""
        _double.pack_into(self._map, _ALIVE, now)

    def watched(self, now: float) -> None:
        """The watchdog's thread turns: nobody holds the interpreter."""
        _double.pack_into(self._map, _WATCHED, now)

    def blocked_by(self, slot: int | None) -> None:
        """The job in that slot does not let the loop turn; None: it turns again."""
        _whole.pack_into(self._map, _BLOCKED, 0 if slot is None else slot + 1)

    def claimed(self, now: float) -> None:
        """The engine answered a claim, or there was no room for one."""
        _double.pack_into(self._map, _CLAIMED, now)

    def finished(self, count: int) -> None:
        """How many jobs this child has run in all."""
        _whole.pack_into(self._map, _FINISHED, count)

    def leave(self) -> None:
        """The child has done its work and exits: what is still noted here would not stop, and is given back."""
        self._map[_LEFT] = 1

    # ── the parent reads ──

    def has_left(self) -> bool:
        return self._map[_LEFT] == 1

    def running(self) -> list[Running]:
        found = []
        for slot in range(self.slots):
            offset = _HEADER_SIZE + slot * _ENTRY_SIZE
            kind = self._map[offset]
            if kind != _FREE:
                raw, started, deadline = _ENTRY.unpack_from(self._map, offset + _BODY)
                found.append(Running(UUID(bytes=raw), started, deadline, kind == _ISOLATED))
        return found

    def blocker(self) -> UUID | None:
        """The job that blocks the loop now, if the watchdog has seen which."""
        slot = int(_whole.unpack_from(self._map, _BLOCKED)[0]) - 1
        offset = _HEADER_SIZE + slot * _ENTRY_SIZE
        if slot < 0 or self._map[offset] == _FREE:
            return None
        return UUID(bytes=_ENTRY.unpack_from(self._map, offset + _BODY)[0])

    def last_alive(self) -> float:
        return float(_double.unpack_from(self._map, _ALIVE)[0])

    def last_watched(self) -> float:
        return float(_double.unpack_from(self._map, _WATCHED)[0])

    def last_claimed(self) -> float:
        return float(_double.unpack_from(self._map, _CLAIMED)[0])

    def jobs_finished(self) -> int:
        return int(_whole.unpack_from(self._map, _FINISHED)[0])
