"""The fixtures in a project of their own, as users have them; and every example of docs/testing.md."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
#: The files that the page shows, by name.
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))

TASKS = """
from ropeway import Ropeway

app = Ropeway("sqlite:////nowhere/at/all.db")


@app.task
def greet(name: str) -> str:
    if name == "nobody":
        raise LookupError(name)
    return f"hello {name}"
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(tasks=TASKS)
    return pytester


def run(project: pytest.Pytester, *args: str) -> pytest.RunResult:
    return project.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider", *args)


def write(project: pytest.Pytester, *names: str) -> None:
    for name in names:
        (project.path / name).write_text(FILES[name], encoding="utf-8")


def test_it_is_a_plugin_that_pytest_finds_by_itself() -> None:
    (found,) = [entry for entry in entry_points(group="pytest11") if entry.name == "pytest_ropeway"]
    assert found.value == "pytest_ropeway"


@pytest.mark.slow
def test_a_project_that_does_not_use_it_pays_nothing(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_other="""
        import sys

        def test_other():
            assert "pytest_ropeway" in sys.modules
            assert "ropeway" not in sys.modules
            assert "msgspec" not in sys.modules
        """
    )
    # Naming it beside its entry point is no mistake.
    run(project, "-p", "pytest_ropeway").assert_outcomes(passed=1)


def test_the_app_is_named_by_a_fixture_or_in_the_test(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_named="""
        import pytest
        from tasks import app, greet

        @pytest.fixture
        def ropeway_app():
            return app

        def test_named(ropeway):
            greet.enqueue("ada")
            assert ropeway.drain().succeeded == 1

        @pytest.mark.parametrize("n", [1, 2])
        def test_each_test_starts_empty(ropeway, n):
            greet.enqueue("ada")
            assert len(ropeway.enqueued()) == 1

        @pytest.mark.anyio
        @pytest.mark.parametrize("anyio_backend", ["asyncio"])
        async def test_async(ropeway, anyio_backend):
            job = await greet.aenqueue("ada")
            await ropeway.adrain()
            assert await job.result() == "hello ada"
        """,
        test_used="""
        from tasks import app, greet

        def test_used(ropeway):
            ropeway.use(app)
            greet.enqueue("ada")
            assert ropeway.drain().succeeded == 1
        """,
    )
    run(project).assert_outcomes(passed=5)


@pytest.mark.slow
def test_failures_point_to_the_test_and_to_the_handler(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_failing="""
        from tasks import app, greet

        def test_assert(ropeway):
            ropeway.use(app)
            greet.enqueue("ada")
            ropeway.assert_enqueued(greet, "bob")

        def test_drain(ropeway):
            ropeway.use(app)
            greet.enqueue("nobody")
            ropeway.drain()
        """
    )
    result = run(project)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            '>       ropeway.assert_enqueued(greet, "bob")',
            "E       AssertionError: greet(name='bob') was not enqueued",
            "E       enqueued was 1 job:",
            "E          1. greet(name='ada')  queue default  queued",
            "E            name: expected 'bob', got 'ada'",
            "test_failing.py:6: AssertionError",
            ">       ropeway.drain()",
            ">           raise LookupError(name)",
            "E           raised by greet(name='nobody'), attempt 1; the job is retrying now*",
        ]
    )
    # Between the test's line and the handler's there is nothing of ours to read.
    result.stdout.no_re_match_line(r".*ropeway/\w+/\w+\.py:\d+")


def test_the_examples_of_the_documentation_work(pytester: pytest.Pytester) -> None:
    assert len(FILES) == PAGE.count("```python")
    write(pytester, *FILES)
    tests = sum(len(re.findall(r"^ *(?:async )?def test_", code, re.MULTILINE)) for code in FILES.values())
    assert tests >= 12
    run(pytester).assert_outcomes(passed=tests)
    assert not (pytester.path / "ropeway.db").exists()


@pytest.mark.slow
def test_the_failure_that_the_documentation_shows_is_the_one_you_get(pytester: pytest.Pytester) -> None:
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    write(pytester, "tasks.py", "conftest.py")
    pytester.makepyfile(
        test_shown="""
        from tasks import send_mail, welcome

        def test_shown(ropeway):
            welcome.enqueue("ada@example.com")
            ropeway.drain(queue="default")
            ropeway.assert_enqueued(send_mail, "bob@example.com")
        """
    )
    printed = [line.removeprefix("E").removeprefix("       ").rstrip() for line in run(pytester).outlines]
    wanted = shown.rstrip().splitlines()
    start = printed.index(wanted[0])
    assert printed[start : start + len(wanted)] == wanted
