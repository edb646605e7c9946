"""`ropeway init`: a file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropeway.cli import output
from ropeway.core.errors import NameTaken, RopewayError

STARTER = '''\
"""Tasks. Run them with `ropeway dev {file}`; it starts again when this file changes."""

from ropeway import Ropeway

app = Ropeway()  # jobs are kept in ./ropeway.db unless ROPEWAY_URL says otherwise


@app.task
async def hello(name: str = "world") -> str:
    """A task is a function. What it returns is the job's result."""
    return f"Hello, {{name}}!"


@app.task(max_attempts=3)
def divide(a: float, b: float) -> float:
    """An error is a failed attempt: it is tried again later, and after the last time the job is dead."""
    return a / b
'''

_NEXT = """\
Wrote {file}. Now, in this folder:

  ropeway dev {file}
      runs its tasks, and starts again when you change it

and in another terminal:

  ropeway enqueue hello name=Ada --app {file} --wait
  ropeway enqueue divide a=1 b=0 --app {file}
  ropeway jobs list
"""


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("tasks.py"),
) -> None:
    """Write a starter file with two tasks. Never overwrites."""
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(STARTER.format(file=file))
    except FileExistsError:
        raise NameTaken(
            f"{file} is there already, nothing was written", hint="name another file: ropeway init jobs.py"
        ) from None
    except OSError as error:
        raise RopewayError(f"{file} cannot be written: {error.strerror or error}") from None
    output.say(_NEXT.format(file=file).rstrip())
