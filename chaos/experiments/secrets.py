"""Secrets and payloads that can be told from all else, and the search for them in all that others can see: E35.

Keys, the database's password, a lease's token, keys and passwords that were wrong, and bodies that were refused
may be seen nowhere. Payloads and results may be seen by keys with `read:payload`, and in the store. What a handler
says in its own error is stored and shown as it is; in logs its keys and passwords are masked. (One more place
keeps payloads on purpose, and a run is too short to reach it: the log of dead jobs that retention removes.)

The search is tried out on every place: a queue has such a word for its name, and it has to be found.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import asyncpg

from chaos import nemesis
from chaos.canaries import Canary, Evidence, search, word
from chaos.checker import Violation
from chaos.experiment import Experiment, Run, Size
from chaos.experiments.copies import dump
from chaos.experiments.direct import leased_here
from chaos.facts import Facts
from chaos.history import Recorder
from chaos.producing import accepted
from chaos.recording import RecordingEngine
from chaos.stage import DRAIN_SECONDS, RunBroken, Stage, python_path, ropeway, serving
from chaos.visiting import (
    ANSWERS,
    COMMANDS,
    EVENTS,
    LOGS,
    METRICS,
    PAGES,
    PAYLOADS,
    REFUSALS,
    STORE,
    TRACES,
    Visitor,
    say_plainly,
    watching_processes,
)
from devtools.private import free_port
from ropeway.core.job import NewJob
from ropeway.core.keytext import key_text, make_id, make_secret, parse_key
from ropeway.core.outcome import Done
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Settlement
from ropeway.settings import Settings

#: The role that has a password.
ROLE: Final = "keeper"

#: What each key may do.
KEYS: Final = {"producer": "enqueue", "worker": "work", "reader": "read", "auditor": "read:payload"}

EVERYWHERE: Final = frozenset({LOGS, METRICS, TRACES, REFUSALS, EVENTS, ANSWERS, PAGES, COMMANDS, PAYLOADS, STORE})

#: The tasks, in workers that trace their runs, and where the spans go.
TRACED: Final = "chaos/traced.py"
SPANS: Final = "spans.txt"


@dataclass
class Watched:
    """The canaries of a run, and what was seen of it. `store` is the store's address, with a password if it has
    one."""

    store: str
    canaries: list[Canary]
    payload: str
    planted: str
    told: str
    evidence: Evidence = field(default_factory=Evidence)
    server: str = ""
    tokens: dict[str, str] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)

    def hide(self, name: str, secret: str | bytes, *allowed: str) -> None:
        """From now on this may be seen in these places only."""
        text = secret if isinstance(secret, bytes) else secret.encode()
        self.canaries.append(Canary(name, text, frozenset(allowed)))


@asynccontextmanager
async def with_canaries(stage: Stage) -> AsyncIterator[Watched]:
    """Every secret is a canary; a database asks for its password."""
    payload, planted, told = (word(stage.chance) for _ in range(3))
    key = strange_key(stage)
    sentence = f"no answer from postgresql://app:{told}@db.example/app (password={told}) with {key}"
    watched = Watched(stage.direct, [], payload, planted, sentence)
    if stage.server is not None:
        password = word(stage.chance)
        await _protect(stage, password)
        watched.store = with_password(stage.direct, password)
        watched.hide("the database's password", password)
    watched.canaries += [
        Canary("a payload", payload.encode(), shown=frozenset({PAYLOADS, STORE})),
        Canary("the name of a queue", planted.encode(), shown=EVERYWHERE),
    ]
    for name, secret in (("a password", told), ("a key", secret_of(key))):
        watched.hide(f"{name} in a handler's error", secret, EVENTS, ANSWERS, PAGES, PAYLOADS, STORE)
    yield watched


async def _protect(stage: Stage, password: str) -> None:
    """The database has a role with that password, and asks it for it."""
    assert stage.server is not None
    _ask_for_a_password(stage.server.folder / "data" / "pg_hba.conf")
    connection = await asyncpg.connect(stage.direct)
    try:
        await connection.execute(f"CREATE ROLE {ROLE} SUPERUSER LOGIN PASSWORD '{password}'")
        await connection.execute("SELECT pg_reload_conf()")
    finally:
        await connection.close()


def _ask_for_a_password(rules: Path) -> None:
    rules.write_text(f"host all {ROLE} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")


def strange_key(stage: Stage) -> str:
    """A key that looks right and that nobody has made."""
    return key_text("live", make_id(stage.chance.randbytes(8)), make_secret(stage.chance.randbytes(32)))


def secret_of(token: str) -> str:
    parts = parse_key(token)
    assert parts is not None
    return parts.secret


def with_password(url: str, password: str) -> str:
    address = urlsplit(url)
    return address._replace(netloc=f"{ROLE}:{password}@{address.hostname}:{address.port}").geturl()


# ── the run ──


async def under_watch(run: Run) -> None:
    """Everything that a deployment has, and everything that goes wrong there, while somebody looks on."""
    stage, watched = run.stage, run.given
    async with watching_processes(watched.evidence):
        await _start(stage, watched)
        await _work(run, watched)
        await _rude(stage, watched)
        await _look_around(stage, watched)
        await _wrong_starts(stage, watched)
    for member in stage.members:
        await asyncio.to_thread(member.end)
    await _read_what_is_left(stage, watched)


async def _start(stage: Stage, watched: Watched) -> None:
    """A first start, which makes the first key; with it the others; two workers. No secret is an argument."""
    port = free_port()
    watched.server = f"http://127.0.0.1:{port}"
    config = stage.folder / "config"
    words: tuple[str, ...] = ("server", "--port", str(port), "--log-level", "DEBUG", "--log-format", "text")
    stage.add(
        "api", ropeway(*words), kept=True, env={"ROPEWAY_URL": watched.store, "XDG_CONFIG_HOME": str(config)}
    )
    await serving(stage, watched.server)
    # Beside SQLite's file, or among the user's own settings.
    (file,) = stage.folder.rglob("*.token")
    _keep(watched, "admin", file.read_text().strip())
    async with Visitor(watched.server, Evidence(), ANSWERS, watched.tokens["admin"]) as admin:
        for name, scope in KEYS.items():
            made = await admin.ask("POST", "/v1/keys", json={"name": name, "scopes": [scope]})
            _keep(watched, name, made.json()["token"])
    for name, url, token in (("direct", watched.store, ""), ("http", watched.server, watched.tokens["worker"])):
        watched.ports.append(free_port())
        words = ("worker", TRACED, "--queues", f"default,{watched.planted}", "--port", str(watched.ports[-1]))
        words += ("--log-level", "DEBUG", "--log-format", "json", "--lease-seconds", str(stage.lease_seconds))
        env = {"ROPEWAY_URL": url, "ROPEWAY_TOKEN": token, "CHAOS_TOLD": watched.told}
        env["CHAOS_TRACES"] = str(stage.folder / SPANS)
        stage.add(f"worker-{name}", ropeway(*words), kept=True, env=env)


def _keep(watched: Watched, name: str, token: str) -> None:
    watched.tokens[name] = token
    watched.hide(f"the key {name}", secret_of(token))


async def _work(run: Run, watched: Watched) -> None:
    """Jobs that go well, that fail, and whose payload does not fit; the database or the server crashes."""
    stage = run.stage
    producer = await _recorded(stage, watched, "producer")
    secret = json.dumps({"text": watched.payload}).encode()
    kinds = [
        ("chaos.keep", secret),
        ("chaos.drop", secret),
        ("chaos.block", json.dumps({"seconds": watched.payload}).encode()),
        ("chaos.tell", b"{}"),
        ("chaos.ok", b"{}"),
    ]
    every = max(1, run.size.jobs // (run.size.faults + 1))
    for index in range(run.size.jobs):
        kind, payload = kinds[index % len(kinds)]
        queue = watched.planted if stage.chance.random() < 0.3 else "default"
        job = NewJob(kind, payload, queue=queue, idempotency_key=f"job-{index}", max_attempts=2)
        await accepted(producer, job, stage.chance)
        if index % every == every - 1 and run.faults < run.size.faults:
            await _crash(stage, watched)
            run.faults += 1
    await _work_by_hand(run, watched, producer)
    # What has not ended by then the checker names.
    with contextlib.suppress(RunBroken):
        await stage.until(lambda: _nothing_live(stage), "every job has ended", within=DRAIN_SECONDS)


async def _crash(stage: Stage, watched: Watched) -> None:
    """What others depend on ends without a word, and is there again."""
    if stage.server is not None:
        await nemesis.crash_database(stage)
        return
    (server,) = stage.named("api")
    began = time.monotonic()
    server.signal_all(signal.SIGKILL)
    await serving(stage, watched.server)
    stage.nemesis.write("fault", "ok", kind="server", began=began, until=time.monotonic())


async def _work_by_hand(run: Run, watched: Watched, producer: RecordingEngine) -> None:
    """One job whose ticket is known here."""
    job = NewJob(
        "chaos.ok", json.dumps({"text": watched.payload}).encode(), queue="by-hand", idempotency_key="by-hand"
    )
    await accepted(producer, job, run.stage.chance)
    worker = await _recorded(run.stage, watched, "worker")
    (leased,) = await leased_here(worker, run, "by-hand", 1)
    watched.hide("a lease's token", leased.lease.token.bytes, STORE)
    watched.hide("a lease's token", str(leased.lease.token), STORE)
    await worker.settle([Settlement(leased.lease, Done(json.dumps(watched.payload).encode()))])


async def _recorded(stage: Stage, watched: Watched, name: str) -> RecordingEngine:
    engine = engine_for(Settings.load({"url": watched.server, "token": watched.tokens[name]}))
    await engine.open()
    stage.afterwards(engine.close)
    return RecordingEngine(engine, Recorder(stage.histories, f"by-{name}"))


async def _nothing_live(stage: Stage) -> bool:
    return await stage.live() == 0


# ── what goes wrong ──


async def _rude(stage: Stage, watched: Watched) -> None:
    """Wrong keys in every place where a key may be put, and bodies that are refused."""
    unknown, cut, body = strange_key(stage), word(stage.chance), word(stage.chance)
    watched.hide("a key that nobody has made", secret_of(unknown))
    watched.hide("a key that was cut", cut)
    watched.hide("a body that was refused", body)
    async with Visitor(watched.server, watched.evidence, ANSWERS) as nobody:
        for words in (f"Bearer {unknown}", f"Bearer rw_live_{cut}", f"Basic {cut}", f"bearer\t{cut}", cut):
            await nobody.ask("GET", "/v1/jobs", headers={"Authorization": words})
            await nobody.ask("POST", "/v1/jobs", headers={"Authorization": words}, json={"type": body})
        await nobody.ask("GET", "/", headers={"Cookie": f"ropeway_session={cut}"})
        for ending in (f"token={unknown}", f"ticket={cut}", f"api_key={cut}"):
            await nobody.ask("GET", f"/v1/events?{ending}")
            await nobody.ask("GET", f"/ui/enter?{ending}")
        for key in (unknown, cut):
            await nobody.ask("POST", "/ui/login", data={"key": key})
    port = urlsplit(watched.server).port
    assert port is not None
    head = f"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization Bearer {cut}\r\n\r\n"
    await say_plainly(port, head.encode(), watched.evidence)
    async with Visitor(watched.server, watched.evidence, ANSWERS, watched.tokens["producer"]) as producer:
        for content in refused_bodies(body, watched.planted):
            await producer.ask("POST", "/v1/jobs", content=content, headers={"Content-Type": "application/json"})
    async with Visitor(watched.server, watched.evidence, ANSWERS, watched.tokens["worker"]) as worker:
        ack = {"lease_token": cut, "result": body}
        await worker.ask("POST", f"/v1/jobs/{await _some_id(stage)}/ack", json=ack)
        await worker.ask("POST", "/v1/leases/ack", json={"items": [{**ack, "id": "nobody"}]})


def refused_bodies(secret: str, planted: str) -> list[bytes]:
    """Bodies of an enqueue with a value that must not be told again; in one the name of a field may be."""
    payload = f'"payload":{{"text":"{secret}"}}'
    return [
        f'{{"type":"chaos.ok",{payload}'.encode(),
        f"{secret} is not JSON".encode(),
        f'{{"type":"chaos.ok",{payload},"priority":"{secret}"}}'.encode(),
        f'{{"type":"chaos.ok",{payload},"max_attempts":0}}'.encode(),
        f'{{"type":"chaos.ok",{payload},"run_at":"{secret}"}}'.encode(),
        f'{{"type":"chaos.ok",{payload},{payload}}}'.encode(),
        f'{{"type":"chaos.ok","payload":"{secret}\\u0000"}}'.encode(),
        f'{{"type":"chaos.ok","payload":["{secret}",1e999]}}'.encode(),
        f'{{"type":"chaos.ok","payload":{"[" * 100}"{secret}"{"]" * 100}}}'.encode(),
        f'{{"type":"chaos.ok","payload":"{secret}\\ud800"}}'.encode(),
        f'{{"type":"chaos.ok","payload":"{secret}'.encode() + b'\xff"}',
        f'{{"type":"chaos.ok",{payload},"idempotency_key":"job-0"}}'.encode(),
        f'{{"type":"chaos.ok","{planted}":"{secret}"}}'.encode(),
    ]


async def _wrong_starts(stage: Stage, watched: Watched) -> None:
    """Commands with addresses and keys that are wrong, each in another way."""
    words = [word(stage.chance) for _ in range(7)]
    for each in words:
        watched.hide("a password or key of a wrong start", each)
    # Where there is no database nobody answers there, which is wrong enough.
    database = stage.direct if stage.server is not None else f"postgresql://{ROLE}@127.0.0.1:1/chaos"
    address, http = urlsplit(database), urlsplit(watched.server)
    place = f"{address.hostname}:{address.port}{address.path}"
    migrate, jobs = ("migrate", "status"), ("jobs", "list")
    starts: list[tuple[tuple[str, ...], Mapping[str, str]]] = [
        (migrate, {"ROPEWAY_URL": with_password(database, words[0])}),
        (migrate, {"ROPEWAY_URL": f"postgresql://{ROLE}:{words[1]}@127.0.0.1:1/chaos"}),
        # Signs that a password must not have in an address as they are.
        (migrate, {"ROPEWAY_URL": f"postgresql://{ROLE}:{words[2]}/x@{place}"}),
        (migrate, {"ROPEWAY_URL": f"postgresql://{ROLE}:x@{words[3]}@{place}"}),
        (migrate, {"ROPEWAY_URL": words[4]}),
        (jobs, {"ROPEWAY_URL": f"http://somebody:{words[5]}@127.0.0.1:{http.port}"}),
        (jobs, {"ROPEWAY_URL": watched.server, "ROPEWAY_TOKEN": f"rw_live_{words[6]}"}),
        (("settings",), {"ROPEWAY_URL": watched.store, "ROPEWAY_TOKEN": watched.tokens["admin"]}),
        (("settings", "--json"), {"ROPEWAY_URL": watched.store, "ROPEWAY_TOKEN": watched.tokens["admin"]}),
    ]
    for number, (command, env) in enumerate(starts):
        plain = {"PYTHONPATH": python_path(recorded=False)}
        member = stage.add(f"start{number}", ropeway(*command), kept=False, env={**plain, **env})
        code = await asyncio.to_thread(member.process.wait, 60)
        if (code == 0) is not (command[0] == "settings"):
            raise RunBroken(f"ropeway {command[0]} ended with {code} (start {number})")


# ── what can be seen ──


async def _look_around(stage: Stage, watched: Watched) -> None:
    """Everything that the server shows: to a key that may read, to one that may see payloads, to nobody."""
    ids = await _ids(stage)
    jobs = [f"/v1/jobs/{id}{part}" for id in ids for part in ("", "/detail", "/events", "/logs", "/explain")]
    lists = ["/v1/jobs?limit=500", "/v1/dlq?limit=500", "/v1/dlq/groups", "/v1/queues", "/v1/workers", "/v1/stats"]
    pages = ["", "queues", "jobs", "dead", "schedules", "workers", "events", "audit", "settings"]
    pages = ["/" if not page else f"/ui/{page}" for page in pages] + [f"/ui/jobs/{id}" for id in ids]
    async with Visitor(watched.server, watched.evidence, ANSWERS, watched.tokens["reader"]) as reader:
        await reader.look(*lists, *jobs, "/v1/jobs?limit=500&include=payload,result,traceback")
        await reader.look("/metrics", place=METRICS)
        await reader.ask("GET", "/v1/events", place=EVENTS, headers={"Accept": "application/json"})
        await reader.listen("/v1/events?after=start")
    async with Visitor(watched.server, watched.evidence, ANSWERS, watched.tokens["producer"]) as producer:
        await producer.look(*jobs)
    async with Visitor(watched.server, watched.evidence, ANSWERS, watched.tokens["admin"]) as admin:
        await admin.look("/v1/keys", "/v1/audit")
    async with Visitor(watched.server, watched.evidence, ANSWERS) as nobody:
        await nobody.look("/health", "/ready", "/openapi.json", "/", "/metrics", "/v1/jobs")
    async with Visitor(watched.server, watched.evidence, PAYLOADS, watched.tokens["auditor"]) as auditor:
        await auditor.look(*jobs, "/v1/jobs?limit=500&include=payload,result,traceback")
    for name, place in (("reader", PAGES), ("auditor", PAYLOADS)):
        async with Visitor(watched.server, watched.evidence, place) as person:
            await person.ask("POST", "/ui/login", data={"key": watched.tokens[name]})
            await person.look(*pages)
    for port in watched.ports:
        async with Visitor(f"http://127.0.0.1:{port}", watched.evidence, METRICS) as nobody:
            await nobody.look("/metrics", "/health", "/ready")


async def _ids(stage: Stage) -> list[str]:
    """Of two jobs of each type, one of them in the queue with the name."""
    engine = await stage.engine()
    page = await engine.find(order="newest", limit=200)
    chosen = {(job.type, job.queue): str(job.id) for job in page.jobs}
    return list(chosen.values())


async def _some_id(stage: Stage) -> str:
    return (await _ids(stage))[0]


async def _read_what_is_left(stage: Stage, watched: Watched) -> None:
    """Logs of all processes and of the database, spans, histories, the event log row by row, the whole store."""
    evidence = watched.evidence
    for path in (*stage.folder.glob("*.log"), *stage.histories.glob("*.jsonl")):
        evidence.add(LOGS, path.name, path.read_bytes())
    evidence.add(TRACES, SPANS, (stage.folder / SPANS).read_bytes())
    if stage.server is None:
        await asyncio.to_thread(_read_file, stage, evidence)
        return
    evidence.add(LOGS, "PostgreSQL's log", stage.server.log().encode())
    connection = await asyncpg.connect(stage.direct)
    try:
        for row in await connection.fetch(
            "SELECT e::text FROM ropeway.events e UNION ALL SELECT p::text FROM ropeway.event_packs p"
        ):
            evidence.add(EVENTS, "a row of the event log", row[0].encode())
    finally:
        await connection.close()
    copied = stage.folder / "store.sql"
    await asyncio.to_thread(dump, stage.server, stage.direct, copied)
    evidence.add(STORE, copied.name, copied.read_bytes())


def _read_file(stage: Stage, evidence: Evidence) -> None:
    """SQLite's file, with what is written beside it, and the rows of its event log."""
    file = Path(stage.direct.removeprefix("sqlite:///"))
    for path in (file, *file.parent.glob(f"{file.name}-*")):
        # By another process: to close a file is to give up the locks that this one has on it.
        evidence.add(STORE, path.name, subprocess.run(["cat", path], capture_output=True, check=True).stdout)
    with closing(sqlite3.connect(file)) as store:
        for row in store.execute("SELECT * FROM events"):
            words = [value if isinstance(value, bytes) else str(value).encode() for value in row]
            evidence.add(EVENTS, "a row of the event log", b"\0".join(words))


def nothing_was_told(_facts: Facts, run: Run) -> list[Violation]:
    """No canary is where it must not be, and the search finds those that are where they may be."""
    hits, found = search(run.given.evidence, run.given.canaries)
    run.notes["canaries"] = len(run.given.canaries)
    run.notes["searched, MiB"] = round(run.given.evidence.size / 2**20, 1)
    run.notes["hits"] = hits
    return found


EXPERIMENTS = (
    Experiment(
        id="E35",
        title="secrets and payloads looked for in all that others can see",
        small=Size(300, 1),
        full=Size(3_000, 5),
        faults=under_watch,
        bar=nothing_was_told,
        around=with_canaries,
        engines=("sqlite", "postgres"),
        alone=True,
    ),
)
