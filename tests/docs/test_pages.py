"""The pages of the documents work as they are written: see `pages.py` for how they are run."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.private import free_port
from tests.docs.pages import DATABASE, ROOT, blocks

DOCS = ROOT / "docs"

RUN = ("workers.md", "retries.md", "schedules.md", "coming-from-celery.md", "sdk.md")
RUN_ON_POSTGRES = ("transactions.md", "operations.md", "server.md")


def run_page(name: str, folder: Path, database: str = "") -> str:
    page = ROOT / name if name == "README.md" else DOCS / name
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROPEWAY_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.run_page", str(page), database],
        cwd=folder,
        env={
            **environment,
            "PYTHONPATH": str(ROOT),
            "ROPEWAY_WORKER_HTTP_PORT": "0",
            "ROPEWAY_PORT": str(free_port()),
            "XDG_CONFIG_HOME": str(folder),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("name", RUN)
def test_a_page_works_as_it_is_written(name: str, tmp_path: Path) -> None:
    run_page(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN_ON_POSTGRES)
def test_a_page_about_postgresql_works_as_it_is_written(name: str, tmp_path: Path, postgres_database: str) -> None:
    run_page(name, tmp_path, postgres_database)


def test_the_quickstart_works_as_pasted_into_an_empty_folder(tmp_path: Path, curl: str) -> None:
    said = run_page("README.md", tmp_path)
    assert "\nHello, Ada!\n" in said
    assert '\n"Hello, Bob!"\n' in said
    assert len(re.findall(r" succeeded +welcome ", said)) == 2
    # Over HTTP.
    assert '"payload":{"name": "Eve"},"attempt":0' in said
    assert '"payload":{"name":"Bob"}' in said
    assert '"queue":"default","paused":false,"counts":{' in said


@pytest.mark.slow
def test_getting_started_leads_from_nothing_to_postgresql(tmp_path: Path, postgres_database: str) -> None:
    said = run_page("getting-started.md", tmp_path, postgres_database)
    assert '\n"Hello, Ada!"\n' in said
    assert '\n"Dear Bob, we have received order 8."\n' in said
    assert re.search(r" (running|retrying|queued) +divide ", said)


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *DOCS.glob("*.md")]), ids=lambda page: page.name)
def test_every_python_example_is_python(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, f"{page.name}:{block.line}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_pages_that_are_not_run_on_postgresql_name_no_database() -> None:
    for name in RUN:
        assert DATABASE not in (DOCS / name).read_text()
