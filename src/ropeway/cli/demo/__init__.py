"""`ropeway demo`: everything that can happen to a job, live in the terminal."""

from ropeway.cli.demo.command import demo

__all__ = ["demo"]
