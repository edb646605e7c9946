"""Canaries through the API, a worker and the commands: none in a log, metric, span, error or process (E35)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from devtools.waiting import wait_until
from tests.api.corpus import ALL_SCOPES
from tests.api.served import ROOT, Served, a_store, bodies_until, connected_to, request_bytes, server

pytestmark = pytest.mark.slow

#: Set up for every process that finds it on its path: each span becomes a line of a file, with all that is in it.
TRACING = """
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

class ToFile(SpanExporter):
    def export(self, spans):
        with open(os.environ["CANARY_SPANS"], "a") as file:
            for span in spans:
                file.write(span.to_json(indent=None) + "\\n")
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ToFile()))
trace.set_tracer_provider(provider)
"""

PAYLOAD, KEY_IN_PAYLOAD, RESULT, ERROR = (f"canary{name}{uuid4().hex}" for name in ("p", "k", "r", "e"))
#: A key that nobody made but that looks like one, as a scanner or a thief would send it.
FORGED = f"rw_live_abcdefghijkl_{uuid4().hex}{uuid4().hex[:11]}_0abcdef"


class Evidence:
    """What was sent in secret, and everything that was said where others can read it."""

    def __init__(self, served: Served, spans: Path) -> None:
        self.served = served
        self.spans = spans
        #: By kind: the text that must not be found.
        self.secrets: dict[str, list[str]] = {
            "payload": [PAYLOAD, KEY_IN_PAYLOAD],
            "result": [RESULT],
            "error text": [ERROR],
            "key": [FORGED],
            "lease token": [],
        }
        self.places: dict[str, str] = {}
        self.refusals: list[str] = []
        self.commands: list[str] = []
        self.processes: list[str] = []

    def key(self, *scopes: str, tenant: str = "default") -> str:
        token = self.served.key(*scopes, tenant=tenant)
        # Its id is public; the secret and all that holds it are not.
        self.secrets["key"].append(token.split("_")[3])
        return token

    def ask(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        answer = self.served.ask(method, path, body, **options)
        assert answer.status < 500, answer
        if answer.status >= 400:
            self.refusals.append(answer.body.decode(errors="replace"))
            self.refusals.append(repr(answer.headers))
            return None
        if not answer.body or not answer.headers.get("content-type", "").startswith("application/json"):
            return None
        told = answer.json
        for lease in told.get("leases", ()) if isinstance(told, dict) else ():
            self.secrets["lease token"].append(lease["lease_token"])
        return told

    def note_processes(self, *pids: int) -> None:
        """The command lines of these processes and of all that they started, as `ps` shows them."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    stat = (entry / "stat").read_text()
                    parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
                except (FileNotFoundError, ProcessLookupError):
                    continue
        family = set(pids)
        while more := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= more
        for pid in family:
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            self.processes.append(line.replace(b"\0", b" ").decode(errors="replace"))


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def evidence(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evidence]:
    folder = tmp_path_factory.mktemp("canaries")
    path = folder / "tracing"
    path.mkdir()
    (path / "sitecustomize.py").write_text(TRACING)
    spans = folder / "spans"
    spans.touch()
    url = a_store(request, request.param, folder)
    env = {
        "PYTHONPATH": os.pathsep.join([str(path), str(ROOT), str(ROOT / "src")]),
        "CANARY_SPANS": str(spans),
        "ROPEWAY_LOG_LEVEL": "DEBUG",
        "ROPEWAY_COMPAT": "1",
    }
    with server(url, folder, env=env) as served:
        found = Evidence(served, spans)
        # The key that the first start made: the log says where it is, not what it is.
        found.secrets["key"] += [file.read_text().strip().split("_")[3] for file in folder.glob("*.token")]
        produce(found)
        refuse(found)
        lease(found)
        operate(found)
        work(found, folder, {**env, "ROPEWAY_URL": url}, remote=False)
        token = found.key("work", "read", "read:payload")
        address = f"http://127.0.0.1:{served.port}"
        work(found, folder, {**env, "ROPEWAY_URL": address, "ROPEWAY_TOKEN": token}, remote=True)
        command(found, folder, {**env, "ROPEWAY_URL": url, "ROPEWAY_TOKEN": token})
        found.note_processes(served.process.pid)
        metrics = served.ask("GET", "/metrics", token=found.key("read"))
        assert metrics.status == 200
        found.places["metrics of the server"] = metrics.body.decode()
        gather(found)
        yield found


