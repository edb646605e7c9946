"""Runs one page of the documents in the current folder: `python -m tests.docs.run_page PAGE DATABASE_URL`.

Prints what it does; exits 1 at the first block that does not work as written.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.docs.pages import DATABASE, NOT_RUN, SERVER, Block, blocks, commands

ROPEWAY = [sys.executable, "-m", "ropeway"]
LONG_RUNNING = {"worker", "dev", "upkeep", "demo", "server"}
#: As text and as JSON.
STARTED = re.compile(rb"(worker|upkeep|server)[ _]started")
#: `$(cat FILE)` as the value of an export.
CAT = re.compile(r"\$\(cat ([^()$]+)\)")
#: How long a worker may take to come up, and any other command to end, on a busy machine.
PATIENCE = 60.0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class DoesNotWork(Exception):
    """Something on the page is not true."""


class Page:
    def __init__(self, page: Path, database: str) -> None:
        self._page = page
        self._database = database
        self._names: dict[str, Any] = {"__name__": "page"}
        self._runner = asyncio.Runner()
        #: One of each kind at a time, as a reader has a terminal for the server and one for a worker.
        self._servants: dict[str, subprocess.Popen[bytes]] = {}

    def run(self) -> None:
        try:
            for block in blocks(self._page):
                if block.language == "python":
                    self._python(block)
                elif block.language == "sh" and not block.skipped:
                    for line, command in commands(block):
                        self._command(line, self._real(command))
                elif block.language == "bash" and not block.skipped:
                    say(f"{self._page.name}:{block.line}: bash")
                    self._call(block.line, ["bash", "-euo", "pipefail", "-c", self._real(block.text)])
            self._runner.close()
            # Workers first: one that has a server is done with it when it stops.
            for kind in sorted(self._servants, key=lambda kind: kind == "server"):
                self._stop_servant(kind)
        except BaseException:
            self._give_up()
            raise

    def _real(self, text: str) -> str:
        real = text.replace(DATABASE, self._database) if self._database else text
        port = os.environ.get("ROPEWAY_PORT")
        return real.replace(SERVER, f"http://127.0.0.1:{port}") if port else real

    # ── Python ──

    def _python(self, block: Block) -> None:
        text = self._real(block.text)
        if block.file is not None and not block.skipped:
            say(f"{self._page.name}:{block.line}: write {block.file}")
            Path(block.file).parent.mkdir(parents=True, exist_ok=True)
            Path(block.file).write_text(text, encoding="utf-8")
            compile(text, block.file, "exec")
            return
        # Numbered as in the page, so that a traceback points there.
        code = compile(
            "\n" * (block.line - 1) + text, str(self._page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        )
        if block.skipped:
            return
        say(f"{self._page.name}:{block.line}: run")
        if code.co_flags & inspect.CO_COROUTINE:
            self._runner.run(self._awaited(code))
        else:
            exec(code, self._names)

    async def _awaited(self, code: Any) -> None:
        await eval(code, self._names)

    # ── Commands ──

    def _command(self, line: int, command: str) -> None:
        words = shlex.split(CAT.sub(r"'\g<0>'", command), comments=True)
        while words and "=" in words[0] and words[0].partition("=")[0].isidentifier():
            raise DoesNotWork(f"{self._page.name}:{line}: write `export {words[0]}` instead")
        program = words[0]
        if program in NOT_RUN:
            return
        say(f"{self._page.name}:{line}: {command}")
        if program == "export":
            name, _, value = words[1].partition("=")
            os.environ[name] = CAT.sub(lambda found: Path(found[1]).read_text().strip(), value)
        elif program == "ropeway" and words[1] in LONG_RUNNING and "--once" not in words and "--help" not in words:
            self._start_servant(line, words[1:])
        elif program == "ropeway":
            self._call(line, [*ROPEWAY, *words[1:]])
        elif program == "python":
            self._call(line, [sys.executable, *words[1:]])
        else:
            raise DoesNotWork(f"{self._page.name}:{line}: nobody knows how to run {program!r} here")

    def _call(self, line: int, arguments: list[str]) -> None:
        done = subprocess.run(arguments, timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise DoesNotWork(f"{self._page.name}:{line}: exit code {done.returncode}")

    def _start_servant(self, line: int, arguments: list[str]) -> None:
        """A command that stays: it has to say that it is at work, and to end cleanly when it is asked to."""
        kind = "server" if arguments[0] == "server" else "worker"
        self._stop_servant(kind)
        with _log_of(kind).open("wb") as log:
            servant = subprocess.Popen([*ROPEWAY, *arguments], stderr=log, stdin=subprocess.DEVNULL)
        self._servants[kind] = servant
        deadline = time.monotonic() + PATIENCE
        while not STARTED.search(_log_of(kind).read_bytes()):
            if servant.poll() is not None or time.monotonic() > deadline:
                raise DoesNotWork(f"{self._page.name}:{line}: it did not come up")
            time.sleep(0.02)

    def _give_up(self) -> None:
        for kind, servant in self._servants.items():
            servant.kill()
            servant.wait()
            say(f"What the {kind} logged:\n{_log_of(kind).read_text(errors='replace')}")

    def _stop_servant(self, kind: str) -> None:
        servant = self._servants.pop(kind, None)
        if servant is None:
            return
        servant.send_signal(signal.SIGTERM)
        if servant.wait(PATIENCE):
            raise DoesNotWork(f"{self._page.name}: a {kind} ended with exit code {servant.returncode}")


def _log_of(kind: str) -> Path:
    return Path(f"{kind}.log")


def main() -> None:
    page, database = Path(sys.argv[1]).resolve(), sys.argv[2]
    # As for a person who works in this folder.
    sys.path.insert(0, str(Path.cwd()))
    try:
        Page(page, database).run()
    except DoesNotWork as error:
        say(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
