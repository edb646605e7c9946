"""The PostgreSQL that figures are measured on."""

from __future__ import annotations

import sys

import psycopg
import pytest

from bench import __main__, stores


def test_its_log_has_files_that_are_written_into_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "LOG_FILES", 8)
    monkeypatch.setitem(stores.POSTGRES_SETTINGS, "min_wal_size", "128MB")
    with stores.postgres_server() as server, psycopg.connect(server.url, autocommit=True) as connection:

        def ask(statement: str) -> int:
            row = connection.execute(statement.encode()).fetchone()
            assert row is not None
            return int(row[0])

        ahead = (
            "SELECT count(*) FROM pg_ls_waldir() WHERE name ~ '^[0-9A-F]{24}$'"
            " AND name > pg_walfile_name(pg_current_wal_insert_lsn())"
        )
        assert ask(ahead) >= 6
        assert ask("SELECT setting::int FROM pg_settings WHERE name = 'min_wal_size'") == 128


def test_a_version_that_is_not_there_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "engine", "--engine", "postgres", "--postgres", "99"])
    assert __main__.main() == 2
    assert capsys.readouterr().err == "there is no PostgreSQL 99 on this machine\n"
