"""The default engine: one SQLite file, durable, shared by the processes of one host."""

from ropeway.engines.sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
