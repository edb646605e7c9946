"""The engine protocol over HTTP: whatever can use an engine can use a `ropeway server` instead."""

from ropeway.engines.remote.engine import RemoteEngine

__all__ = ["RemoteEngine"]
