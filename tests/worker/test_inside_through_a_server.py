"""Workers inside the test's process whose engine is a server: caps, leases that come back, notes.

Left out is what puts an engine of its own, or none but memory, under the worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.served import server
from tests.worker.test_caps import (  # noqa: F401
    test_a_signal_fills_all_the_room_under_a_cap,
    test_a_worker_whose_queues_are_all_at_their_cap_is_ready,
    test_room_under_a_cap_is_filled_at_once,
    test_weights_hold_for_queues_with_a_cap,
)
from tests.worker.test_leases_kept import (  # noqa: F401
    test_a_job_leased_again_while_its_old_run_goes_on_ends,
    test_a_revocation_told_again_does_not_stop_the_next_run,
    test_what_would_not_stop_is_given_back_at_the_end,
)
from tests.worker.test_notes import test_an_odd_number_fails_its_own_handler_or_is_converted  # noqa: F401

pytestmark = pytest.mark.slow


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The server's. It asks for no key, because a URL is all that these tests give their engine."""
    folder = tmp_path / "server"
    folder.mkdir()
    with server(request.getfixturevalue(f"{request.param}_url"), folder, "--no-auth") as served:
        yield f"http://127.0.0.1:{served.port}"
