"""How a command that goes on is asked to stop."""

from __future__ import annotations

import asyncio
import signal

STOPPING = (signal.SIGINT, signal.SIGTERM)


def stop_on_signals() -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM; the second one finds Python's own handlers and ends the process."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopping.set()
        for number in STOPPING:
            loop.remove_signal_handler(number)

    for number in STOPPING:
        loop.add_signal_handler(number, stop)
    return stopping