def gather(found: Evidence) -> None:
    found.places["log of the server"] = found.served.log()
    found.places["spans"] = found.spans.read_text()
    found.places["error bodies"] = "\n".join(found.refusals)
    found.places["what commands print"] = "\n".join(found.commands)
    found.places["process list"] = "\n".join(found.processes)


# ── What is done ──


def secret_payload() -> dict[str, str]:
    return {"secret": PAYLOAD, "result": RESULT, KEY_IN_PAYLOAD: "value"}


def produce(found: Evidence) -> None:
    token = found.key(*ALL_SCOPES)
    keyed = {"type": "a", "payload": secret_payload(), "idempotency_key": "k"}
    for body in (keyed, keyed, {**keyed, "payload": PAYLOAD}):
        found.ask("POST", "/v1/jobs", body, token=token)
    found.ask("POST", "/v1/jobs/batch", {"jobs": [{"type": "a", "payload": PAYLOAD}] * 3}, token=token)
    lines = b"\n".join(json.dumps({"type": "a", "payload": PAYLOAD}).encode() for _ in range(3)) + b"\n"
    headers = {"Content-Type": "application/x-ndjson"}
    found.ask(
        "POST", "/v1/jobs/batch", lines + b'{"type": "' + PAYLOAD.encode() + b' "}', token=token, headers=headers
    )
    found.ask("GET", f"/v1/jobs?include=payload&error={ERROR}&type={PAYLOAD}", token=token)
    found.ask("POST", "/jobs", {"queue_name": "q", "payload": {"secret": PAYLOAD}}, token=token)


def refuse(found: Evidence) -> None:
    """Everything that can be wrong with a request, with a canary beside the flaw."""
    token = found.key(*ALL_SCOPES)
    canary = PAYLOAD.encode()
    for body in (
        b'{"type": "a", "payload": "' + canary,
        b'{"type": "a", "payload": "' + canary + b'",}',
        b'{"type": "a", "payload": "' + canary + b'\xff"}',
        b'{"type": "a", "payload": "' + canary + b'\\u0000"}',
        b'{"type": "a", "payload": "' + canary + b'\\ud800"}',
        b'{"type": "a", "payload": {"a": "' + canary + b'", "a": 1}}',
        b'{"type": "a", "payload": [NaN, "' + canary + b'"]}',
        b'{"type": "a", "payload": ["' + canary + b'", 1e999]}',
        b'{"type": "' + canary + b' "}',
        b'{"type": "a", "queue": "' + canary + b' "}',
        b'{"type": "a", "priority": "' + canary + b'"}',
        b'{"type": "a", "run_at": "' + canary + b'"}',
        b'{"type": "a", "retry": {"policy": "' + canary + b'"}}',
        b'{"type": "a", "tags": ["' + canary + b'\\n"]}',
        b'{"type": "a", "payload": "' + canary + b'", "max_attempts": 99}',
        b'"' + canary + b'"',
        b'["' + canary + b'"]',
    ):
        found.ask("POST", "/v1/jobs", body, token=token)
        found.ask("POST", "/v1/jobs/batch", b'{"jobs": [' + body + b"]}", token=token)
    for bad in (FORGED, FORGED[:-1], "rw_live_" + PAYLOAD, PAYLOAD):
        found.ask("GET", "/v1/jobs", token=bad)
        found.ask("GET", f"/v1/jobs?token={bad}")
        found.ask("GET", f"/v1/jobs?access_token={bad}", token=token)
        found.ask("GET", f"/v1/events?ticket={bad}")
        found.ask("GET", f"/v1/jobs/{bad}", token=token)
        found.ask("GET", f"/{bad}", token=token)
    found.ask("POST", "/v1/jobs", {"type": "a"}, headers={"Authorization": f"Basic {FORGED}"})
    found.ask("POST", "/v1/jobs", PAYLOAD.encode(), token=token, headers={"Content-Type": "text/plain"})
    good = found.key("enqueue")
    found.ask("POST", "/v1/queues/default/lease", {"worker_id": "w"}, token=good)
    found.ask("GET", f"/v1/jobs/{uuid4()}", token=good, headers={"X-Request-Id": f"{PAYLOAD} {good}"})


