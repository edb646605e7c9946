"""The PostgreSQL engine: the measured design, with its SQL in named files."""

from ropeway.engines.postgres.connection import REQUESTS
from ropeway.engines.postgres.engine import PostgresEngine

__all__ = ["REQUESTS", "PostgresEngine"]
