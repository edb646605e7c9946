"""What needs a lease token: one job at a time, or a batch with an answer per item.

A token that cannot be read is answered like one that is no longer current, by the same way and in the same words.
Calls with a token are never refused for rate: a finished job must be able to end.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from ropeway.api.heavy import SLOW_BYTES
from ropeway.api.routing import Call, Handler, Reply, Route
from ropeway.api.totals import Outcome, Total
from ropeway.core import fields, outcome
from ropeway.core.access import Scope
from ropeway.core.errors import BatchTooLarge, FieldError, InputError, RopewayError
from ropeway.core.events import milliseconds, rfc3339
from ropeway.core.job import Progress
from ropeway.core.joblog import LogLine
from ropeway.core.lease import Lease
from ropeway.engines.protocol import Beat, Settled, Settlement
from ropeway.wire import models, paths, requests
from ropeway.wire.convert import failed_of, lines_of, lost_of, progress_of, snoozed_of
from ropeway.wire.objects import Object, time_or_none
from ropeway.wire.problems import problem_of
from ropeway.wire.tokens import lease_of

#: One item of a call: the lease it claims to hold, and what it says.
Item = tuple[Lease, Outcome[Any]]
#: What an item is answered: the members of its reply, or the problem.
Answer = Object | RopewayError
Verb = Callable[[Call, Sequence[Item]], Awaitable[list[Answer]]]


# ── Outcomes ──


def _settling(
    name: str, make: Callable[[Call, Outcome[Any]], outcome.Outcome], tell: Callable[[Settled], Object]
) -> Verb:
    """A verb that ends a lease. `make` may refuse an item; the rest of the batch is not affected."""
    already = f"already_{name}"

    async def verb(call: Call, items: Sequence[Item]) -> list[Answer]:
        answers: list[Answer | None] = []
        settlements: list[Settlement] = []
        for lease, said in items:
            try:
                settlements.append(Settlement(lease, make(call, said)))
                answers.append(None)
            except InputError as error:
                answers.append(error)
        settled = iter(await call.deps.engine.settle(settlements, tenant=call.tenant) if settlements else ())
        call.deps.streams.poke()
        done: list[Answer] = []
        for answer in answers:
            one = answer if answer is not None else next(settled)
            if isinstance(one, Settled):
                told = tell(one)
                if one.already:
                    told[already] = True
                done.append(told)
            else:
                done.append(one)
        return done

    return verb


def _done(call: Call, said: Outcome[requests.AckBody]) -> outcome.Done:
    body = said.body
    if body.result_too_large:
        # More than any store keeps, so that it is the store that drops it and says so.
        return outcome.Done(bytes(call.deps.settings.max_payload_bytes + 1))
    if said.result is None and body.result_base64 is not None:
        try:
            return outcome.Done(b64decode(body.result_base64, validate=True))
        except (BadBase64, ValueError):
            raise FieldError("result_base64 is not base64", pointer="/result_base64") from None
    return outcome.Done(said.result)


def _failed(_: Call, said: Outcome[requests.NackBody]) -> outcome.Failed:
    return failed_of(said.body, sanitized=said.sanitized)


def _snoozed(_: Call, said: Outcome[requests.SnoozeBody]) -> outcome.Snoozed:
    return snoozed_of(said.body)


def _released(_: Call, __: Outcome[requests.ReleaseBody]) -> outcome.Released:
    return outcome.Released()


def _lost(_: Call, said: Outcome[requests.LoseBody]) -> outcome.Lost:
    return lost_of(said.body)


def _acked(one: Settled) -> Object:
    told: Object = {"id": str(one.id), "status": one.state.value}
    if one.sanitized:
        told["sanitized"] = True
    if one.result_too_large:
        told["result_too_large"] = True
    return told


def _nacked(one: Settled) -> Object:
    told: Object = {
        "id": str(one.id),
        "status": one.state.value,
        "attempts": one.attempts,
        "run_at": time_or_none(one.run_at),
        "retry_in_ms": None if one.retry_in is None else milliseconds(one.retry_in),
    }
    if one.sanitized:
        told["sanitized"] = True
    if one.truncated:
        told["truncated"] = True
    return told


def _is_snoozed(one: Settled) -> Object:
    run_at = time_or_none(one.run_at)
    return {"id": str(one.id), "status": one.state.value, "run_at": run_at, "attempts": one.attempts}


def _is_released(one: Settled) -> Object:
    return _is_snoozed(one)


_lose_all = _settling("lost", _lost, _is_released)


async def _lose(call: Call, items: Sequence[Item]) -> list[Answer]:
    """Also tells how often a job's lease was lost, which the engine does not say in the same breath."""
    answers = await _lose_all(call, items)
    told = [answer for answer in answers if not isinstance(answer, RopewayError)]
    if told:
        jobs = await call.deps.engine.get([UUID(one["id"]) for one in told], tenant=call.tenant)
        for one, job in zip(told, jobs, strict=True):
            one["lease_lost_count"] = None if job is None else job.lease_lost_count
    return answers


