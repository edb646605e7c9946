"""What the plans are made of: jobs checked and written as JSON, calls put together, answers read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from math import isfinite
from types import MappingProxyType
from typing import Any, TypeAlias, TypedDict, TypeVar, cast
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw

from ropeway.core import fields
from ropeway.core.errors import FieldError, PayloadError
from ropeway.core.events import rfc3339
from ropeway.core.job import DEFAULT_PRIORITY, NewJob
from ropeway.core.retry import RetryPolicy, retry_policy
from ropeway.core.unique import Unique
from ropeway.runtime import ids
from ropeway.task.conversion import ENCODING_ERRORS, to_json
from ropeway.wire import models, paths
from ropeway.wire.calls import Answer, Call

T = TypeVar("T")

JobId: TypeAlias = UUID | str
#: A job that was leased, or the two things of it that matter: its id and its token.
Ticket: TypeAlias = models.LeasedJob | tuple[JobId, str]


class JobFields(TypedDict, total=False):
    """One job of a batch: the parameters of `enqueue` by name. Only `type` is required."""

    type: str
    payload: Any
    queue: str
    priority: int | str
    max_attempts: int
    run_at: datetime | None
    delay: float | None
    idempotency_key: str | None
    unique: Unique | None
    retry: RetryPolicy | str | None
    timeout: float
    expires_at: datetime | None
    expires_in: float | None
    tags: Sequence[str]
    headers: Mapping[str, str] | None


def value_of(raw: Raw | msgspec.UnsetType | None) -> Any:
    """The value of a `payload` or `result`; None when there is none, or the key may not see it."""
    return None if raw is None or raw is UNSET else msgspec.json.decode(raw)


def type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def new_job(given: JobFields) -> NewJob:
    """A checked job from its fields."""
    made: dict[str, Any] = dict(given)
    payload = made.pop("payload", UNSET)
    if payload is not UNSET:
        made["payload"] = as_json(payload, "payload")
    retry = made.get("retry")
    if isinstance(retry, str):
        made["retry"] = retry_policy(retry)
    made["priority"] = fields.parse_priority(made.get("priority", DEFAULT_PRIORITY))
    made["tags"] = tuple(made.get("tags", ()))
    made["headers"] = dict(made.get("headers") or {})
    try:
        return NewJob(**made)
    except TypeError:
        known = JobFields.__annotations__
        wrong = sorted(set(made) - set(known))
        if wrong:
            raise FieldError(
                f"a job has no field {wrong[0]!r}", code="unknown_field", pointer=f"/{wrong[0]}"
            ) from None
        raise FieldError("a job needs a type", pointer="/type") from None


def numbered(given: JobFields, index: int) -> NewJob:
    try:
        return new_job(given)
    except (FieldError, PayloadError) as error:
        error.index = index
        raise


def with_key(job: NewJob) -> tuple[NewJob, str]:
    """The job with a key, made here if it has none, and the key."""
    if job.idempotency_key is not None:
        return job, job.idempotency_key
    key = f"sdk-{ids.uuid7()}"
    return msgspec.structs.replace(job, idempotency_key=key), key


def not_a_duplicate_of_itself(made: models.EnqueuedBrief, own_key: bool) -> models.EnqueuedBrief:
    """Nobody else has the key that was made here: what it found is what an earlier try of this call has made."""
    if own_key:
        made.deduplicated = False
    return made


def as_json(value: Any, what: str) -> bytes:
    if isinstance(value, Raw):
        return bytes(value)
    _refuse_what_json_lacks(value, what)
    try:
        return to_json(value)
    except ENCODING_ERRORS as error:
        raise PayloadError(f"the {what} has no form in JSON: {error}", pointer="") from None


def _refuse_what_json_lacks(value: Any, what: str) -> None:
    """NaN and infinity would silently become null, and bytes text in base64."""
    seen = [value]
    while seen:
        one = seen.pop()
        if isinstance(one, float):
            if not isfinite(one):
                raise PayloadError(f"the {what} holds {one}, which JSON has no form for", code="number_range")
        elif isinstance(one, bytes | bytearray | memoryview):
            raise PayloadError(
                f"the {what} holds bytes, which JSON has no form for",
                hint="decode them, or wrap JSON in msgspec.Raw",
            )
        elif isinstance(one, Mapping):
            seen.extend(one.values())
        elif isinstance(one, list | tuple | set | frozenset):
            seen.extend(one)


def id_of(id: JobId) -> UUID:
    return id if isinstance(id, UUID) else fields.parse_id(id)


def time_of(at: datetime | None, field: str) -> str | None:
    return None if at is None else rfc3339(fields.check_time(at, field))


def reader(kind: type[T]) -> Callable[[Answer], T]:
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.json.Decoder(kind)
    return lambda answer: cast(T, decoder.decode(answer.body))


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def get(path: str, kind: type[T]) -> Call[T]:
    return Call("GET", path, reader(kind), repeatable=True)


def post(
    path: str,
    body: object,
    read: Callable[[Answer], T],
    *,
    repeatable: bool = False,
    waits: float = 0.0,
    headers: Mapping[str, str] = MappingProxyType({}),
    keys: tuple[str, ...] = (),
) -> Call[T]:
    data = msgspec.json.encode(body)
    return Call("POST", path, read, body=data, headers=headers, repeatable=repeatable, waits=waits, keys=keys)


def with_token(leased: Ticket, verb: paths.TokenVerb, body: Mapping[str, object], kind: type[T]) -> Call[T]:
    """The same ticket again is answered alike, so every one of these may be repeated."""
    id, token = (leased.job.id, leased.lease_token) if isinstance(leased, models.LeasedJob) else leased
    return post(paths.job(id_of(id), verb), {"lease_token": token, **body}, reader(kind), repeatable=True)
