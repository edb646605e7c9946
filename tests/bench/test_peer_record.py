"""The record of what ran: written by Python workers into a map, by Node workers into logs, read as one."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.peers.programs import kit
from bench.peers.record import Record


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    made = Record(tmp_path / "record", 5)
    yield made
    made.close()


def log(record: Record, pid: int, *entries: tuple[int, float], torn: bytes = b"") -> None:
    path = record.path.with_name(f"{record.path.name}.{pid}.log")
    with path.open("ab") as file:
        file.write(b"".join(struct.pack("<Id", *entry) for entry in entries) + torn)


def test_nothing_has_run_in_a_new_record(record: Record) -> None:
    assert record.ran(0, 5) == 0
    assert not record.all_ran(0, 5)
    assert record.holder is None
    assert record.irregular(0, 5) == {0: 5}


def test_what_a_python_worker_marks_is_seen_at_once(record: Record) -> None:
    worker = kit.Record(str(record.path))
    assert worker.size == 5
    worker.ran(3)
    assert record.count(3) == 1
    assert record.start(3) > 1_600_000_000
    assert record.ran(0, 5) == 1
    assert record.ran(0, 3) == 0


def test_a_job_that_runs_twice_and_one_that_never_does_are_told_apart(record: Record) -> None:
    worker = kit.Record(str(record.path))
    for index in (0, 1, 2, 2):
        worker.ran(index)
    assert record.irregular(0, 5) == {0: 2, 2: 1}
    assert record.irregular(0, 2) == {}
    assert record.all_ran(0, 3)
    assert not record.all_ran(0, 4)


def test_logs_of_node_workers_are_merged_and_torn_entries_wait(record: Record) -> None:
    whole = struct.pack("<Id", 4, 20.0)
    log(record, 1, (0, 10.0), (1, 11.0))
    log(record, 2, (2, 12.0), torn=whole[:5])
    assert record.ran(0, 5) == 3
    assert list(record.starts(0, 3)) == [10.0, 11.0, 12.0]
    log(record, 2, torn=whole[5:])
    assert record.count(4) == 1
    assert record.start(4) == 20.0


def test_logs_and_map_count_together(record: Record) -> None:
    kit.Record(str(record.path)).ran(0)
    log(record, 7, (0, 30.0), (1, 31.0), (2, 32.0), (3, 33.0))
    assert not record.all_ran(0, 5)
    log(record, 7, (4, 34.0))
    assert record.all_ran(0, 5)
    assert record.irregular(0, 5) == {2: 1}


def test_a_job_that_ran_twice_may_hide_one_that_never_did(record: Record) -> None:
    log(record, 7, (0, 30.0), (1, 31.0), (2, 32.0), (3, 33.0))
    assert not record.may_all_have_run(0, 5)
    log(record, 7, (3, 34.0))
    assert record.may_all_have_run(0, 5)
    assert not record.all_ran(0, 5)


def test_the_holder_of_a_job_is_known_once_it_is_written(record: Record) -> None:
    note = record.path.with_name(record.path.name + ".pid")
    note.write_text("")
    assert record.holder is None
    note.write_text("4711")
    assert record.holder == 4711
