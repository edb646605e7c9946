"""The process that jobs' own processes are forked from: it has the app, and nothing that a fork must not share.

A child of the supervisor forks it from itself before it has threads, a loop or connections: it is there from
then on, shares its memory, and a job whose process has died runs again within milliseconds, also where a new
interpreter would wait seconds for the processor. Where that cannot be, or when it has died, it is a program of its
own.

Two sockets lead to it. Requests are datagrams that carry the end of a line for one new process each; news says
what was started and what ended. It ends when its worker does.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Collection
from typing import NoReturn

import msgspec

from ropeway.core.errors import RopewayError
from ropeway.runtime import printed
from ropeway.worker import isolated
from ropeway.worker.line import framed
from ropeway.worker.loading import load_program

#: A request is its number, in so many bytes.
NUMBER_BYTES = 8


class Started(msgspec.Struct, tag="started"):
    """The answer to a request, by its number: a process, or why there is none."""

    number: int
    pid: int = 0
    error: str = ""


class Ended(msgspec.Struct, tag="ended"):
    """A process is gone: its exit code, or a signal below zero, and the most memory it has held, in bytes."""

    pid: int
    exit_code: int
    peak_rss_bytes: int


def live(wanted: socket.socket, told: socket.socket, *, without: Collection[int] = ()) -> NoReturn:
    """Fork as often as it is asked to, and tell of every end, until the worker is gone.

    `without` are descriptors that it has inherited and are not for it.
    """
    try:
        for descriptor in without:
            os.close(descriptor)
        _live(wanted, told)
    except OSError:  # the worker is gone in the middle of it
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a fork must not go on with what its parent was at
        traceback.print_exc()
    finally:
        os._exit(1)


def _live(wanted: socket.socket, told: socket.socket) -> None:
    isolated.outlive_signals()
    woken, waking = socket.socketpair()
    for end in (woken, waking):
        end.setblocking(False)
    signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    for end in (wanted, told, woken):
        selector.register(end, selectors.EVENT_READ)
    while True:
        ready = {key.fileobj for key, _ in selector.select()}
        if told in ready:  # nothing is ever said there: it was closed
            os._exit(0)
        if woken in ready:
            woken.recv(1_024)
            _tell_of_ends(told)
        if wanted in ready:
            number, descriptors, *_ = socket.recv_fds(wanted, NUMBER_BYTES, 1)
            if not descriptors:  # not everywhere is the other end's close told by `told` first
                os._exit(0)
            with socket.socket(fileno=descriptors[0]) as end:
                end.set_inheritable(False)
                _fork(int.from_bytes(number, "big"), end, told, [wanted, told, woken, waking, selector])


def _tell_of_ends(told: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            # ru_maxrss is in KiB on Linux, in bytes on macOS.
            peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1_024)
            told.sendall(framed(Ended(pid, os.waitstatus_to_exitcode(status), peak)))


def _fork(
    number: int,
    end: socket.socket,
    told: socket.socket,
    inherited: Collection[socket.socket | selectors.BaseSelector],
) -> None:
    try:
        pid = os.fork()
    except OSError as error:
        told.sendall(framed(Started(number, error=str(error))))
        return
    if pid:
        told.sendall(framed(Started(number, pid)))
        return
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in inherited:
            each.close()
        isolated.main(end)
    except BaseException:  # noqa: BLE001 - it ends here, whatever it was
        traceback.print_exc()
    finally:
        os._exit(1)


def main() -> None:
    """`python -m ropeway.worker.stem REQUESTS NEWS TARGET`."""
    isolated.outlive_signals()
    # An app with threads is forked here all the same, as it always was: the log is not the place to say so.
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
    wanted, told = (socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:3])
    for end in (wanted, told):  # what the app starts while it is loaded would keep them open
        end.set_inheritable(False)
    with contextlib.suppress(RopewayError):  # told by the process that needs it
        load_program(sys.argv[3])
    printed.write_out()
    gc.freeze()
    live(wanted, told)


if __name__ == "__main__":
    main()
