"""The examples of docs/tasks.md are one program, and it runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tasks.md"


def test_the_examples_run_from_top_to_bottom(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) > 5
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("ROPEWAY_")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    first, *others = done.stdout.splitlines()
    assert re.fullmatch(r"[0-9a-f-]{36} queued", first)
    assert others == [
        "ship(): argument 'order' does not fit: expected int, got str",
        "cancelled",
        "cancelled",
    ]
