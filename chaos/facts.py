"""A run as the checker sees it: the lines of all processes, and what the engine holds in the end, by job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
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
    #: Who asked.
    process: str = ""


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
class LostLease:
    """A question for leases that nobody was answered: what it was given, if anything, is in the log alone."""

    asked: float
    pid: int


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
    #: Whoever asked may have asked more than once: again, by itself, when an answer was lost.
    repeats: bool = False

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
    #: The process was met with all that belongs to its worker, not alone.
    whole: bool = False
    #: The worker's name, as far as whoever did it knew.
    worker: str = ""
    #: What was done to several processes at once has one number; 0: it stands alone.
    act: int = 0


#: Faults that one process has, and those of them that end it for good.
OF_ONE_PROCESS = frozenset({"kill", "pause", "cut", "term", "point", "pill"})
DEADLY = frozenset({"kill", "pill"})

#: The database's clock goes forward or back; the line says by how much it is wrong from then on.
CLOCK_STEP = "database clock"


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
    #: The processes that beat, answered or not, by owner.
    beaters: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    lost_leases: list[LostLease] = field(default_factory=list)
    #: What each process is called: those of one worker have one name.
    names: dict[int, str] = field(default_factory=dict)
    #: Begin and end of the load, by the name of the phase that began then.
    phases: dict[str, float] = field(default_factory=dict)
    #: The first and the last moment of which anything is known.
    span: tuple[float, float] = (-inf, inf)
    #: From when on the engine's clock was wrong, and by how many seconds.
    steps: list[tuple[float, float]] = field(default_factory=list)
    #: Rows that transactional handlers wrote, by job.
    effects: dict[str, int] = field(default_factory=dict)
    #: What a follower of the event log saw, in its order: job and seq. None: nobody followed.
    seen: list[tuple[str, int]] | None = None
    #: What the engine counts by state, to be compared with the jobs that were read. None: not asked.
    counts: Mapping[str, int] | None = None
    #: What the servers say that they stored, by their metrics. None: there was none, or not all of the time.
    served: Mapping[str, int] | None = None
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

    @property
    def directions(self) -> list[tuple[float, bool]]:
        """When the engine's clock was stepped, and whether forward."""
        before = [0.0, *(error for _, error in self.steps)]
        return [(at, error > was) for (at, error), was in zip(self.steps, before, strict=False)]

    def when(self, at: float) -> float:
        """The monotonic time of one of the engine's times.

        Where its clock was stepped: the moment at which it showed that time. There is only one, because steps are
        larger than a run is long.
        """
        plain = at - self.epoch
        if not self.steps:
            return plain
        begins = [self.span[0], *(begin for begin, _ in self.steps)]
        ends = [*begins[1:], self.span[1]]
        errors = [0.0, *(error for _, error in self.steps)]
        # A step is written down a moment before or after it is done: who misses by least is right.
        _, found = min(
            (max(begin - (plain - error), plain - error - end, 0.0), plain - error)
            for begin, end, error in zip(begins, ends, errors, strict=True)
        )
        return found


def gather(lines: Iterable[Mapping[str, Any]], final: Mapping[str, Any]) -> Facts:
    """The facts of one run. `final` is what `snapshot` wrote of the engine after the drain."""
    facts = Facts(
        counts=final.get("counts"),
        served=final.get("served"),
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
    first, last = inf, -inf
    for line in lines:
        op = line["op"]
        first, last = min(first, line["t"]), max(last, line["t"])
        if op == "start":
            start = Start(line["job"], line["attempt"], line.get("token"), line["t"], line["pid"])
            facts.starts[start.job].append(start)
        elif op == "fault":
            _note_fault(facts, line)
            continue
        elif op == "phase":
            facts.phases.setdefault(line["name"], line["t"])
            continue
        facts.names.setdefault(line["pid"], line["process"])
        if line["phase"] == INVOKE:
            open_calls[line["process"], line["pid"], line["n"]] = line
        elif line["phase"] in (OK, FAIL, INFO) and "n" in line:
            asked = open_calls.pop((line["process"], line["pid"], line["n"]), None)
            if asked is not None:
                _note(facts, asked, line)
    facts.span = (first, last)
    # Whoever asked and was never answered died, or is still waiting.
    for asked in open_calls.values():
        _note(facts, asked, None)


def _note_fault(facts: Facts, line: Mapping[str, Any]) -> None:
    at = line.get("began", line["t"])
    fault = Fault(
        line["kind"],
        at,
        line.get("until", line["t"]),
        line.get("target_pid", 0),
        line.get("whole", False),
        line.get("worker", ""),
        line.get("act", 0),
    )
    facts.faults.append(fault)
    if fault.kind == CLOCK_STEP:
        facts.steps.append((at, float(line["offset"])))


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
                        asked["process"],
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
            elif phase == INFO:
                facts.lost_leases.append(LostLease(asked["t"], asked["pid"]))
        case "settle":
            answers = told["answers"] if told is not None and phase == OK else [["", False]] * len(asked["items"])
            for (job, attempt, token, verb), (answer, already) in zip(asked["items"], answers, strict=True):
                repeats = asked.get("repeats", False)
                facts.calls[job].append(
                    Call(verb, job, attempt, token, asked["t"], ended, phase, answer, already, repeats)
                )
        case "heartbeat":
            answers = told["answers"] if told is not None and phase == OK else [{}] * len(asked["items"])
            for (job, attempt, token), answer in zip(asked["items"], answers, strict=True):
                word = answer.get("refused") or ("lease_lost" if job in answer.get("revoked", ()) else "beat")
                facts.calls[job].append(
                    Call("heartbeat", job, attempt, token, asked["t"], ended, phase, word if answer else "")
                )
        case "heartbeat_owner":
            facts.beaters[asked["owner"]].add(asked["pid"])
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
