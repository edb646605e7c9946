"""What every test may rely on: services, async tests, a time limit, and an honest "not run".

Services are started (or installed) only when a selected test uses their fixture, once per run, also under
pytest-xdist. A service that cannot be had skips its tests with "NOT RUN: why", a section at the end lists
them, and with ROPEWAY_TEST_STRICT=1 the run fails.

    postgres_database          URL of an empty database of this test's own
    postgres_module_database   the same, one per module
    make_postgres_database     factory: () or (template="name") → URL
    postgres_server            the server behind them (devtools.postgres.PostgresServer)
    pgbouncer                  a transaction pool before that server; pgbouncer.url_for(database) → URL
    pgbouncer_database         URL of `postgres_database` through that pool
    node, curl, chromium       where the program is

`async def test_...` runs under asyncio.run. A test that takes longer than its limit fails with the stack of
every task; `@pytest.mark.limit(seconds)` sets another limit than 120 s (900 s for tests marked slow).
"""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import inspect
import io
import os
import signal
import time
import traceback
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import hypothesis
import pytest

from devtools.pgbouncer import PrivatePgBouncer
from devtools.postgres import PostgresServer
from devtools.private import NotAvailable
from devtools.shared import Broker, ask, obtain

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A run that was started in the background has SIGINT ignored, and what tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterator

STRICT = os.environ.get("ROPEWAY_TEST_STRICT", "") not in ("", "0")

#: Opens the reason of every skip that the summary must shout about.
NOT_RUN = "NOT RUN: "

LIMIT_SECONDS = 120.0
SLOW_LIMIT_SECONDS = 900.0

#: How long a test past its limit may take to clean up before its process is ended.
GRACE_SECONDS = 15.0

# ── Hypothesis ──

# No deadlines: they measure the machine, not the code. print_blob: a failure elsewhere can be replayed here.
hypothesis.settings.register_profile("default", deadline=None)
# The gate repeats the same examples: whether a change may land is no matter of luck. Runs by hand draw new ones.
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.register_profile("slow", deadline=None, print_blob=True, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("ROPEWAY_TEST_HYPOTHESIS", "default"))

# ── Services ──

#: Which services a fixture needs, so that they are there before the clock of the first test starts.
NEEDS = {
    "postgres_server": ("postgres",),
    "pgbouncer": ("postgres", "pgbouncer"),
    "node": ("node",),
    "curl": ("curl",),
    "chromium": ("chromium",),
}

BROKER = pytest.StashKey[Broker]()
SERVICES = pytest.StashKey["Services"]()


class Services:
    """What this process was told about each service, asked once: an answer, or why there is none."""

    def __init__(self, config: pytest.Config) -> None:
        self._broker: tuple[str, str] | None = getattr(config, "workerinput", {}).get("ropeway_broker")
        self._answers: dict[str, str | NotAvailable] = {}

    def get(self, service: str) -> str:
        if service not in self._answers:
            try:
                self._answers[service] = ask(*self._broker, service) if self._broker else obtain(service)
            except NotAvailable as error:
                self._answers[service] = error
        answer = self._answers[service]
        if isinstance(answer, NotAvailable):
            raise answer
        return answer

    def require(self, service: str) -> str:
        """The answer, or the end of the test that asked: "not run"."""
        try:
            return self.get(service)
        except NotAvailable as error:
            pytest.skip(f"{NOT_RUN}{service}: {error}")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "limit(seconds): how long this test may take; 120 s, or 900 s if slow")
    config.stash[SERVICES] = Services(config)
    # Capturing is suspended here, so this is the terminal itself: for the last words of a hung process.
    config.stash[LAST_WORDS] = os.fdopen(os.dup(2), "w")


def pytest_unconfigure(config: pytest.Config) -> None:
    if BROKER in config.stash:
        config.stash[BROKER].close()
    if LAST_WORDS in config.stash:
        config.stash[LAST_WORDS].close()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """On pytest-xdist's controller, before each worker starts: tell it whom to ask."""
    stash = node.config.stash
    if BROKER not in stash:
        stash[BROKER] = Broker()
    node.workerinput["ropeway_broker"] = (stash[BROKER].address, stash[BROKER].key)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start what the selected tests need now: an installation must not count against a test's limit."""
    if session.config.option.collectonly:
        return
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    for service in dict.fromkeys(service for name in NEEDS if name in wanted for service in NEEDS[name]):
        try:
            session.config.stash[SERVICES].get(service)
        except NotAvailable:
            continue  # each test that needs it says so


class MakeDatabase(Protocol):
    def __call__(self, *, template: str = "template0") -> str: ...


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> PostgresServer:
    """The run's PostgreSQL (fsync on), shared by all tests: use a database of your own in it."""
    return PostgresServer(request.config.stash[SERVICES].require("postgres"))


@pytest.fixture(scope="session")
def make_postgres_database(postgres_server: PostgresServer) -> Iterator[MakeDatabase]:
    """Makes databases: the URL of an empty one, or of a copy of the one named `template`."""
    made: list[str] = []

    def make(*, template: str = "template0") -> str:
        name = f"ropeway_test_{uuid.uuid4().hex[:16]}"
        url = postgres_server.create_database(name, template=template)
        made.append(name)
        return url

    yield make
    # A private server is deleted as a whole, and a drop costs 0.2 s; somebody else's is left as it was.
    if os.environ.get("ROPEWAY_TEST_POSTGRES_URL"):
        for name in made:
            postgres_server.drop_database(name)


