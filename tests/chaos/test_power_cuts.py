"""What a disk holds after a power cut: by hand, and of a real SQLite whose writes are noted down."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.power import Disk, Record, lay_out, records
from chaos.preloaded import NoCompiler, built

DB, WAL = 0, 1
ME, OTHER = (1, 3), (2, 5)


def wrote(offset: int, data: bytes, *, file: int = WAL) -> Record:
    return Record("W", file, ME, offset, len(data), 0.0, data)


def call(op: str, *, by: tuple[int, int] = ME, file: int = WAL, length: int = 0) -> Record:
    return Record(op, file, by, 0, length, 0.0)


def disk_after(*calls: Record) -> Disk:
    disk = Disk()
    for each in calls:
        disk.take(each)
    return disk


def found(disk: Disk, *, file: int = WAL) -> set[bytes]:
    """All that may be there after a cut."""
    return {bytes(disk.after_a_cut(random.Random(seed)).get(file, b"")) for seed in range(200)}


def test_what_was_synced_is_there() -> None:
    disk = disk_after(wrote(0, b"abcd"), call("B"), call("E"))
    assert found(disk) == {b"abcd"}


def test_what_was_not_may_be_there_or_not() -> None:
    disk = disk_after(wrote(0, b"abcd"), call("B"), call("E"), wrote(4, b"efgh"))
    assert found(disk) == {b"abcd", b"abcdefgh"}


def test_later_writes_may_be_there_without_earlier_ones() -> None:
    disk = disk_after(wrote(0, b"ab"), wrote(2, b"cd"))
    assert found(disk) == {b"", b"ab", b"\0\0cd", b"abcd"}


def test_a_sync_covers_what_was_written_before_it_began() -> None:
    disk = disk_after(call("B", by=OTHER), wrote(0, b"abcd"), call("E", by=OTHER))
    assert b"" in found(disk)
    disk.take(call("B"))
    assert b"" in found(disk), "it has not ended"
    disk.take(call("E"))
    assert found(disk) == {b"abcd"}


def test_a_sync_is_of_one_file() -> None:
    disk = disk_after(wrote(0, b"ab"), wrote(0, b"cd", file=DB), call("B", file=DB), call("E", file=DB))
    assert found(disk, file=DB) == {b"cd"}
    assert found(disk) == {b"", b"ab"}


def test_a_write_may_end_at_a_sector() -> None:
    whole = bytes(range(256)) * 8
    sizes = {len(content) for content in found(disk_after(wrote(0, whole)))}
    assert sizes == {0, 512, 1024, 1536, 2048}


def test_a_file_can_become_shorter_and_vanish() -> None:
    disk = disk_after(wrote(0, b"abcd"), call("T", length=2), call("B"), call("E"))
    assert found(disk) == {b"ab"}
    disk.take(call("U"))
    assert found(disk) == {b""}


WRITER = """
import sqlite3, sys, time
path, level = sys.argv[1:]
connection = sqlite3.connect(path, isolation_level=None)
connection.execute("PRAGMA journal_mode = wal")
connection.execute("PRAGMA wal_autocheckpoint = 20")
connection.execute(f"PRAGMA synchronous = {level}")
connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, pad TEXT)")
for n in range(60):
    connection.execute("INSERT INTO t VALUES (?, ?)", (n, "x" * 900))
    print(n, time.monotonic(), flush=True)
"""


def rows_missing_after_cuts(folder: Path, level: str) -> int:
    """How many rows that were committed before a power cut are not there after it, over all cuts."""
    database, log = folder / "real.db", folder / "writes.log"
    env = {
        **os.environ,
        "LD_PRELOAD": str(built("powercut", folder)),
        "POWERCUT_FILE": str(database),
        "POWERCUT_LOG": str(log),
    }
    command = [sys.executable, "-c", WRITER, str(database), level]
    told = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    committed = [(int(number), float(at)) for number, at in (line.split() for line in told.splitlines())]
    assert len(committed) == 60
    disk, missing, image = Disk(), 0, folder / "image.db"
    for index, record in enumerate(records(log)):
        before = {number for number, at in committed if at < record.at}
        if index % 5 == 0 and before:
            lay_out(disk.after_a_cut(random.Random(index)), image)
            missing += len(before - rows_of(image))
        disk.take(record)
    return missing


def rows_of(image: Path) -> set[int]:
    connection = sqlite3.connect(image)
    try:
        return {number for (number,) in connection.execute("SELECT n FROM t")}
    except sqlite3.DatabaseError:
        return set()
    finally:
        connection.close()


@pytest.mark.parametrize(("level", "loses"), [("FULL", False), ("NORMAL", True)])
def test_a_real_sqlite_loses_what_it_did_not_sync(tmp_path: Path, level: str, loses: bool) -> None:
    try:
        missing = rows_missing_after_cuts(tmp_path, level)
    except NoCompiler as error:
        pytest.skip(f"not run: {error}")
    assert bool(missing) is loses, f"{missing} rows are missing"
