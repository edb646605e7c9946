"""What makes a process part of a run: its recorder, its engine, and the fault points that are on in it."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from chaos.history import Recorder
from chaos.recording import RecordingEngine

#: Where histories go, and what this process is called in them.
HISTORY, ROLE = "CHAOS_HISTORY", "CHAOS_ROLE"


@functools.cache
def recorder() -> Recorder:
    """This process's own; a fork gets another one."""
    return _recorder_of(os.getpid())


@functools.cache
def _recorder_of(pid: int) -> Recorder:
    return Recorder(Path(os.environ[HISTORY]), os.environ.get(ROLE, "process"), pid=pid)


os.register_at_fork(after_in_child=recorder.cache_clear)


@functools.cache
def take_part() -> None:
    """Wrap every engine that this process makes; once, whoever asks for it."""
    from ropeway.engines import open as opening

    made = opening.engine_for

    @functools.wraps(made)
    def recorded(*args: Any, **options: Any) -> Any:
        # A server's own calls are not the history of whoever asked it: those are written down at their end.
        engine = made(*args, **options)
        return engine if options.get("serving") else RecordingEngine(engine, recorder())

    opening.engine_for = recorded
