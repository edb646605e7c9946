"""The chores that keep a store in order. Any number of processes may do them at once."""

from ropeway.upkeep.upkeep import Upkeep

__all__ = ["Upkeep"]