def lease(found: Evidence) -> None:
    token = found.key(*ALL_SCOPES)
    owner = str(uuid4())
    found.secrets["lease token"].append(owner)
    for _ in range(6):
        found.ask("POST", "/v1/jobs", {"type": "a", "queue": "leased", "payload": secret_payload()}, token=token)
    body = {"worker_id": "w", "count": 6, "owner": owner}
    leases = found.ask("POST", "/v1/queues/leased/lease", body, token=token)["leases"]
    tickets = [{"id": lease["job"]["id"], "lease_token": lease["lease_token"]} for lease in leases]

    def call(number: int, verb: str, **more: Any) -> None:
        ticket = tickets[number]
        body = {"lease_token": ticket["lease_token"], **more}
        found.ask("POST", f"/v1/jobs/{ticket['id']}/{verb}", body, token=token)

    call(0, "heartbeat")
    call(0, "ack", result={"result": RESULT})
    call(0, "ack", result={"result": RESULT})
    call(0, "heartbeat")
    call(0, "nack", error=ERROR)
    call(1, "nack", error={"type": "E", "message": ERROR, "traceback": ERROR}, retry=False)
    call(2, "nack", error=ERROR, retry_after=3_600)
    call(3, "ack", result=f"{RESULT}\0")
    call(4, "progress", done=1, message=PAYLOAD, logs=[{"message": PAYLOAD, "level": "info"}])
    call(4, "snooze", delay=PAYLOAD)
    call(4, "release", unknown=PAYLOAD)
    found.ask(
        "POST", "/v1/leases/ack", {"items": [{**ticket, "result": RESULT} for ticket in tickets]}, token=token
    )
    found.ask("POST", "/v1/owners/heartbeat", {"owner": owner}, token=token)
    found.ask("POST", "/v1/owners/other-grants", {"owner": owner}, token=token)
    found.ask("POST", "/v1/owners/end", {"owner": owner}, token=token)
    ticket = found.ask("POST", "/v1/streams/ticket", {}, token=token)["ticket"]
    found.secrets["key"].append(ticket)
    job = tickets[1]["id"]
    with connected_to(found.served) as stream:
        stream.sendall(request_bytes("GET", f"/v1/jobs/{job}/stream?ticket={ticket}"))
        bodies_until(stream, b"job.dlq")
    found.ask("GET", f"/v1/jobs/{job}/stream?ticket={ticket}")


def operate(found: Evidence) -> None:
    token = found.key(*ALL_SCOPES)
    schedule = {"name": "s", "cron": "0 3 * * *", "type": "a", "payload": secret_payload()}
    found.ask("POST", "/v1/schedules", schedule, token=token)
    found.ask("POST", "/v1/schedules", schedule, token=token)
    found.ask("POST", "/v1/schedules", {**schedule, "name": "t", "cron": PAYLOAD}, token=token)
    found.ask("POST", "/v1/schedules/s/run", {}, token=token)
    made = found.ask("POST", "/v1/keys", {"name": "made", "scopes": ["enqueue"]}, token=token)
    found.secrets["key"].append(made["token"].split("_")[3])
    rotated = found.ask("POST", f"/v1/keys/{made['id']}/rotate", {"overlap_seconds": 0}, token=token)
    found.secrets["key"].append(rotated["token"].split("_")[3])
    found.ask("DELETE", f"/v1/keys/{rotated['id']}", token=token)
    found.ask("GET", "/v1/jobs", token=rotated["token"])
    for path in (
        "/v1/keys",
        "/v1/tenants",
        "/v1/audit",
        "/v1/dlq/groups",
        "/v1/queues",
        "/v1/workers",
        "/v1/stats",
    ):
        told = found.ask("GET", path, token=token)
        if path != "/v1/dlq/groups":
            found.commands.append(json.dumps(told))
    found.ask("POST", "/v1/dlq/retry", {"filter": {"queue": "leased"}, "dry_run": True}, token=token)


