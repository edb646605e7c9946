"""Errors on the wire: `application/problem+json`, for both ends.

`CODES` is the only table from a code to its HTTP status. A server makes a `Problem` of an error (`problem_of`), a
client makes the same error of a `Problem` again (`error_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from ropeway.core import errors
from ropeway.core.errors import (
    BadArguments,
    ConfigurationError,
    EngineError,
    FieldError,
    InputError,
    JobEnded,
    PayloadError,
    RopewayError,
)
from ropeway.core.payload import clean_text

CONTENT_TYPE: Final = "application/problem+json"
#: A problem says what is wrong; it is not a place to carry data.
MAX_BYTES: Final = 4_096
_MAX_DETAIL = 600
_MAX_POINTER = 256


class Code(NamedTuple):
    """What is told about a code once. `meaning` is its entry in the documentation."""

    status: int
    title: str
    meaning: str


#: Every code that an answer may carry. The codes and statuses are promised.
CODES: Final[Mapping[str, Code]] = {
    "bad_request": Code(400, "Not HTTP", "The request is not valid HTTP/1.1. Nothing was done."),
    "malformed_json": Code(400, "Not JSON", "The body is not valid JSON. Nothing was stored."),
    "invalid_utf8": Code(400, "Not UTF-8", "The body is not valid UTF-8. Nothing was stored."),
    "duplicate_key": Code(
        400,
        "Key given twice",
        "An object has the same key twice; parsers disagree which one counts. Send it once.",
    ),
    "bad_cursor": Code(
        400, "Bad cursor", "The cursor was not made by this server for this key and question. Start from the top."
    ),
    "unauthenticated": Code(
        401,
        "Not authenticated",
        "No key, or one that is not good: unknown, wrong, expired or revoked. Send `Authorization: Bearer <key>`.",
    ),
    "missing_scope": Code(
        403, "Key may not do this", "The key is good, but it lacks the scope that this call needs."
    ),
    "bad_origin": Code(
        403, "Origin not allowed", "A browser page of another origin made the call. Only listed origins may."
    ),
    "not_found": Code(404, "Not found", "There is no such thing, or not for this key's tenant."),
    "method_not_allowed": Code(
        405, "Method not allowed", "The path exists, not with this method. `Allow` lists them."
    ),
    "request_timeout": Code(408, "Request took too long", "The body did not arrive in time. Send it again."),
    "lease_lost": Code(
        409,
        "Lease lost",
        "The token is not the job's current one: the lease expired and was taken back, the job was cancelled, or "
        "the token is wrong. Stop working on the job; its outcome is not yours to write.",
    ),
    "terminal": Code(409, "Job has ended", "The job has already ended; `job_status` says how."),
    "invalid_state": Code(409, "Not in this state", "The verb does not apply to a job in its present state."),
    "key_in_flight": Code(
        409,
        "Key in use",
        "Another request with the same idempotency key has not been decided. Repeat it in a moment.",
    ),
    "name_taken": Code(409, "Name taken", "Something else already has that name."),
    "position_expired": Code(
        410, "Position expired", "The event log no longer reaches back that far. Start from its present beginning."
    ),
    "payload_too_large": Code(413, "Too large", "The payload or the body is larger than is accepted."),
    "batch_too_large": Code(
        413, "Batch too large", "More items or bytes in one call than a batch may have. Split it."
    ),
    "unsupported_media_type": Code(
        415, "Unsupported media type", "Send `Content-Type: application/json`, uncompressed."
    ),
    "wrong_host": Code(
        421,
        "Wrong host",
        "The `Host` header names a host that this server was not told it is (`ROPEWAY_HOST_NAMES`).",
    ),
    "invalid_field": Code(
        422, "Invalid field", "A field or parameter breaks its rule; `errors` says which and why."
    ),
    "unknown_field": Code(422, "Unknown field", "There is no such field or parameter. Nothing was stored."),
    "invalid_id": Code(422, "Invalid id", "An id is a lower-case UUID with dashes."),
    "number_range": Code(
        422,
        "Number out of range",
        "A number fits neither a 64-bit integer nor a finite double. Send it as a string.",
    ),
    "too_deep": Code(422, "Nested too deeply", "JSON may be nested 64 levels deep."),
    "nul_character": Code(
        422, "NUL character", "A string holds the character U+0000, which not every store can keep."
    ),
    "invalid_unicode": Code(422, "Invalid Unicode", "A string holds half of a surrogate pair."),
    "timezone_required": Code(
        422, "Time zone required", "A time must say its zone, such as 2026-01-31T09:00:00Z."
    ),
    "invalid_time": Code(422, "Invalid time", "Not a time in the form of RFC 3339, or one out of range."),
    "idempotency_mismatch": Code(
        422, "Key used with another body", "The idempotency key was used before with another body. Take a new key."
    ),
    "conflicting_fields": Code(422, "Conflicting fields", "Two spellings of one thing in one request. Send one."),
    "key_required": Code(422, "Key required", "This queue takes only jobs with an idempotency key."),
    "not_supported": Code(422, "Not supported", "This server's engine lacks what the call needs."),
    "rate_limited": Code(
        429, "Too many requests", "The tenant's rate is used up. `Retry-After` says when to go on."
    ),
    "quota_exceeded": Code(429, "Quota used up", "The tenant's share of queued jobs, bytes or leases is used up."),
    "queue_full": Code(429, "Queue full", "The queue has reached its depth limit. Nothing was stored."),
    "headers_too_large": Code(431, "Headers too large", "At most 100 headers and 16 KiB of them are accepted."),
    "internal": Code(
        500,
        "Internal error",
        "A bug in Ropeway. The server's log has the reason under the request id; please report it.",
    ),
    "unavailable": Code(
        503, "Unavailable", "The store cannot be reached or refuses work. Nothing was stored; repeat."
    ),
    "indeterminate": Code(
        503,
        "Outcome unknown",
        "The connection to the store broke midway: it may have been stored. Repeat with the same key.",
    ),
}


class Flaw(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part of a request that was refused: a JSON pointer into the body, or `/` and the name of a parameter."""

    pointer: str
    code: str
    message: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of every answer that is an error. What it does not say is absent, not null."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: tuple[Flaw, ...] | None = None
    #: Which item of a batch was refused.
    index: int | None = None
    hint: str | None = None
    #: How the job ended, with `terminal`.
    job_status: str | None = None


