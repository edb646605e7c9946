"""`ropeway server` as a person meets it: real processes, first starts, refusals, and a clean end."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from devtools.waiting import wait_until
from ropeway.core.errors import ConfigurationError
from ropeway.settings import Settings
from tests.integration.cli_kit import Cli

PATIENCE = 60.0


class Running:
    """A server in a folder of its own."""

    def __init__(self, folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.output = folder / f"output-{len(list(folder.glob('output-*')))}.txt"
        clean = {name: text for name, text in os.environ.items() if not name.startswith("ROPEWAY_")}
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ropeway", "server", *arguments],
                cwd=folder,
                env={**clean, "HOME": str(folder), "PYTHONUNBUFFERED": "1", **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def said(self) -> str:
        return self.output.read_text()

    def wait(self) -> str:
        """Where it is, once it says so."""

        def told() -> Any:
            assert self.process.poll() is None, self.said()
            return re.findall(r"serves (https?://\S+)", self.said())

        return str(wait_until(told, within=PATIENCE, what=f"a greeting in {self.said()}")[-1])

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def ended(self) -> tuple[int, str]:
        """The exit code of one that does not start, and what it said."""
        return self.process.wait(PATIENCE), self.said()


@contextmanager
def server(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Running]:
    running = Running(folder, *arguments, env=env)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def get(url: str, token: str | None = None, context: ssl.SSLContext | None = None) -> Any:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with urllib.request.urlopen(
        urllib.request.Request(url, headers=headers), timeout=30, context=context
    ) as reply:
        return json.loads(reply.read())


# ── A first start ──


def test_a_first_start_needs_no_configuration_and_says_how_to_get_in(tmp_path: Path) -> None:
    with server(tmp_path, "--port", "0") as running:
        url = running.wait()
        assert url.startswith("http://127.0.0.1:")
        file = tmp_path / "ropeway.db.token"
        token = file.read_text().strip()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert token not in running.said()
        assert get(f"{url}/health")["durability"] == "full"
        assert get(f"{url}/ready") == {
            "status": "ready",
            "checks": {"engine": "ok", "migrations": "ok", "upkeep": "ok"},
        }
        line = re.search(r"try +(curl .*)", running.said())
        assert line is not None
        if shutil.which("curl"):
            done = subprocess.run(
                line[1] + " -sS", shell=True, cwd=tmp_path, capture_output=True, text=True, check=True
            )
            assert json.loads(done.stdout) == {"queues": []}, "the line works as it is printed"
        assert get(f"{url}/v1/queues", token) == {"queues": []}
        assert running.stop(signal.SIGINT) == 0
        assert "Traceback" not in running.said()


def test_a_second_start_makes_no_second_key(tmp_path: Path) -> None:
    with server(tmp_path, "--port", "0") as running:
        running.wait()
        running.stop()
    before = (tmp_path / "ropeway.db.token").read_text()
    with server(tmp_path, "--port", "0") as running:
        url = running.wait()
        assert get(f"{url}/v1/queues", before.strip()) == {"queues": []}
    assert (tmp_path / "ropeway.db.token").read_text() == before


def test_a_key_made_by_hand_is_a_way_in_and_no_other_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made = json.loads(Cli(capsys).done("keys", "create", "mine", "--scope", "read", "--json"))
    with server(tmp_path, "--port", "0") as running:
        url = running.wait()
        assert get(f"{url}/v1/queues", made["token"]) == {"queues": []}
        assert "ropeway keys create" in running.said()
    assert not (tmp_path / "ropeway.db.token").exists()


def test_what_lies_where_the_key_should_be_is_replaced_not_written_through(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("theirs")
    (tmp_path / "ropeway.db.token").symlink_to(elsewhere)
    with server(tmp_path, "--port", "0") as running:
        running.wait()
    assert elsewhere.read_text() == "theirs"
    assert stat.S_IMODE((tmp_path / "ropeway.db.token").lstat().st_mode) == 0o600


def test_postgres_needs_one_url(tmp_path: Path, postgres_database: str) -> None:
    with server(tmp_path, "--port", "0", env={"ROPEWAY_URL": postgres_database}) as running:
        url = running.wait()
        (file,) = (tmp_path / ".config" / "ropeway").iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert get(f"{url}/health")["engine"] == "postgres"
        assert get(f"{url}/v1/queues", file.read_text().strip()) == {"queues": []}
        assert running.stop() == 0
    # The second start finds the tables and the key.
    with server(tmp_path, "--port", "0", env={"ROPEWAY_URL": postgres_database}) as running:
        running.wait()


def test_a_store_in_memory_serves_too(tmp_path: Path) -> None:
    with server(tmp_path, "--port", "0", "--url", "memory://") as running:
        url = running.wait()
        assert get(f"{url}/health")["durability"] == "none"
        assert get(f"{url}/v1/queues", (tmp_path / ".config/ropeway/memory.token").read_text().strip())


# ── Refusals ──


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "jobs.example.com"])
def test_beyond_this_host_it_needs_tls_or_a_proxy(tmp_path: Path, host: str) -> None:
    code, said = Running(tmp_path, "--host", host).ended()
    assert code == 2
    assert "--tls-cert" in said
    assert "--behind-proxy" in said
    assert len(said.strip().splitlines()) == 1


def test_no_auth_works_on_loopback_only(tmp_path: Path) -> None:
    code, said = Running(tmp_path, "--host", "0.0.0.0", "--behind-proxy", "--no-auth").ended()
    assert code == 2
    assert "--no-auth works on loopback only" in said
    with server(tmp_path, "--port", "0", "--no-auth") as running:
        url = running.wait()
        assert get(f"{url}/v1/queues") == {"queues": []}
        assert not (tmp_path / "ropeway.db.token").exists()


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, said = Running(tmp_path, "--port", str(taken.getsockname()[1])).ended()
    assert code == 2
    assert "cannot listen on 127.0.0.1" in said
    assert "--port" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "http://127.0.0.1:8000"], "a server needs a store of its own"),
        (["--tls-cert", "cert.pem"], "both a certificate and its key"),
        (["--tls-cert", "no.pem", "--tls-key", "no.pem"], "cannot be used"),
        (["--host-name", "a b"], "host_names"),
        (["--port", "70000"], "port"),
    ],
)
def test_what_cannot_work_is_told_in_one_line(tmp_path: Path, arguments: list[str], words: str) -> None:
    code, said = Running(tmp_path, "--port", "0", *arguments).ended()
    assert code == 2
    assert words in said
    assert "Traceback" not in said


# ── Elsewhere ──


def test_it_speaks_https_with_a_certificate(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("NOT RUN: openssl is not installed")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    arguments = ["--port", "0", "--host", "0.0.0.0", "--tls-cert", "cert.pem", "--tls-key", "key.pem"]
    with server(tmp_path, *arguments) as running:
        url = running.wait()
        assert url.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        assert get(f"{url}/health", context=trusted)["status"] == "ok"
        assert running.stop() == 0


def test_behind_a_proxy_it_answers_to_its_names_and_its_address(tmp_path: Path) -> None:
    arguments = ["--port", "0", "--host", "0.0.0.0", "--behind-proxy", "--host-name", "jobs.example.com"]
    with server(tmp_path, *arguments) as running:
        port = int(running.wait().rpartition(":")[2])
        for address, host, status in (
            ("127.0.0.1", "jobs.example.com", 200),
            ("127.0.0.1", "127.0.0.1", 200),
            ("127.0.0.2", "127.0.0.2", 200),
            ("127.0.0.1", "evil.example", 421),
            ("127.0.0.1", "127.0.0.3", 421),
        ):
            with closing(http.client.HTTPConnection(address, port, timeout=30)) as connection:
                connection.request("GET", "/health", headers={"Host": host})
                with connection.getresponse() as answer:
                    assert answer.status == status, host


def test_below_a_path_that_the_proxy_passes_on(tmp_path: Path) -> None:
    with server(tmp_path, "--port", "0", "--path-prefix", "/tools/ropeway") as running:
        port = int(running.wait().rpartition(":")[2])
        token = (tmp_path / "ropeway.db.token").read_text().strip()

        def ask(method: str, path: str, body: str | None = None) -> tuple[int, str, str]:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
                connection.request(method, path, body, headers)
                with connection.getresponse() as answer:
                    return answer.status, answer.getheader("Location", ""), answer.read().decode()

        status, where, _ = ask("POST", "/tools/ropeway/v1/jobs", '{"type":"t"}')
        assert (status, where.rpartition("/")[0]) == (201, "/tools/ropeway/v1/jobs")
        assert ask("GET", where)[0] == 200
        assert ask("GET", where.removeprefix("/tools/ropeway"))[0] == 200, "whoever knows no proxy"
        assert ask("GET", "/tools/ropeway/health")[0] == 200
        # A page says where the others are from where it is itself; without the slash that would be elsewhere.
        assert ask("GET", "/tools/ropeway?a=b")[:2] == (308, "/tools/ropeway/?a=b")
        status, where, _ = ask("GET", "/tools/ropeway/ui/jobs")
        assert (status, where) == (303, "../ui/login?next=ui%2Fjobs")
        status, _, page = ask("GET", "/tools/ropeway/ui/login")
        assert status == 200
        assert 'action="../ui/login"' in page
        # Other programs of that host do not get its cookies.
        for prefix, place in (("/tools/ropeway", "/tools/ropeway"), ("", "/")):
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
                form = {"Content-Type": "application/x-www-form-urlencoded"}
                connection.request("POST", f"{prefix}/ui/login", f"key={token}", form)
                with connection.getresponse() as answer:
                    assert answer.status == 303
                    assert f"; Path={place};" in (answer.getheader("Set-Cookie") or "") + ";"
        for path in (
            "/tools",
            "/tools/ropewayx/health",
            "/tools/ropeway/tools/ropeway/health",
            "/x/tools/ropeway/",
        ):
            assert ask("GET", path)[0] == 404, path


@pytest.mark.parametrize("prefix", ["tools", "/", "/tools/", "/to ols", "//x", "/..", "/a/../b", "/%41", "/a?b"])
def test_a_path_that_is_none(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="a path such as /tools/ropeway, without a slash at its end"):
        Settings.load({"path_prefix": prefix})


def test_metrics_have_a_port_of_their_own_if_wanted(tmp_path: Path) -> None:
    with server(tmp_path, "--port", "0", "--metrics-port", "0", "--log-format", "json") as running:
        url = running.wait()
        lines = [json.loads(line) for line in running.said().splitlines() if line.startswith("{")]
        (metrics,) = [line["url"] for line in lines if line["event"] == "http_started"]
        assert metrics.startswith("http://127.0.0.1:")
        get(f"{url}/health")
        with urllib.request.urlopen(f"{metrics}/metrics", timeout=30) as reply:
            page = reply.read().decode()
        assert 'ropeway_http_requests_total{method="GET",path_template="/health",status_code="200"}' in page


# ── The end ──


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_waiting_ends_at_once_and_requests_are_answered(tmp_path: Path, number: int) -> None:
    with server(tmp_path, "--port", "0") as running:
        url = running.wait()
        token = (tmp_path / "ropeway.db.token").read_text().strip()
        port = int(url.rpartition(":")[2])
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        answers: list[tuple[str, int, bytes]] = []

        def ask(name: str, method: str, path: str, body: str | None = None) -> None:
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
                connection.request(method, path, body, {**headers, "Accept": "text/event-stream"})
                with connection.getresponse() as answer:
                    answers.append((name, answer.status, answer.read()))

        poll = ("poll", "POST", "/v1/queues/default/lease", json.dumps({"worker_id": "w", "wait": 30}))
        tail = ("tail", "GET", "/v1/events")
        threads = [threading.Thread(target=ask, args=each) for each in (poll, tail, tail)]
        for thread in threads:
            thread.start()

        def under_way() -> bool:
            page = urllib.request.Request(f"{url}/metrics", headers=headers)
            with urllib.request.urlopen(page, timeout=30) as reply:
                told = reply.read().decode()
            return 'path_template="/v1/events",status_code="200"} 2.0' in told

        wait_until(under_way, within=PATIENCE, what="both streams have begun")
        assert running.stop(number) == 0
        for thread in threads:
            thread.join(PATIENCE)
        assert sorted((name, status) for name, status, _ in answers) == [
            ("poll", 204),
            ("tail", 200),
            ("tail", 200),
        ]
        assert "server_stopped" in running.said()
        assert "Traceback" not in running.said()