@pytest.fixture
def postgres_database(make_postgres_database: MakeDatabase) -> str:
    """URL of an empty database that only this test uses."""
    return make_postgres_database()


@pytest.fixture(scope="module")
def postgres_module_database(make_postgres_database: MakeDatabase) -> str:
    """URL of a database that only this module uses, empty at its first test."""
    return make_postgres_database()


@pytest.fixture(scope="session")
def pgbouncer(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[PrivatePgBouncer]:
    """A pgbouncer in transaction mode in front of `postgres_server`, one per test process."""
    program = request.config.stash[SERVICES].require("pgbouncer")
    with PrivatePgBouncer(postgres_server.url, program=Path(program)) as bouncer:
        yield bouncer


@pytest.fixture
def pgbouncer_database(postgres_database: str, pgbouncer: PrivatePgBouncer) -> str:
    """URL of this test's `postgres_database`, through the pool."""
    return pgbouncer.url_for(urlsplit(postgres_database).path.lstrip("/"))


@pytest.fixture(scope="session")
def node(request: pytest.FixtureRequest) -> str:
    """Where the program is; installed if it is missing."""
    return request.config.stash[SERVICES].require("node")


@pytest.fixture(scope="session")
def curl(request: pytest.FixtureRequest) -> str:
    """Where the program is; installed if it is missing."""
    return request.config.stash[SERVICES].require("curl")


@pytest.fixture(scope="session")
def chromium(request: pytest.FixtureRequest) -> str:
    """Where the program is; installed if it is missing."""
    return request.config.stash[SERVICES].require("chromium")


# ── Not run ──


def tests_not_run(config: pytest.Config) -> list[tuple[str, str]]:
    """(test, reason) of every test whose service was missing; empty in workers, which show no results."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    found = []
    for report in reporter.stats.get("skipped", ()) if reporter else ():
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if NOT_RUN in reason:
            found.append((report.nodeid, reason.partition(NOT_RUN)[2]))
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if STRICT and tests_not_run(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    missing = tests_not_run(config)
    if not missing:
        return
    colour = {"red": True} if STRICT else {"yellow": True}
    terminalreporter.section(f"{len(missing)} TESTS NOT RUN", sep="!", bold=True, **colour)
    tests_by_reason: dict[str, list[str]] = {}
    for test, reason in missing:
        tests_by_reason.setdefault(reason, []).append(test)
    for reason, tests in tests_by_reason.items():
        terminalreporter.line(reason, bold=True, **colour)
        for test in tests:
            terminalreporter.line(f"    {test}")
    if STRICT:
        terminalreporter.line("This fails the run: ROPEWAY_TEST_STRICT is set.", bold=True, **colour)
    else:
        terminalreporter.line("ROPEWAY_TEST_STRICT=1 would make this a failure.")


# ── Async tests and the time limit ──

LAST_WORDS = pytest.StashKey[io.TextIOWrapper]()


def limit_of(item: pytest.Item) -> float:
    if marker := item.get_closest_marker("limit"):
        return float(marker.args[0])
    return SLOW_LIMIT_SECONDS if item.get_closest_marker("slow") else LIMIT_SECONDS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """The last resort, for what no exception can end: a blocked loop, a thread that never returns, C code.

    Every thread's stack is printed and the process ends; pytest-xdist names the test and starts a new worker.
    """
    last_words = item.config.stash[LAST_WORDS]
    faulthandler.dump_traceback_later(limit_of(item) + GRACE_SECONDS, exit=True, file=last_words)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    limit = limit_of(pyfuncitem)
    if inspect.iscoroutinefunction(test):
        arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        run_within(test(**arguments), limit)
        return True
    # @given makes a plain function of an async one; what it calls for each example is the async one still.
    inner = getattr(getattr(test, "hypothesis", None), "inner_test", None)
    if inspect.iscoroutinefunction(inner):
        test.hypothesis.inner_test = run_each_within(inner, limit)
    return None


def run_each_within(test: Callable[..., Coroutine[Any, Any, None]], seconds: float) -> Callable[..., None]:
    """All examples together have the time of one test."""
    deadline = time.monotonic() + seconds

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_within(test(*args, **kwargs), max(deadline - time.monotonic(), 0.1))

    return run


def run_within(test: Coroutine[Any, Any, None], seconds: float) -> None:
    """Run it on a loop of its own; past the limit, cancel it and fail with the stack of every task."""

    async def watch() -> None:
        running = asyncio.ensure_future(test)
        await asyncio.wait({running}, timeout=seconds)
        if running.done():
            running.result()
            return
        stacks = stacks_of_all_tasks(but=asyncio.current_task())
        running.cancel()
        await asyncio.wait({running}, timeout=GRACE_SECONDS / 3)
        pytest.fail(f"took longer than {seconds:g} s. Its tasks were here:\n{stacks}", pytrace=False)

    asyncio.run(watch())


def stacks_of_all_tasks(*, but: asyncio.Task[Any] | None) -> str:
    text = io.StringIO()
    for task in sorted(asyncio.all_tasks() - {but}, key=lambda task: task.get_name()):
        text.write(f"\n{task.get_name()}: {getattr(task.get_coro(), '__qualname__', task.get_coro())}\n")
        # Task.get_stack gives only the outermost frame; the innermost tells what the task waits for.
        awaited: Any = task.get_coro()
        while awaited is not None:
            frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
            if frame is not None:
                traceback.print_list(traceback.extract_stack(frame, limit=1), file=text)
            awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return text.getvalue()
