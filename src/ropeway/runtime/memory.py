"""What processes hold."""

from __future__ import annotations

import os
from pathlib import Path


def held_bytes(pid: int) -> int | None:
    """What a process has in memory now; None where the system does not tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
