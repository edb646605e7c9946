"""Opening the file: what must be true of it and of SQLite before anything is stored, one clear refusal each."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from ropeway.core.errors import ConfigurationError, EngineError, Unavailable

Durability = Literal["full", "relaxed"]

#: The oldest version that is tried: JSON functions built in, no known bug in WAL.
OLDEST_SQLITE = (3, 35, 0)

#: How long SQLite waits for a lock that some other program holds.
BUSY_SECONDS = 10.0

#: Types of file systems, as /proc/mounts names them, whose locks or shared memory cannot be relied upon.
NETWORK_FILE_SYSTEMS = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "fuse.ceph", "fuse.davfs", "fuse.gcsfuse",
        "fuse.glusterfs", "fuse.goofys", "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "gfs2",
        "glusterfs", "gpfs",
        "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs",
    }
)  # fmt: skip

#: PRAGMA synchronous as it is read back.
_SYNCHRONOUS = {"full": 2, "relaxed": 1}

_ESCAPED = re.compile(r"\\([0-7]{3})")


class Database(NamedTuple):
    """The file, and how safely it is written."""

    path: Path
    durability: Durability

    def check(self) -> None:
        """Refuse a place where a database cannot be kept."""
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            oldest = ".".join(map(str, OLDEST_SQLITE))
            raise ConfigurationError(
                f"Python was built with SQLite {sqlite3.sqlite_version}; Ropeway needs {oldest} or newer"
            )
        if self.durability not in _SYNCHRONOUS:
            raise ConfigurationError(f"durability must be 'full' or 'relaxed', not {self.durability!r}")
        folder = self.path.parent
        if not folder.is_dir():
            raise ConfigurationError(
                f"the folder {folder} does not exist", hint="create it, or change ROPEWAY_URL"
            )
        if self.path.is_dir():
            raise ConfigurationError(f"{self.path} is a folder", hint="name a file, such as sqlite:///ropeway.db")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigurationError(f"the folder {folder} cannot be written to")
        if self.path.exists() and not os.access(self.path, os.R_OK | os.W_OK):
            raise ConfigurationError(f"the database {self.path} cannot be read and written by this user")
        if self.path.exists() and self.path.stat().st_size:
            self._check_header()
        self.check_file_system(_mounts())

    def _check_header(self) -> None:
        """Refuse what is no database before anything is put beside it."""
        # Through SQLite, which alone may open the file: closing another descriptor of it would drop all POSIX
        # locks that this process has on it, also those of SQLite's other connections.
        db = sqlite3.connect(self.path, timeout=BUSY_SECONDS)
        try:
            db.execute("PRAGMA schema_version")
        except sqlite3.Error as error:
            if primary_code(error) == sqlite3.SQLITE_NOTADB:
                raise opening_error(self.path, error) from error
        finally:
            db.close()

    def identity(self) -> tuple[int, int] | None:
        """Which file the path leads to now; None when there is none."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def check_file_system(self, mounts: Iterable[tuple[str, str]]) -> None:
        """Refuse a network file system: SQLite's locks and shared memory do not work across hosts."""
        place = f"{self.path.parent.resolve()}/"
        within = [mount for mount in mounts if place.startswith(f"{mount[0].rstrip('/')}/")]
        # Of several mounts on one folder the last is in force.
        point, kind = max(reversed(within), key=lambda mount: len(mount[0]), default=("/", ""))
        if kind in NETWORK_FILE_SYSTEMS:
            raise ConfigurationError(
                f"{self.path} is on a network file system ({kind} at {point}), where SQLite cannot be relied upon",
                hint="put the file on a local disk, or use PostgreSQL to share jobs between hosts",
            )

    def connect(self, *, writes: bool) -> sqlite3.Connection:
        """A connection with every setting made and read back. Raises ConfigurationError or Unavailable."""
        try:
            db = sqlite3.connect(
                self.path,
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
        except sqlite3.Error as error:
            raise opening_error(self.path, error) from error
        try:
            self._configure(db, writes=writes)
        except sqlite3.Error as error:
            db.close()
            raise opening_error(self.path, error) from error
        except BaseException:
            db.close()
            raise
        return db

    def _configure(self, db: sqlite3.Connection, *, writes: bool) -> None:
        wanted: dict[str, str | int] = {
            "journal_mode": "wal",
            "synchronous": _SYNCHRONOUS[self.durability],
            "temp_store": 2,
            "trusted_schema": 0,
            "cache_size": -65_536 if writes else -16_384,
            "query_only": 0 if writes else 1,
        }
        if writes:
            # What a burst has made of the log is given back to the disk at the next checkpoint.
            wanted["journal_size_limit"] = 67_108_864
        for name, value in wanted.items():
            db.execute(f"PRAGMA {name} = {value}")
            (got,) = db.execute(f"PRAGMA {name}").fetchone()
            if got != value:
                raise ConfigurationError(
                    f"SQLite would not set {name} to {value} for {self.path}: it is {got}",
                    hint="WAL needs shared memory; a read-only or unusual file system has none"
                    if name == "journal_mode"
                    else None,
                )


def primary_code(error: BaseException) -> int:
    """SQLite's primary result code; 0 for errors that Python's module raised by itself."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def opening_error(path: Path, error: sqlite3.Error) -> EngineError:
    """What SQLite said while a file was opened, in words that tell what to do."""
    code = primary_code(error)
    if code == sqlite3.SQLITE_NOTADB:
        return ConfigurationError(f"{path} is not a SQLite database", hint="it was left as it is")
    if code == sqlite3.SQLITE_CORRUPT:
        return ConfigurationError(f"the database {path} is damaged: {error}", hint="restore it from a backup")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return ConfigurationError(f"the database {path} cannot be opened for writing: {error}")
    return Unavailable(f"the database {path} cannot be used now: {error}")


def _mounts() -> list[tuple[str, str]]:
    """Mount points and the types of their file systems; empty where the system does not tell."""
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    fields = (line.split(" ") for line in lines)
    return [(_ESCAPED.sub(lambda m: chr(int(m[1], 8)), f[1]), f[2]) for f in fields if len(f) > 2]