# ── Signs of life ──


async def _heartbeat(call: Call, items: Sequence[Item]) -> list[Answer]:
    """Items that ask for the same length go together; one call to the engine per length."""
    answers: list[Answer] = [{}] * len(items)
    by_length: dict[float | None, list[int]] = {}
    for place, (_, said) in enumerate(items):
        length = said.body.lease_seconds
        try:
            if length is not None:
                fields.check_seconds(length, "lease_seconds", 1, fields.MAX_LEASE_SECONDS)
            by_length.setdefault(length, []).append(place)
        except InputError as error:
            answers[place] = error
    now = await call.deps.time.now()
    for length, places in by_length.items():
        leases = [items[place][0] for place in places]
        beats = await call.deps.engine.heartbeat(leases, lease_seconds=length, tenant=call.tenant)
        for place, lease, beat in zip(places, leases, beats, strict=True):
            if isinstance(beat, Beat):
                answers[place] = {
                    "id": str(lease.job_id),
                    "lease_seconds": round(beat.expires_in, 3),
                    "locked_until": rfc3339(now + timedelta(seconds=beat.expires_in)),
                    "expires_in": beat.expires_in,
                    "revoked": [str(id) for id in beat.revoked],
                }
            else:
                answers[place] = beat
    return answers


async def _progress(call: Call, items: Sequence[Item]) -> list[Answer]:
    """Notes first, then lines: an item whose lease is lost has written neither."""
    answers: list[Answer] = [{"id": str(lease.job_id)} for lease, _ in items]
    notes: list[tuple[int, Lease, Progress]] = []
    lines: list[tuple[int, Lease, LogLine]] = []
    for place, (lease, said) in enumerate(items):
        some = lines_of(said.body)
        note = progress_of(said.body)
        if note is not None or not some:
            notes.append((place, lease, note or Progress()))
        lines += [(place, lease, line) for line in some]
    if notes:
        _fill(answers, notes, await call.deps.engine.progress([each[1:] for each in notes], tenant=call.tenant))
    lines = [each for each in lines if not isinstance(answers[each[0]], RopewayError)]
    if lines:
        _fill(answers, lines, await call.deps.engine.log([each[1:] for each in lines], tenant=call.tenant))
    return answers


def _fill(
    answers: list[Answer], asked: Sequence[tuple[int, Lease, Any]], written: Sequence[RopewayError | None]
) -> None:
    for (place, _, _), error in zip(asked, written, strict=True):
        if error is not None:
            answers[place] = error


# ── The two forms of each verb ──


def _one(verb: Verb, total: Total[Any]) -> Handler:
    async def handler(call: Call) -> Reply:
        raw = call.raw
        said = total.read(raw) if len(raw) <= SLOW_BYTES else await call.deps.heavy.run(total.read, raw)
        (answer,) = await verb(call, [(lease_of(call.job_id, said.body.lease_token), said)])
        if isinstance(answer, RopewayError):
            raise answer
        return Reply(200, answer)

    return handler


def _batch(verb: Verb, total: Total[Any]) -> Handler:
    async def handler(call: Call) -> Reply:
        said = await call.deps.heavy.by_size(len(call.raw), total.read_items, call.raw)
        if not said:
            raise FieldError("a batch has at least one item", pointer="/items")
        if len(said) > fields.MAX_BATCH:
            raise BatchTooLarge(f"a batch has at most {fields.MAX_BATCH:,} items", hint="split it")
        items: list[Item] = []
        refused: dict[int, RopewayError] = {}
        for place, one in enumerate(said):
            try:
                items.append((lease_of(fields.parse_id(one.body.id), one.body.lease_token), one))
            except FieldError as error:
                refused[place] = error
        answers = iter(await verb(call, items) if items else ())
        return Reply(
            200,
            {
                "results": [
                    _told(call, one.body.id, refused[place] if place in refused else next(answers))
                    for place, one in enumerate(said)
                ]
            },
        )

    return handler


