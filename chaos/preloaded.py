"""Small libraries that processes of a run are started with (LD_PRELOAD): compiled when they are needed."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

INJECT: Final = Path(__file__).with_name("inject")


class NoCompiler(Exception):
    """It cannot be built here."""


def built(name: str, folder: Path) -> Path:
    """The library made of `inject/NAME.c`, in that folder."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NoCompiler("no C compiler was found (apt install gcc libc6-dev)")
    library = folder / f"{name}.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(INJECT / f"{name}.c"), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoCompiler(f"{name}.c does not compile: {done.stderr[-400:]}")
    return library


def turn_clock(file: Path, seconds: float) -> None:
    """From now on the clock of everybody who has `skew` and this file (SKEW_FILE) is so many seconds off."""
    # In place, in one write: they have it mapped.
    with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as opened:
        opened.write(struct.pack("d", seconds))
