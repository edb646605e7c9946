"""Processes die, jobs are late, workers are told to stop: the same tests, the same facts, through a server."""

from __future__ import annotations

import pytest

from tests.worker.test_children import test_an_orphan_gives_back_what_would_not_stop  # noqa: F401
from tests.worker.test_crashes import (  # noqa: F401
    test_a_child_whose_parent_is_gone_finishes_and_exits,
    test_a_stopped_worker_that_goes_on_is_told_that_its_jobs_are_gone,
    test_no_innocent_dies_of_several_pills,
    test_what_only_waited_in_a_dead_child_is_released,
)
from tests.worker.test_deadlines import (  # noqa: F401
    test_a_cancelled_job_is_stopped_within_a_heartbeat,
    test_a_cancelled_suspect_is_stopped_too,
    test_a_handler_is_stopped_when_its_timeout_is_over,
    test_a_late_process_is_killed_alone,
    test_only_a_job_that_does_not_stop_is_lost_with_its_process,
)
from tests.worker.test_stopping import (  # noqa: F401
    test_a_second_signal_stops_now,
    test_sigterm_gives_back_what_does_not_finish_in_time,
    test_sigterm_is_in_time_whatever_handlers_do,
    test_sigtstp_is_quiet_until_sigcont,
)
from tests.worker.test_through_a_server import postgres_url, served, start_worker, url  # noqa: F401
from tests.worker.test_visible import test_a_worker_has_a_row_while_it_lives  # noqa: F401

pytestmark = pytest.mark.slow