def work(found: Evidence, folder: Path, env: Mapping[str, str], *, remote: bool) -> None:
    """A worker runs jobs that hold canaries, beside the store or through the API."""
    name = "remote" if remote else "local"
    token = found.key(*ALL_SCOPES)
    jobs = [
        {"type": "canary.echo", "queue": name, "payload": {"secret": PAYLOAD, "result": RESULT}},
        {"type": "canary.fail", "queue": name, "payload": {"secret": PAYLOAD, "error": ERROR}, "max_attempts": 1},
        {"type": "canary.leave", "queue": name, "payload": {"secret": PAYLOAD}},
        {"type": "nobody.knows", "queue": name, "payload": secret_payload(), "max_attempts": 1},
        {"type": "canary.echo", "queue": name, "payload": {"secret": {"not": PAYLOAD}}, "max_attempts": 1},
    ]
    ids = [job["id"] for job in found.ask("POST", "/v1/jobs/batch", {"jobs": jobs}, token=token)["jobs"]]
    log = folder / f"worker-{name}.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [
                sys.executable, "-m", "ropeway", "worker", str(ROOT / "tests/api/canary_tasks.py"),
                "--queues", name, "--port", "0",
            ],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env={**_without_ropeway(), "ROPEWAY_LOG_FORMAT": "json", **env},
        )  # fmt: skip
    try:

        def ended() -> bool:
            assert worker.poll() is None, log.read_text()[-3000:]
            found.note_processes(worker.pid)
            told = found.ask("POST", "/v1/jobs/lookup", {"ids": ids}, token=token)["jobs"]
            return all(job["status"] in ("succeeded", "dead") for job in told)

        wait_until(ended, within=60, what=f"the {name} worker has run all jobs", every=0.1)
        told = found.ask("POST", "/v1/jobs/lookup", {"ids": ids}, token=token)["jobs"]
        assert [job["status"] for job in told] == ["succeeded", "dead", "succeeded", "dead", "dead"]
    finally:
        worker.terminate()
        worker.wait(timeout=60)
    found.places[f"log of the {name} worker"] = log.read_text()
    assert "handler_start" in found.places[f"log of the {name} worker"]


def command(found: Evidence, folder: Path, env: Mapping[str, str]) -> None:
    for line in (
        "keys list", "tenants list", "audit", "settings", "jobs list", "queues", "workers", "schedules list",
        "settings --json", "jobs show not-an-id",
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "ropeway", *line.split()],
            cwd=folder, env={**_without_ropeway(), **env}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        found.commands += [done.stdout, done.stderr]
        assert "Traceback" not in done.stderr


def _without_ropeway() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ROPEWAY_")}


# ── What must not be found ──

#: What a handler raised is in the log and the span of the worker that ran it, on purpose: it is what an operator
#: looks for first. Passwords and keys in it are masked.
ON_PURPOSE = {
    ("log of the local worker", "error text"),
    ("log of the remote worker", "error text"),
    ("spans", "error text"),
}
PLACES = (
    "log of the server",
    "log of the local worker",
    "log of the remote worker",
    "metrics of the server",
    "spans",
    "error bodies",
    "what commands print",
    "process list",
)


def test_no_canary_is_found(evidence: Evidence) -> None:
    """One test, because all of it is looked for in one run of everything."""
    found = []
    for place in PLACES:
        text = evidence.places[place]
        assert len(text) > 100, f"nothing was looked at: {place}"
        for kind, secrets in evidence.secrets.items():
            assert secrets
            if (place, kind) in ON_PURPOSE:
                continue
            if (place, kind) == ("error bodies", "payload"):
                # A pointer names the sender's own keys to the sender; their values are never told.
                secrets = [PAYLOAD]
            lines = [line for line in text.splitlines() for secret in secrets if secret in line]
            found += [f"{kind} in {place}: {line[:1000]}" for line in lines[:2]]
    assert not found, "\n".join(found)
    # Only digests of keys are kept: who reads the store or a copy of it cannot call the API.
    rows = json.dumps(evidence.served.holds("default"))
    assert PAYLOAD in rows, "nothing was looked at"
    assert not [secret for secret in evidence.secrets["key"] if secret in rows]
    _worth_looking_at(evidence.places)


def _worth_looking_at(places: Mapping[str, str]) -> None:
    """Each place has what it should have, so that finding nothing in it means something."""
    assert "missing_scope" in places["log of the server"]
    assert "unauthenticated" in places["log of the server"]
    assert "http_requests" in places["metrics of the server"]
    assert "run canary.echo" in places["spans"]
    assert "ropeway worker" in places["process list"]
    assert "idempotency_mismatch" in places["error bodies"]
