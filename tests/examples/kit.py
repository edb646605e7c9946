"""What a worker in any language has to do, as tests: against a real `ropeway server`, with real signals.

A subclass says how its worker is started, with handlers for three types: `greet` returns {"hello": name}
and refuses an empty name; `fail` fails with the message "as asked"; `hold` makes the file that its payload
names with `.held` behind it, waits until that file itself is there and returns true.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from devtools.waiting import wait_until
from ropeway.core.access import Limits
from ropeway.core.job import NewJob
from ropeway.engines.protocol import Engine
from tests.api.served import Served, server, sqlite_url

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 45.0


class Process:
    """One worker process, and what it wrote."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.log_path = log
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ROPEWAY_")}
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**clean, **env},
                start_new_session=True,
            )

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """This process alone, as the system would when memory is short: what it has started is on its own."""
        self.process.kill()
        self.process.wait()

    def sweep(self) -> None:
        """It and whatever it has left behind: they share a session."""
        self.kill()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getsid(int(folder.name)) == self.process.pid:
                    os.kill(int(folder.name), signal.SIGKILL)


class Fleet:
    """Workers of one server."""

    def __init__(self, served: Served, command: Sequence[str], folder: Path) -> None:
        self.served = served
        self.folder = folder
        self._command = command
        self._token = served.key("work")
        self.all = served.key("enqueue", "admin")
        self.started: list[Process] = []

    def start(self, name: str = "w1", *, token: str | None = None, **env: str) -> Process:
        """A worker that has reported itself."""
        made = Process(
            self._command,
            self.folder / f"{name}.log",
            {
                "ROPEWAY_URL": f"http://127.0.0.1:{self.served.port}",
                "ROPEWAY_TOKEN": token or self._token,
                "WORKER_ID": name,
                **env,
            },
        )
        self.started.append(made)
        if token is None:
            wait_until(lambda: name in self.names(), within=PATIENCE, what=f"{name} is listed")
        return made

    def names(self) -> list[str]:
        return [one["worker_id"] for one in self.get("/v1/workers")["workers"]]

    def get(self, path: str) -> Any:
        return self.served.ask("GET", path, token=self.all).json

    def enqueue(self, type: str, payload: Any = None, **fields: Any) -> str:
        answer = self.served.ask(
            "POST", "/v1/jobs", {"type": type, "payload": payload or {}, **fields}, token=self.all
        )
        assert answer.status == 201, answer.body
        return str(answer.json["id"])

    def held(self, file: Path) -> str:
        """A job whose handler runs until `file` is there."""
        id = self.enqueue("hold", {"file": str(file)})
        # Running is what the server says as soon as it is leased; this says that the handler has begun.
        begun = file.with_name(f"{file.name}.held")
        wait_until(begun.exists, within=PATIENCE, what="the handler runs")
        return id

    def job(self, id: str) -> Any:
        return self.get(f"/v1/jobs/{id}/detail")

    def until(self, id: str, fact: Callable[[Any], object], what: str) -> Any:
        def look() -> Any:
            job = self.job(id)
            return job if fact(job) else None

        try:
            return wait_until(look, within=PATIENCE, what=what)
        except AssertionError as error:
            logs = "\n".join(f"{one.log_path.name}:\n{one.log()}" for one in self.started)
            raise AssertionError(f"{error}\n{self.job(id)}\n{logs}") from None

    def until_status(self, id: str, status: str) -> Any:
        return self.until(id, lambda job: job["status"] == status, f"{id} is {status}")


