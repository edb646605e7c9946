"""The reference engine: plain dicts in one process. Every other engine is compared with it."""

from ropeway.engines.memory.engine import MemoryEngine

__all__ = ["MemoryEngine"]
