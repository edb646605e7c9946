"""docs/http.md: its walk works as pasted, and its tables are the server's routes, no more and no less."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from devtools.private import free_port
from devtools.waiting import wait_until
from ropeway.api.routes import ROUTES
from ropeway.core.access import Scope
from ropeway.core.states import EventName
from ropeway.wire.models import Job
from ropeway.wire.requests import EnqueueBody
from tests.docs.pages import ROOT, Block, blocks

PAGE = ROOT / "docs" / "http.md"
TEXT = PAGE.read_text(encoding="utf-8")
WALK = TEXT[: TEXT.index("\n## Everywhere\n")]
PATIENCE = 60.0


# ── The walk ──


def walk() -> list[Block]:
    last = WALK.count("\n")
    return [block for block in blocks(PAGE) if block.line < last]


@contextmanager
def served(command: str, folder: Path, env: dict[str, str]) -> Iterator[None]:
    """What the reader has in the first terminal."""
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=folder, env=env, stdout=log, stderr=log)
    try:
        wait_until(
            lambda: _answers(env["ROPEWAY_PORT"]) or process.poll() is not None, within=PATIENCE, what="it is up"
        )
        assert process.poll() is None, (folder / "server.log").read_text()
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE)
    assert code == 0, (folder / "server.log").read_text()


def _answers(port: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=10) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """That of a person who has installed Ropeway, in an empty folder; the port is the only thing that is ours."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROPEWAY")}
    here = str(Path(sys.executable).parent)
    return {
        **clean,
        "PATH": f"{here}{os.pathsep}{clean['PATH']}",
        "ROPEWAY_PORT": str(free_port()),
        "HOME": str(tmp_path),
    }


def test_the_walk_works_as_it_is_pasted(tmp_path: Path, curl: str, environment: dict[str, str]) -> None:
    first, *others = walk()
    assert first.language == "sh"
    assert shutil.which("ropeway", path=environment["PATH"])
    pasted = [block for block in others if block.language == "bash"]
    assert len(pasted) > 10
    script = "".join(f"{block.text}\nprintf '\\n@@ %d\\n' {block.line}\n" for block in pasted)
    with served(first.text.strip(), tmp_path, environment):
        done = subprocess.run(
            ["bash"],
            input=script,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    said = {int(line): text for text, line in re.findall(r"(.*?)\n@@ (\d+)\n", done.stdout, re.DOTALL)}
    assert set(said) == {block.line for block in pasted}
    shown = 0
    for block, following in pairwise(others):
        if block.language == "bash" and following.language == "json":
            answers = [json.loads(line) for line in said[block.line].splitlines() if line.startswith("{")]
            assert matches(json.loads(following.text), answers[-1]), f"http.md:{following.line}: {answers[-1]}"
            shown += 1
    assert shown >= 9
    _check_stream(said[pasted[-1].line], others[-1])


def _check_stream(said: str, shown: Block) -> None:
    ids = re.findall(r"^id: (\d+)\nevent: (\S+)$", said, re.MULTILINE)
    names = ["enqueued", "started", "failed", "started", "dlq", "retried", "started", "completed"]
    assert ids == [(str(n), f"job.{name}") for n, name in enumerate(names, 1)]
    for told in re.findall(r"^id: (\d+)\nevent: (\S+)$", shown.text, re.MULTILINE):
        assert told in ids


def matches(shown: Any, real: Any) -> bool:
    """Whether what the page shows is part of what came; `"..."` stands for anything that is there."""
    if shown == "...":
        return real is not None
    if isinstance(shown, dict):
        return isinstance(real, dict) and all(
            name in real and matches(value, real[name]) for name, value in shown.items()
        )
    if isinstance(shown, list):
        return (
            isinstance(real, list)
            and len(shown) == len(real)
            and all(matches(one, other) for one, other in zip(shown, real, strict=True))
        )
    return bool(shown == real and type(shown) is type(real))


# ── The tables ──

CALL = re.compile(r"`(GET|POST|PUT|PATCH|DELETE) (/[^`\s?]*)`")
ROW = re.compile(r"^\| `(GET|POST|PUT|PATCH|DELETE) (/[^`\s]*)` \| ([^|]*) \|", re.MULTILINE)

SERVED = {(str(route.method), route.path): route for route in ROUTES if not route.hidden}


def test_every_route_has_its_row_and_every_row_its_route() -> None:
    rows = [(method, path) for method, path, _ in ROW.findall(TEXT)]
    assert sorted(rows) == sorted(set(rows)), "a call has two rows"
    assert set(rows) == set(SERVED)


def test_no_call_is_named_anywhere_that_does_not_exist() -> None:
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]):
        for method, path in CALL.findall(page.read_text(encoding="utf-8")):
            assert (method, path) in SERVED, f"{page.name} names {method} {path}"


@pytest.mark.parametrize("call", sorted(SERVED), ids=" ".join)
def test_a_row_tells_the_scopes_of_its_route(call: tuple[str, str]) -> None:
    told = next(scopes for method, path, scopes in ROW.findall(TEXT) if (method, path) == call)
    scopes = set(SERVED[call].scopes)
    if scopes == set(Scope):
        assert told.strip() == "any"
    elif not scopes:
        assert told.strip() == "none"
    else:
        assert {Scope(word) for word in re.findall(r"`([^`]+)`", told)} == scopes


def test_older_paths_are_those_and_only_those_of_their_section() -> None:
    older = TEXT[TEXT.index("\n## Older paths\n") :]
    rows = {(method, path) for method, path, _ in ROW.findall(older)}
    assert rows == {call for call, route in SERVED.items() if route.compat}


def test_every_field_of_a_job_to_enqueue_is_told() -> None:
    table = TEXT[TEXT.index("The fields of a job to enqueue:") : TEXT.index("Two spellings of one thing")]
    for field in EnqueueBody.__struct_fields__:
        assert f"`{field}`" in table, field


def test_the_job_that_is_shown_has_all_fields() -> None:
    section = TEXT[TEXT.index("\n## The job\n") :]
    shown = json.loads(re.search(r"```json\n(.*?)```", section, re.DOTALL)[1])  # type: ignore[index]
    assert set(shown) == set(Job.__struct_fields__)


def test_every_event_and_every_scope_is_told() -> None:
    for event in EventName:
        assert f"\n| `{event}` |" in TEXT, event
    for scope in Scope:
        assert f"\n| `{scope}` |" in TEXT, scope


def test_every_reply_of_a_route_is_told_in_its_row() -> None:
    """The good statuses; 200 is also the head of some tables."""
    for (method, path), route in SERVED.items():
        if route.compat or "{verb}" in path:
            continue
        line = next(line for line in TEXT.splitlines() if line.startswith(f"| `{method} {path}` |"))
        for status in route.replies:
            if status not in (200, 201) or (status == 201 and 200 in route.replies):
                assert str(status) in line, f"{method} {path} may answer {status}"
