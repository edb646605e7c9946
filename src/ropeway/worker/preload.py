"""Loaded once by the server that processes of their own are forked from, so that each has the app at once."""

from __future__ import annotations

import contextlib
import os
import signal

from ropeway.core.errors import RopewayError
from ropeway.worker.loading import load_program
from ropeway.worker.program import Program

#: Set only while the server is started: what a handler starts must not take itself for one.
VARIABLE = "ROPEWAY_FORKSERVER_APP"

_programs: dict[str, Program] = {}


def program(target: str) -> Program:
    """The app, loaded when the server started or now; raises what its import raises."""
    if target not in _programs:
        _programs[target] = load_program(target)
    return _programs[target]


def outlive_sigterm() -> None:
    """A service manager may signal every process of a worker; these end when their worker does. (Not by ignoring
    the signal: that would be inherited by whatever a handler starts.)"""
    signal.signal(signal.SIGTERM, lambda *_: None)


if (_target := os.environ.pop(VARIABLE, None)) is not None:
    outlive_sigterm()
    with contextlib.suppress(RopewayError):  # told by the process that needs it
        program(_target)
