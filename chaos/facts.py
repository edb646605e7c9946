"""A run as the checker sees it: the lines of all processes, and what the engine holds in the end, by job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chaos.history import FAIL, INFO, INVOKE, OK


@dataclass(frozen=True, slots=True)
class Enqueue:
    """One job that somebody asked for. `id` is what the answer said; None when there was no answer."""

    key: str | None
    type: str
    asked: float
    ended: float | None
    phase: str
    id: str | None
    deduplicated: bool = False
    #: Seconds that it asked to wait before its first start.
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Grant:
    """One lease that a worker was told of: asked for, told, for how long, and by whom."""

    job: str
    attempt: int
    token: str
    asked: float
    told: float
    seconds: float
    owner: str
    pid: int
    #: When the job was due, by the engine's clock; 0: not told.
    due: float = 0.0


@dataclass(frozen=True, slots=True)
class Start:
    """A handler began to run, by the ledger outside the engine."""

    job: str
    attempt: int
    token: str | None
    at: float
    pid: int


@dataclass(frozen=True, slots=True)
class Call:
    """One verb with one ticket, or one operator's verb (`attempt` 0). `answer` is a state, a refusal's code, or
    `beat`; empty when there was none."""

    verb: str
    job: str
    attempt: int
    token: str
    asked: float
    ended: float | None
    phase: str
    answer: str = ""
    already: bool = False

    @property
    def accepted(self) -> bool:
        """The engine said that this very call took effect."""
        return self.phase == OK and not self.already and self.answer not in REFUSALS

    @property
    def unknown(self) -> bool:
        """Nobody knows whether it took effect."""
        return self.phase == INFO


@dataclass(frozen=True, slots=True)
class EventFact:
    """One event of the engine's own log, with the engine's own time in seconds since 1970."""

    name: str
    seq: int
    attempt: int
    at: float
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Final:
    """A job as the engine holds it after the drain."""

    id: str
    type: str
    state: str
    attempt: int
    attempts: int
    max_attempts: int
    lost: int
    key: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """What the nemesis did, to whom (pid 0: not to one process), and until when."""

    kind: str
    at: float
    until: float
    pid: int = 0


#: What a call that changed nothing is told.
REFUSALS = frozenset({"lease_lost", "terminal", "not_found", "conflict", "refused"})


@dataclass
class Facts:
    """Everything that is known of one run."""

    enqueues: list[Enqueue] = field(default_factory=list)
    grants: dict[str, list[Grant]] = field(default_factory=lambda: defaultdict(list))
    starts: dict[str, list[Start]] = field(default_factory=lambda: defaultdict(list))
    calls: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    events: dict[str, list[EventFact]] = field(default_factory=lambda: defaultdict(list))
    finals: dict[str, Final] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    #: Asked and told, by owner: each beat that was taken extends every grant of that owner.
    beats: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    #: When beats were asked for that nobody answered, by owner.
    unanswered: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    #: Rows that transactional handlers wrote, by job.
    effects: dict[str, int] = field(default_factory=dict)
    #: What a follower of the event log saw, in its order: job and seq. None: nobody followed.
    seen: list[tuple[str, int]] | None = None
    #: What the engine counts by state, to be compared with the jobs that were read. None: not asked.
    counts: Mapping[str, int] | None = None
    crash_limit: int = 3
    #: Seconds to add to a monotonic time to get the engine's.
    epoch: float = 0.0

    @property
    def accepted(self) -> dict[str, Enqueue]:
        """By id, the first answer that told of each job."""
        found: dict[str, Enqueue] = {}
        for each in self.enqueues:
            if each.phase == OK and each.id is not None:
                found.setdefault(each.id, each)
        return found


def gather(lines: Iterable[Mapping[str, Any]], final: Mapping[str, Any]) -> Facts:
    """The facts of one run. `final` is what `snapshot` wrote of the engine after the drain."""
    facts = Facts(
        counts=final.get("counts"),
        crash_limit=final.get("crash_limit", 3),
        epoch=final.get("epoch", 0.0),
        effects=dict(final.get("effects", {})),
    )
    if final.get("seen") is not None:
        facts.seen = [(job, seq) for job, seq in final["seen"]]
    for job in final["jobs"]:
        facts.finals[job["id"]] = Final(**job)
    for id, name, seq, attempt, at, data in final["events"]:
        facts.events[id].append(EventFact(name, seq, attempt, at, data))
    _read_lines(facts, lines)
    return facts


def _read_lines(facts: Facts, lines: Iterable[Mapping[str, Any]]) -> None:
    open_calls: dict[tuple[str, int, int], Mapping[str, Any]] = {}
    for line in lines:
        op = line["op"]
        if op == "start":
            start = Start(line["job"], line["attempt"], line.get("token"), line["t"], line["pid"])
            facts.starts[start.job].append(start)
        elif op == "fault":
            facts.faults.append(
                Fault(
                    line["kind"],
                    line.get("began", line["t"]),
                    line.get("until", line["t"]),
                    line.get("target_pid", 0),
                )
            )
        elif line["phase"] == INVOKE:
            open_calls[line["process"], line["pid"], line["n"]] = line
        elif line["phase"] in (OK, FAIL, INFO) and "n" in line:
            asked = open_calls.pop((line["process"], line["pid"], line["n"]), None)
            if asked is not None:
                _note(facts, asked, line)
    # Whoever asked and was never answered died, or is still waiting.
    for asked in open_calls.values():
        _note(facts, asked, None)


def _note(facts: Facts, asked: Mapping[str, Any], told: Mapping[str, Any] | None) -> None:
    phase = INFO if told is None else told["phase"]
    ended = None if told is None or phase == INFO else float(told["t"])
    match asked["op"]:
        case "enqueue":
            answers = told["answers"] if told is not None and phase == OK else [[None, False]] * len(asked["jobs"])
            for job, (id, deduplicated) in zip(asked["jobs"], answers, strict=True):
                facts.enqueues.append(
                    Enqueue(
                        job["key"],
                        job["type"],
                        asked["t"],
                        ended,
                        phase,
                        id,
                        deduplicated,
                        job.get("delay") or 0.0,
                    )
                )
        case "lease":
            if told is not None and phase == OK:
                for (job, attempt, token), due in zip(told["leases"], told["due"], strict=True):
                    facts.grants[job].append(
                        Grant(
                            job,
                            attempt,
                            token,
                            asked["t"],
                            told["t"],
                            asked["lease_seconds"],
                            asked["owner"],
                            asked["pid"],
                            due,
                        )
                    )
        case "settle":
            answers = told["answers"] if told is not None and phase == OK else [["", False]] * len(asked["items"])
            for (job, attempt, token, verb), (answer, already) in zip(asked["items"], answers, strict=True):
                facts.calls[job].append(Call(verb, job, attempt, token, asked["t"], ended, phase, answer, already))
        case "heartbeat":
            answers = told["answers"] if told is not None and phase == OK else [{}] * len(asked["items"])
            for (job, attempt, token), answer in zip(asked["items"], answers, strict=True):
                word = answer.get("refused") or ("lease_lost" if job in answer.get("revoked", ()) else "beat")
                facts.calls[job].append(
                    Call("heartbeat", job, attempt, token, asked["t"], ended, phase, word if answer else "")
                )
        case "heartbeat_owner":
            if told is None or phase != OK:
                facts.unanswered[asked["owner"]].append(asked["t"])
            elif told["answer"] is not None:
                facts.beats[asked["owner"]].append((asked["t"], told["t"]))
        case "cancel" | "redrive":
            answers = told["answers"] if told is not None and phase == OK else [["", None]] * len(asked["ids"])
            for job, (before, after) in zip(asked["ids"], answers, strict=True):
                answer = after if after is not None else before
                facts.calls[job].append(Call(asked["op"], job, 0, "", asked["t"], ended, phase, answer))
        case _:
            pass
