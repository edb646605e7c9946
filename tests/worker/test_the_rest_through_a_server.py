"""The other tests of workers as processes, through a server too: handlers, pills, limits, blocked loops, signals,
log lines, figures, spans, and a store that goes away behind the server.

Left out is what needs the store in the worker's own hands: transactions of handlers; chores that a worker does or
leaves (the server does them, `test_through_a_server.py` says so); and starts without an engine, which say what is
wrong with that engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.api import served as serving_kit
from tests.worker.kit import TASKS, RealWorker, StartWorker
from tests.worker.test_blockers import test_neighbours_of_a_blocker_succeed_and_it_runs_apart  # noqa: F401
from tests.worker.test_blocking import (  # noqa: F401
    test_a_process_that_takes_all_memory_ends_alone,
    test_five_leases_are_not_too_long,
    test_handlers_that_end_in_odd_ways_only_fail,
)
from tests.worker.test_children import test_a_child_that_recycles_hurries_when_the_worker_stops  # noqa: F401
from tests.worker.test_crashes import (  # noqa: F401
    test_a_pill_is_dead_after_three_deaths,
    test_many_pills_among_many_good_jobs,
)
from tests.worker.test_handlers import (  # noqa: F401
    serving,
    test_a_run_outside_its_window_waits_for_it,
    test_an_unknown_type_is_a_failed_attempt,
    test_arguments_that_do_not_fit_are_rejected_at_once,
    test_every_kind_of_handler_runs,
    test_no_line_is_lost_when_a_handler_tells_much_and_ends,
    test_progress_and_log_lines_are_seen_while_it_runs,
    test_results_middleware_and_shared_state,
    test_snooze_costs_no_attempt_and_retry_does,
    test_what_is_given_up,
)
from tests.worker.test_isolation import test_a_sigterm_to_every_process_lets_isolated_jobs_finish  # noqa: F401
from tests.worker.test_limits import *  # noqa: F403
from tests.worker.test_outage import (  # noqa: F401
    server,
    test_an_outage_longer_than_a_lease_loses_nothing,
    test_jobs_and_worker_outlive_an_outage,
)
from tests.worker.test_stopping import (  # noqa: F401
    test_a_blocked_loop_does_not_keep_the_worker,
    test_a_child_that_is_told_to_stop_is_replaced,
    test_sigterm_as_soon_as_something_runs_leaves_nothing_behind,
    test_sigusr1_does_no_harm_to_threads_that_run,
    test_sigusr1_tells_what_runs,
    test_sigusr1_while_a_child_starts_does_not_end_it,
)
from tests.worker.test_traces import test_a_run_is_a_child_of_the_span_that_enqueued_its_job  # noqa: F401
from tests.worker.test_visible import (  # noqa: F401
    test_health_readiness_and_metrics,
    test_the_log_is_json_with_the_promised_events,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The store behind the server: SQLite, unless the test names another."""
    return str(request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url"))


@pytest.fixture
def place(sqlite_url: str) -> str:
    return sqlite_url


class Servers:
    """A server before each store that workers are to work on, from the first of them on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = contextlib.ExitStack()
        #: By the store's URL: the server's, and a key that may only work.
        self._known: dict[str, tuple[str, str]] = {}

    def before(self, url: str) -> tuple[str, str]:
        if url not in self._known:
            folder = self._folder / f"server-{len(self._known)}"
            folder.mkdir()
            env = {"ROPEWAY_REAPER_INTERVAL": "0.2", "ROPEWAY_DISPATCHER_INTERVAL": "0.2"}
            served = self._running.enter_context(serving_kit.server(url, folder, env=env))
            # It has a loop of its own for that, and in this thread the test's is running.
            with ThreadPoolExecutor(1) as aside:
                token = aside.submit(served.key, "work").result()
            self._known[url] = f"http://127.0.0.1:{served.port}", token
        return self._known[url]

    def close(self) -> None:
        self._running.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    servers = Servers(tmp_path)
    yield servers
    servers.close()


@pytest.fixture
def start_worker(start_worker: StartWorker, servers: Servers, request: pytest.FixtureRequest) -> StartWorker:
    """Workers get a server's URL instead of the store's."""

    def start(
        *arguments: str, env: Mapping[str, str] | None = None, url: str | None = None, target: str = TASKS
    ) -> RealWorker:
        store = request.getfixturevalue("url") if url is None else url
        remote, token = servers.before(store)
        return start_worker(*arguments, env={"ROPEWAY_TOKEN": token, **(env or {})}, url=remote, target=target)

    return start