class Refused(RopewayError):
    """A refusal of the HTTP face itself (a header, the host, the method); its code has no class of its own."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        hint: str | None = None,
        index: int | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message, hint=hint, index=index)
        self.code = code
        #: What the answer carries besides, such as `Allow`.
        self.headers = headers


# ── Error → problem ──

#: What is told, and what to do, when the request is not to blame: nothing of where the store is.
_OF_THE_STORE: Final[Mapping[str, tuple[str, str]]] = {
    "unavailable": (
        "The server or its store cannot take this just now. Nothing was stored.",
        "try again in a moment",
    ),
    "indeterminate": (
        "The store went away before it was known whether all of it was done.",
        "repeat it with the same idempotency key, or look before you repeat it",
    ),
}


def problem_of(error: RopewayError, request_id: str) -> Problem:
    """What a caller is told. An error that no caller can cause is `internal`, without its words."""
    code = code_of(error)
    if code == "internal":
        return problem("internal", "This is a bug; the server's log says more under the request id.", request_id)
    if isinstance(error, EngineError) and not isinstance(error, ConfigurationError):
        # Its own words may tell where the store is and what it said: they are for the log. Those of a setting that
        # must be put right are ours, and whoever asks needs them.
        detail, hint = _OF_THE_STORE[code]
        return problem(code, detail, request_id, index=error.index, hint=hint)
    pointer = error.pointer if isinstance(error, InputError) else None
    flaws = None if pointer is None else (Flaw(_cut(pointer, _MAX_POINTER), code, _cut(error.message)),)
    return problem(
        code,
        error.message,
        request_id,
        errors=flaws,
        index=error.index,
        hint=error.hint,
        job_status=error.status if isinstance(error, JobEnded) else None,
    )


def problem(
    code: str,
    detail: str,
    request_id: str,
    *,
    errors: tuple[Flaw, ...] | None = None,
    index: int | None = None,
    hint: str | None = None,
    job_status: str | None = None,
) -> Problem:
    """A problem by its code."""
    status, title, _ = CODES[code]
    return Problem(
        type=f"/errors/{code}",
        title=title,
        status=status,
        detail=_cut(detail),
        code=code,
        request_id=request_id,
        errors=errors,
        index=index,
        hint=None if hint is None else _cut(hint),
        job_status=job_status,
    )


def code_of(error: RopewayError) -> str:
    """The code on the wire. Some errors exist only inside a program; a server that raises one has a bug."""
    if error.code in CODES:
        return error.code
    return "unavailable" if isinstance(error, EngineError) else "internal"


_encode = msgspec.json.Encoder().encode


def encode(problem: Problem) -> bytes:
    """As bytes, never more than a problem may have: what the sender made long is left out, not the code."""
    data = _encode(problem)
    if len(data) > MAX_BYTES:
        data = _encode(msgspec.structs.replace(problem, detail=_cut(problem.detail, 120), errors=None, hint=None))
    return data


def _cut(text: str, limit: int = _MAX_DETAIL) -> str:
    cut = clean_text(text, limit + 1)
    return cut if len(cut) <= limit else cut[: limit - 1] + "…"


# ── Problem → error ──

#: The classes that stand for several codes, with the codes.
_PAYLOAD = frozenset(
    {
        "malformed_json",
        "invalid_utf8",
        "duplicate_key",
        "number_range",
        "too_deep",
        "nul_character",
        "invalid_unicode",
        "payload_too_large",
    }
)
_FIELD = frozenset(
    {
        "invalid_field",
        "unknown_field",
        "invalid_id",
        "timezone_required",
        "invalid_time",
        "conflicting_fields",
        "key_required",
    }
)
#: The classes that stand for one code each, by that code.
_CLASSES: Mapping[str, type[RopewayError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type)
    and issubclass(kind, RopewayError)
    and kind.code in CODES
    and kind not in (InputError, PayloadError, FieldError, BadArguments, EngineError)
}


def error_of(problem: Problem, *, retry_after: float | None = None) -> RopewayError:
    """The error that the server had, as the same class with the same code; `retry_after` is the header's."""
    code, detail, hint, index = problem.code, problem.detail, problem.hint, problem.index
    pointer = problem.errors[0].pointer if problem.errors else None
    if code in _PAYLOAD:
        return PayloadError(detail, code=code, pointer=pointer, hint=hint, index=index)
    if code in _FIELD:
        return FieldError(detail, code=code, pointer=pointer, hint=hint, index=index)
    kind = _CLASSES.get(code)
    if kind is None:
        return Refused(detail, code=code, hint=hint, index=index)
    if issubclass(kind, JobEnded):
        return kind(detail, status=problem.job_status or "", hint=hint, index=index)
    error = kind(detail, hint=hint, index=index)
    if retry_after is not None and hasattr(error, "retry_in"):
        error.retry_in = retry_after
    return error
