"""Runs the conformance suite in this process, without pytest: for engines that are meant to fail it.

A hundred runs of the suite through pytest would take minutes; this takes what the tests themselves take. It knows
what the suite uses: classes, coroutines, `parametrize`, skips, and fixtures that the caller hands over.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from ropeway.testing import conformance
from ropeway.testing.conformance.subject import Harness

#: A broken engine may never answer; no test of the suite takes nearly as long.
LIMIT_SECONDS = 3.0


class Case(NamedTuple):
    """One test with one set of parameters."""

    name: str
    kind: type
    method: str
    arguments: Mapping[str, Any]


class Failure(NamedTuple):
    """A case that failed, and why."""

    name: str
    error: BaseException

    @property
    def raised_in(self) -> str:
        """The file that raised it: a broken engine must fail a test, not break down itself."""
        return traceback.extract_tb(self.error.__traceback__)[-1].filename

    def __str__(self) -> str:
        return f"{self.name}: {type(self.error).__name__}: {str(self.error).splitlines()[:1]}"


class Outcome(NamedTuple):
    passed: int
    skipped: int
    failures: list[Failure]


def cases() -> list[Case]:
    """Every case of the suite, in the order of its classes and methods."""
    return [
        Case(f"{name}.{method}{suffix}", kind, method, arguments)
        for name in conformance.__all__
        if inspect.isclass(kind := getattr(conformance, name)) and name.startswith("Test")
        for method, function in vars(kind).items()
        if method.startswith("test_")
        for suffix, arguments in _parameters(function)
    ]


def _parameters(function: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    marks = [mark for mark in getattr(function, "pytestmark", ()) if mark.name == "parametrize"]
    for chosen in itertools.product(*(_values(*mark.args[:2]) for mark in marks)):
        arguments: dict[str, Any] = {}
        for some in chosen:
            arguments.update(some)
        suffix = f"[{', '.join(map(_label, arguments.values()))}]" if arguments else ""
        yield suffix, arguments


def _label(value: object) -> str:
    return str(getattr(value, "__name__", value))


def _values(names: str | tuple[str, ...] | list[str], values: Any) -> list[dict[str, Any]]:
    split = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    found = []
    for value in values:
        if hasattr(value, "marks") and hasattr(value, "values"):
            row = value.values
        else:
            row = (value,) if len(split) == 1 else value
        found.append(dict(zip(split, row, strict=True)))
    return found


def run_suite(
    harness: Harness, *, fixtures: Mapping[str, Any] | None = None, stop_at_first: bool = True
) -> Outcome:
    """Run the suite against an engine; raises if there is nothing to run."""
    found = cases()
    if len(found) < 200:
        raise AssertionError(f"only {len(found)} cases found: is this the conformance suite?")
    passed = skipped = 0
    failures: list[Failure] = []
    with asyncio.Runner() as runner:
        for case in found:
            try:
                runner.run(_run(case, {"harness": harness, **(fixtures or {})}))
            except pytest.skip.Exception:
                skipped += 1
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - whatever it is, the test failed
                failures.append(Failure(case.name, error))
                if stop_at_first:
                    break
            else:
                passed += 1
    return Outcome(passed, skipped, failures)


async def _run(case: Case, fixtures: Mapping[str, Any]) -> None:
    test = getattr(case.kind(), case.method)
    wanted = [name for name in inspect.signature(test).parameters if name not in case.arguments]
    missing = [name for name in wanted if name not in fixtures]
    if missing:
        raise LookupError(f"{case.name} wants fixtures that the driver was not given: {missing}")
    async with asyncio.timeout(LIMIT_SECONDS):
        result = test(**case.arguments, **{name: fixtures[name] for name in wanted})
        if inspect.isawaitable(result):
            await result
