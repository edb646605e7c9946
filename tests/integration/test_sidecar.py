"""A worker's HTTP port, asked over real sockets: health, readiness, metrics, and ports that are taken."""

from __future__ import annotations

import http.client
import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from devtools.waiting import wait_until
from ropeway.core.errors import ConfigurationError
from ropeway.core.query import QueueStats
from ropeway.core.states import State
from ropeway.observability import logs, names
from ropeway.observability.metrics import CATALOGUE, CONTENT_TYPE, Tally, WorkerMetrics
from ropeway.observability.tally import Produced
from ropeway.worker.sidecar import Sidecar


class Output(io.BytesIO):
    def told(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]


@pytest.fixture(autouse=True)
def output() -> Iterator[Output]:
    output = Output()
    logs.configure("DEBUG", "json", output)
    yield output
    logs.unconfigure()


class Worker:
    """What the port tells of."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.metrics = WorkerMetrics(Produced())
        self.page: Callable[[], bytes] = self.metrics.render

    def sidecar(self, port: int = 0, host: str = "127.0.0.1") -> Sidecar:
        return Sidecar(
            host,
            port,
            health=lambda: {"children": 2},
            ready=lambda: self.reasons,
            metrics=lambda: self.page(),
            observe=self.metrics.http,
        )


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def sidecar(worker: Worker) -> Iterator[Sidecar]:
    with worker.sidecar() as sidecar:
        yield sidecar


def ask(
    sidecar: Sidecar, path: str, method: str = "GET", host: str = "127.0.0.1"
) -> tuple[int, dict[str, str], bytes]:
    assert sidecar.port is not None
    connection = http.client.HTTPConnection(host, sidecar.port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def ask_json(sidecar: Sidecar, path: str, **how: Any) -> tuple[int, Any]:
    status, headers, body = ask(sidecar, path, **how)
    assert headers["content-type"] == "application/json"
    return status, json.loads(body)


class TestPages:
    def test_health_says_that_it_is_alive(self, sidecar: Sidecar) -> None:
        assert ask_json(sidecar, "/health") == (200, {"status": "ok", "children": 2})

    def test_ready_is_another_answer_than_health(self, sidecar: Sidecar, worker: Worker) -> None:
        assert ask_json(sidecar, "/ready") == (200, {"status": "ready"})
        worker.reasons = ["the engine is away", "quiet"]
        status, document = ask_json(sidecar, "/ready")
        assert (status, document["reasons"]) == (503, ["the engine is away", "quiet"])
        assert ask_json(sidecar, "/health")[0] == 200
        worker.reasons = []
        assert ask_json(sidecar, "/ready")[0] == 200

    def test_metrics_can_be_read_by_prometheus(self, sidecar: Sidecar, worker: Worker) -> None:
        child = Tally(Produced())
        child.leased(2)
        child.started("mail", "email.send", 0.01)
        child.finished("mail", "email.send", "succeeded", 0.3)
        worker.metrics.merge(child.take())
        worker.metrics.gauges(active=1, slots=100)
        worker.metrics.queues([QueueStats("mail", False, {State.QUEUED: 4}, oldest_age_seconds=2.0)])
        ask(sidecar, "/health")
        status, headers, body = ask(sidecar, "/metrics")
        assert (status, headers["content-type"]) == (200, CONTENT_TYPE)
        families = {family.name: family for family in text_string_to_metric_families(body.decode())}
        for name, description in CATALOGUE.items():
            family = families.pop(name.removesuffix("_total"))
            assert (family.type, family.documentation) == (description.kind, description.help)
            extra = {"le"} if description.kind == "histogram" else set()
            for sample in family.samples:
                assert set(sample.labels) - extra == set(description.labels)
        assert families == {}, "not in the catalogue"
        samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
        }
        job = (("queue", "mail"), ("type", "email.send"))
        assert samples["ropeway_jobs_succeeded_total", *job] == 1
        assert samples["ropeway_leases_acquired_total",] == 2
        assert samples["ropeway_worker_slots",] == 100
        assert samples["ropeway_queue_depth", ("queue", "mail"), ("state", "queued")] == 4
        health = (("method", "GET"), ("path_template", "/health"), ("status_code", "200"))
        assert samples["ropeway_http_requests_total", *health] == 1
        assert samples["ropeway_http_request_duration_seconds_count", *health] == 1

    def test_head_is_get_without_the_body(self, sidecar: Sidecar) -> None:
        status, headers, body = ask(sidecar, "/health", method="HEAD")
        assert (status, body) == (200, b"")
        assert int(headers["content-length"]) > 0

    def test_a_query_is_ignored(self, sidecar: Sidecar) -> None:
        assert ask(sidecar, "/health?verbose=1")[0] == 200

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
    def test_nothing_can_be_changed(self, method: str, sidecar: Sidecar) -> None:
        status, headers, _ = ask(sidecar, "/health", method=method)
        assert (status, headers["allow"]) == (405, "GET, HEAD")

    def test_other_paths_are_not_there_and_cost_one_label(self, sidecar: Sidecar, worker: Worker) -> None:
        for path in ("/", "/health/", "/jobs/1", "/jobs/2"):
            status, document = ask_json(sidecar, path)
            assert (status, document["paths"]) == (404, ["/health", "/ready", "/metrics"])
        page = worker.metrics.render().decode()
        assert page.count("ropeway_http_requests_total{") == 1
        assert 'path_template="unknown",status_code="404"} 4.0' in page

    def test_a_page_that_cannot_be_made_is_an_answer_too(
        self, sidecar: Sidecar, worker: Worker, output: Output
    ) -> None:
        def broken() -> bytes:
            raise RuntimeError("postgresql://bob:hunter2@db")

        worker.page = broken
        status, document = ask_json(sidecar, "/metrics")
        assert status == 500
        assert "hunter2" not in str(document)
        (line,) = output.told(names.HTTP_FAILED)
        assert (line["path"], "bob:***@db" in line["error"]) == ("/metrics", True)
        assert ask(sidecar, "/health")[0] == 200

    def test_it_answers_while_others_keep_it_waiting(self, sidecar: Sidecar) -> None:
        assert sidecar.port is not None
        silent = [socket.create_connection(("127.0.0.1", sidecar.port)) for _ in range(20)]
        try:
            assert ask(sidecar, "/health")[0] == 200
        finally:
            for connection in silent:
                connection.close()

    def test_one_who_hangs_up_is_no_news(
        self, sidecar: Sidecar, output: Output, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert sidecar.port is not None
        for text in (b"", b"nonsense\r\n\r\n", b"GET /metrics HTTP/1.1\r\n"):
            with socket.create_connection(("127.0.0.1", sidecar.port)) as connection:
                connection.sendall(text)
        assert ask(sidecar, "/health")[0] == 200
        assert output.told(names.HTTP_FAILED) == []
        assert capfd.readouterr().err == ""

    def test_it_does_not_tell_what_it_runs_on(self, sidecar: Sidecar) -> None:
        assert "Python" not in str(ask(sidecar, "/health")[1])


class TestPorts:
    def test_any_free_one(self, sidecar: Sidecar, output: Output) -> None:
        assert sidecar.port
        assert sidecar.url == f"http://127.0.0.1:{sidecar.port}"
        assert [line["url"] for line in output.told(names.HTTP_STARTED)] == [sidecar.url]
        assert output.told(names.HTTP_PORT_TAKEN) == []

    def test_a_taken_one_is_replaced_and_said(self, sidecar: Sidecar, worker: Worker, output: Output) -> None:
        assert sidecar.port is not None
        with worker.sidecar(sidecar.port) as second:
            assert second.port not in (None, sidecar.port)
            assert ask(second, "/health")[0] == 200
            (line,) = output.told(names.HTTP_PORT_TAKEN)
            assert (line["level"], line["port"], line["instead"]) == ("warning", sidecar.port, second.port)

    def test_off_is_off(self, worker: Worker, output: Output) -> None:
        before = threading.active_count()
        with worker.sidecar(-1) as sidecar:
            assert (sidecar.port, sidecar.url) == (None, None)
            assert threading.active_count() == before
        assert output.getvalue() == b""

    def test_an_address_of_another_host_is_told(self, worker: Worker) -> None:
        with pytest.raises(ConfigurationError, match=r"cannot listen on 192\.0\.2\.1 port 0.*ROPEWAY_HOST"):
            worker.sidecar(host="192.0.2.1").start()
        with pytest.raises(ConfigurationError, match="cannot listen on no-such-host"):
            worker.sidecar(host="no-such-host.invalid").start()

    def test_all_addresses(self, worker: Worker) -> None:
        with worker.sidecar(host="0.0.0.0") as sidecar:
            assert ask(sidecar, "/health")[0] == 200
            assert sidecar.url == f"http://127.0.0.1:{sidecar.port}"

    @pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this host has no IPv6")
    def test_ipv6(self, worker: Worker) -> None:
        with worker.sidecar(host="::1") as sidecar:
            assert ask(sidecar, "/health", host="::1")[0] == 200
            assert sidecar.url == f"http://[::1]:{sidecar.port}"

    def test_it_can_be_stopped_twice_and_frees_its_port_and_thread(self, worker: Worker) -> None:
        before = set(threading.enumerate())
        sidecar = worker.sidecar()
        sidecar.start()
        sidecar.start()
        port = sidecar.port
        assert port is not None
        assert ask(sidecar, "/health")[0] == 200
        sidecar.stop()
        sidecar.stop()
        assert sidecar.port is None
        wait_until(lambda: set(threading.enumerate()) <= before, what="its threads are gone")
        with worker.sidecar(port) as again:
            assert again.port == port