class WorkerTests:
    """The tests; subclasses give `command`."""

    @pytest.fixture
    def fleet(self, tmp_path: Path, command: Sequence[str]) -> Iterator[Fleet]:
        with server(sqlite_url(tmp_path), tmp_path) as served:
            made = Fleet(served, command, tmp_path)
            try:
                yield made
            finally:
                for one in made.started:
                    one.sweep()

    def test_jobs_are_run_and_their_results_kept(self, fleet: Fleet) -> None:
        # A payload may hold what a careless reader would take for something else.
        odd = {
            "name": 'A"d\\a',
            "lease_token": "not this",
            "job": {"id": "nor this"},
            "text": "}],{\n\u00e9\u2028",
        }
        ids = [fleet.enqueue("greet", odd | {"n": n}) for n in range(5)]
        fleet.start()
        for id in ids:
            job = fleet.until_status(id, "succeeded")
            assert job["result"] == {"hello": 'A"d\\a'}
            assert (job["attempt"], job["lease_lost_count"]) == (1, 0)
            assert job["attempt_history"][0]["worker_id"] == "w1"

    def test_a_job_that_comes_later_wakes_the_long_poll(self, fleet: Fleet) -> None:
        fleet.start()
        began = time.monotonic()
        fleet.until_status(fleet.enqueue("greet", {"name": "Ada"}), "succeeded")
        # Far less than the twenty seconds that a poll waits.
        assert time.monotonic() - began < 10

    def test_a_handler_that_fails_ends_dead_with_its_attempts(self, fleet: Fleet) -> None:
        fleet.start()
        job = fleet.until_status(fleet.enqueue("fail", max_attempts=3, retry={"base": 0.05}), "dead")
        assert (job["dead_reason"], job["attempts"]) == ("max_attempts", 3)
        assert [one["outcome"] for one in job["attempt_history"]] == ["failed"] * 3
        assert "as asked" in job["last_error"]["message"]

    def test_a_type_without_a_handler_is_a_failed_attempt(self, fleet: Fleet) -> None:
        fleet.start()
        job = fleet.until_status(fleet.enqueue("strange", max_attempts=1), "dead")
        assert job["last_error"]["type"] == "unknown_type"

    def test_what_is_refused_by_its_handler_is_not_tried_again(self, fleet: Fleet) -> None:
        fleet.start()
        job = fleet.until_status(fleet.enqueue("greet", {"name": ""}, max_attempts=5), "dead")
        assert (job["dead_reason"], job["attempts"]) == ("rejected", 1)

    def test_heartbeats_keep_a_job_that_takes_longer_than_its_lease(self, fleet: Fleet) -> None:
        fleet.start(LEASE_SECONDS="2")
        go = fleet.folder / "go"
        id = fleet.held(go)
        first = fleet.job(id)
        # A whole lease and more after the first one had run out.
        later = _seconds_after(first["locked_until"], 3)
        fleet.until(id, lambda job: (job["locked_until"] or "") > later, "the lease was extended")
        go.touch()
        job = fleet.until_status(id, "succeeded")
        assert (job["attempt"], job["lease_lost_count"]) == (1, 0)

    def test_another_worker_takes_over_from_one_that_was_killed(self, fleet: Fleet) -> None:
        first = fleet.start("first", LEASE_SECONDS="2")
        go = fleet.folder / "go"
        id = fleet.held(go)
        assert fleet.job(id)["locked_by"] == "first"
        first.kill()
        go.touch()
        fleet.start("second", LEASE_SECONDS="2")
        job = fleet.until_status(id, "succeeded")
        history = [(one["outcome"], one["worker_id"]) for one in job["attempt_history"]]
        assert history == [("lost", "first"), ("succeeded", "second")]
        assert job["lease_lost_count"] == 1

    def test_a_stop_lets_a_job_finish(self, fleet: Fleet) -> None:
        worker = fleet.start()
        go = fleet.folder / "go"
        id = fleet.held(go)
        worker.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "stopping" in worker.log(), within=PATIENCE)
        later = fleet.enqueue("greet", {"name": "Ada"})
        go.touch()
        assert worker.process.wait(PATIENCE) == 0
        assert fleet.job(id)["status"] == "succeeded"
        assert fleet.job(later)["attempt"] == 0
        assert fleet.names() == []

    def test_a_stop_gives_back_what_does_not_finish(self, fleet: Fleet) -> None:
        worker = fleet.start(DRAIN_SECONDS="0.2")
        id = fleet.held(fleet.folder / "never")
        assert worker.stop() == 0, worker.log()
        job = fleet.job(id)
        assert (job["status"], job["attempts"], job["lease_lost_count"]) == ("queued", 0, 0)
        assert job["events"][-1]["event"] == "job.released"

    def test_an_idle_worker_stops_at_once(self, fleet: Fleet) -> None:
        worker = fleet.start()
        began = time.monotonic()
        assert worker.stop() == 0
        assert time.monotonic() - began < 10
        assert fleet.names() == [], worker.log()

    def test_a_job_that_is_no_longer_ours_is_stopped(self, fleet: Fleet) -> None:
        worker = fleet.start(LEASE_SECONDS="2", SLOTS="1")
        id = fleet.held(fleet.folder / "never")
        answer = fleet.served.ask("POST", f"/v1/jobs/{id}/cancel", {}, token=fleet.all)
        assert (answer.status, answer.json["status"]) == (202, "cancelled")
        wait_until(lambda: "the lease is lost" in worker.log(), within=PATIENCE, what="the worker has heard of it")
        # Its only slot is free again.
        fleet.until_status(fleet.enqueue("greet", {"name": "Ada"}), "succeeded")
        assert fleet.job(id)["status"] == "cancelled"

    def test_it_waits_as_long_as_it_is_asked_to(self, fleet: Fleet) -> None:
        slow = Limits(rate_per_second=1, burst=1)
        token = fleet.served.key("work", tenant="slow", limits=slow)
        ids = fleet.served.on_engine(_three_greetings)
        worker = fleet.start(token=token, SLOTS="1")
        for id in ids:
            state = partial(fleet.served.on_engine, partial(_state, id))
            wait_until(lambda state=state: state() == "succeeded", within=PATIENCE, what=f"{id} succeeded")
        assert "429" in worker.log() or "rate_limited" in worker.log()

    def test_an_outcome_is_kept_until_the_server_is_back(self, fleet: Fleet) -> None:
        fleet.start(LEASE_SECONDS="30")
        go = fleet.folder / "go"
        id = fleet.held(go)
        fleet.served.process.kill()
        fleet.served.process.wait()
        go.touch()
        fleet.served.process = fleet.served._start()
        fleet.served.wait_until_up()
        job = fleet.until_status(id, "succeeded")
        assert job["attempt"] == 1

    def test_a_key_that_is_not_good_ends_it(self, fleet: Fleet) -> None:
        worker = fleet.start(token="rw_live_nobody_nothing_0")
        assert worker.process.wait(PATIENCE) == 1
        assert "unauthenticated" in worker.log()
        assert "rw_live_nobody" not in worker.log()


async def _three_greetings(engine: Engine) -> list[Any]:
    jobs = [NewJob("greet", b'{"name":"Ada"}') for _ in range(3)]
    return [made.id for made in await engine.enqueue(jobs, tenant="slow")]


async def _state(id: Any, engine: Engine) -> str:
    (job,) = await engine.get([id], tenant="slow")
    return "" if job is None else job.state.value


def _seconds_after(time: str, seconds: float) -> str:
    """A time of the API so much later, in the same form."""
    at = datetime.fromisoformat(time) + timedelta(seconds=seconds)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