def _told(call: Call, id: str, answer: Answer) -> Object:
    if isinstance(answer, RopewayError):
        return {"id": id[:_LONGEST_ID], "ok": False, "error": problem_of(answer, call.request_id)}
    answer["ok"] = True
    return answer


#: What an item calls its id is told back, but not at any length.
_LONGEST_ID = 64


class _Form(NamedTuple):
    verb: Verb
    body: type[Any]
    item: type[Any]
    batch: type[Any]
    reply: type[Any]
    summary: str
    codes: tuple[str, ...] = ()


_WHEN = ("invalid_field", "conflicting_fields", "timezone_required", "invalid_time")

FORMS: dict[paths.TokenVerb, _Form] = {
    "ack": _Form(
        _settling("acked", _done, _acked),
        requests.AckBody,
        requests.AckItem,
        requests.AckBatch,
        models.AckReply,
        "A job succeeded; whatever is wrong with its result, it has",
    ),
    "nack": _Form(
        _settling("nacked", _failed, _nacked),
        requests.NackBody,
        requests.NackItem,
        requests.NackBatch,
        models.NackReply,
        "A job failed: it is tried again, or is dead",
    ),
    "snooze": _Form(
        _settling("snoozed", _snoozed, _is_snoozed),
        requests.SnoozeBody,
        requests.SnoozeItem,
        requests.SnoozeBatch,
        models.SnoozeReply,
        "Run a job again later; the attempt does not count",
        _WHEN,
    ),
    "release": _Form(
        _settling("released", _released, _is_released),
        requests.ReleaseBody,
        requests.ReleaseItem,
        requests.ReleaseBatch,
        models.ReleaseReply,
        "Give a job back that was not run; the attempt does not count",
    ),
    "lose": _Form(
        _lose,
        requests.LoseBody,
        requests.LoseItem,
        requests.LoseBatch,
        models.LoseReply,
        "The process that ran a job has died",
    ),
    "heartbeat": _Form(
        _heartbeat,
        requests.HeartbeatBody,
        requests.HeartbeatItem,
        requests.HeartbeatBatch,
        models.HeartbeatReply,
        "Extend a lease, with all jobs of the same lease call",
    ),
    "progress": _Form(
        _progress,
        requests.ProgressBody,
        requests.ProgressItem,
        requests.ProgressBatch,
        models.ProgressReply,
        "Say how far a job is, and write lines to its log",
    ),
}


#: Verbs whose words may be of any length: they are cut or left out, never refused (G14).
OUTCOMES = frozenset({"ack", "nack"})


def handler_of(name: paths.TokenVerb) -> Handler:
    """The handler of a verb for one job."""
    return _one(FORMS[name].verb, Total(FORMS[name].body))


def _routes() -> Iterator[Route]:
    for name, form in FORMS.items():
        codes = ("invalid_id", "invalid_field", "lease_lost", "terminal", "indeterminate", *form.codes)
        yield Route(
            "POST",
            f"{paths.JOB}/{name}",
            handler_of(name),
            name=f"{name}_job",
            scopes=(Scope.WORK,),
            body=form.body,
            lenient=True,
            large=name in OUTCOMES,
            free=True,
            replies={200: form.reply},
            codes=tuple(dict.fromkeys(codes)),
            summary=form.summary,
            tag="workers",
        )
        yield Route(
            "POST",
            paths.leases(name),
            _batch(form.verb, Total(form.batch, form.item)),
            name=f"{name}_jobs",
            scopes=(Scope.WORK,),
            body=form.batch,
            lenient=True,
            large=True,
            free=True,
            replies={200: models.BatchReply},
            codes=("invalid_field", "batch_too_large", "indeterminate"),
            summary=f"{form.summary}: a batch, with an answer per item",
            tag="workers",
        )


ROUTES: tuple[Route, ...] = tuple(_routes())
