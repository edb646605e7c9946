"""What the figures were measured on: without it they say nothing to anybody else."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: What decides Ropeway's figures: itself, and how it is measured. Results that are committed on the way do not.
MEASURED = ("src", "bench/peers", "bench/stores.py", "devtools")


def describe() -> dict[str, str]:
    """The machine in words, ready to be printed."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": _memory(),
        "system": f"{_distribution()}, {platform.system()} {platform.release()}, {platform.machine()}",
        "Python": platform.python_version(),
        "Ropeway": ", ".join((metadata.version("ropeway"), *commit(ROOT), *_beneath())),
        "fdatasync of 8 KiB": f"{fdatasync_milliseconds():.2f} ms (median)",
    }


def fdatasync_milliseconds(folder: Path | None = None, times: int = 101) -> float:
    """How long the disk takes to make 8 KiB durable, the floor under every commit; the median."""
    taken = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(times):
            file.seek(0)  # over what is there: as a log whose files are used again, no growth of the file
            file.write(b"x" * 8_192)
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return sorted(taken)[times // 2] * 1000


def commit(root: Path) -> Iterator[str]:
    """What was measured, where that can be told: the last commit that changed it, and if it was changed since."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        last = _git(root, "log", "-1", "--format=%h", "--", *MEASURED)
        dirty = _git(root, "status", "--porcelain", "--", *MEASURED)
        if last:
            yield f"commit {last}{'-dirty' if dirty else ''}"


def _git(root: Path, *words: str) -> str:
    told = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True, timeout=10)
    return told.stdout.strip()


def _beneath() -> Iterator[str]:
    """The libraries that decide its speed."""
    return (f"{name} {metadata.version(name)}" for name in ("asyncpg", "uvloop"))


def _processor() -> str:
    """The model's name: x86 tells it, other processors often do not."""
    for line in _lines("/proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return " ".join(value.split())
    return platform.processor() or platform.machine()


def _memory() -> str:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal:"):
            return f"{int(line.split()[1]) / 1024**2:.0f} GiB"
    return "unknown"


def _distribution() -> str:
    for line in _lines("/etc/os-release"):
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return "unknown distribution"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
