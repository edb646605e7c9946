"""Loaded once by the server that processes of their own are forked from, so that each has the app at once."""

from __future__ import annotations

import contextlib
import os

from ropeway.core.errors import RopewayError
from ropeway.worker.loading import load_program
from ropeway.worker.program import Program

VARIABLE = "ROPEWAY_ISOLATED_TARGET"

_program: Program | RopewayError | None = None


def program() -> Program:
    """The app, loaded when this module was imported or now; raises what its import raised."""
    global _program
    if _program is None:
        try:
            _program = load_program(os.environ[VARIABLE])
        except RopewayError as error:
            _program = error
    if isinstance(_program, RopewayError):
        raise _program
    return _program


if os.environ.get(VARIABLE):
    with contextlib.suppress(RopewayError):  # told by the process that needs it
        program()
