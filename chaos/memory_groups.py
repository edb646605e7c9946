"""Groups of processes that may hold only so much memory together: the kernel's cgroups, of either version."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MIB: Final = 2**20


class NoMemoryGroups(Exception):
    """Memory cannot be limited here: no such kernel, or no right to."""


@dataclass(frozen=True)
class Version:
    """Where groups are made, and what the files of one are called."""

    root: Path
    limit: str
    #: Keeps what is too much from being written to a disk instead.
    swap: str
    peak: str
    #: Whether what `swap` limits is memory and disk together.
    together: bool
    #: What must be switched on at the root before there can be such groups.
    switch: str | None = None


FIRST: Final = Version(
    Path("/sys/fs/cgroup/memory"),
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.max_usage_in_bytes",
    together=True,
)
SECOND: Final = Version(
    Path("/sys/fs/cgroup"),
    "memory.max",
    "memory.swap.max",
    "memory.peak",
    together=False,
    switch="cgroup.subtree_control",
)


@dataclass(frozen=True)
class MemoryGroup:
    folder: Path
    peak_file: str

    @property
    def door(self) -> Path:
        """A process that writes its number to this file belongs to the group from then on."""
        return self.folder / "cgroup.procs"

    def add(self, pid: int) -> None:
        self.door.write_text(str(pid))

    def peak_mib(self) -> int:
        """The most that the group has held at once."""
        return round(int((self.folder / self.peak_file).read_text()) / MIB)


@contextmanager
def memory_group(name: str, mib: int, version: Version | None = None) -> Iterator[MemoryGroup]:
    """A group of that name whose processes may hold `mib` MiB. NoMemoryGroups where there can be none.

    Who is still in it at the end goes back to where everybody is.
    """
    version = version or _version_here()
    folder = version.root / f"ropeway-{name}-{os.getpid()}"
    try:
        if version.switch is not None:
            (version.root / version.switch).write_text("+memory")
        folder.mkdir()
        (folder / version.limit).write_text(str(mib * MIB))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise NoMemoryGroups(f"memory cannot be limited here: {error}") from None
    with contextlib.suppress(OSError):  # not every kernel counts it
        (folder / version.swap).write_text(str(mib * MIB if version.together else 0))
    try:
        yield MemoryGroup(folder, version.peak)
    finally:
        _give_up(folder, version.root)


def _version_here() -> Version:
    return FIRST if FIRST.root.is_dir() else SECOND


def _give_up(folder: Path, root: Path) -> None:
    with contextlib.suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (root / "cgroup.procs").write_text(pid)
    with contextlib.suppress(OSError):
        folder.rmdir()
