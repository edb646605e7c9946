"""What people typed: filters from an address, and the fields of a form."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from ropeway.core.errors import FieldError, PayloadError
from ropeway.core.query import JobFilter, parse_state
from ropeway.core.states import DeadReason
from ropeway.wire.problems import Refused

if TYPE_CHECKING:
    from starlette.requests import Request

#: A form is small: names, ids, a filter.
MAX_FORM_BYTES = 256 * 1024
MOST_FIELDS = 2_000
#: Seconds that it may take to arrive.
FORM_SECONDS = 10.0

FILTERS = ("queue", "type", "status", "key", "tag", "error", "worker", "reason", "after", "before")


class Form:
    """The fields of a form, each as text."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields

    def one(self, name: str) -> str:
        """The last value of a field; empty when it is not there."""
        return next((value for field, value in reversed(self._fields) if field == name), "")

    def all(self, name: str) -> list[str]:
        return [value for field, value in self._fields if field == name]

    def mapping(self) -> dict[str, str]:
        return dict(self._fields)


async def read_form(request: Request) -> Form:
    """Raises PayloadError for a body that is no form, or too large."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise PayloadError("a form is expected", code="unsupported_media_type")
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_FORM_BYTES:
                    raise PayloadError("the form is too large", code="payload_too_large")
    except TimeoutError:
        raise Refused("the form did not come to its end in time", code="request_timeout") from None
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except (UnicodeDecodeError, ValueError):
        raise PayloadError("the form cannot be read", code="malformed_json") from None
    return Form(fields)


def filter_of(asked: Mapping[str, str]) -> JobFilter:
    """Raises FieldError, with the field that is wrong."""
    given = {name: asked[name].strip() for name in FILTERS if asked.get(name, "").strip()}
    reason = given.get("reason")
    if reason is not None and reason not in set(DeadReason):
        raise FieldError(
            f"unknown reason {reason[:64]!r}", pointer="/reason", hint=f"one of {', '.join(DeadReason)}"
        )
    states = given.get("status")
    return JobFilter(
        queue=given.get("queue"),
        type=given.get("type"),
        states=None if states is None else frozenset(map(parse_state, states.split(","))),
        idempotency_key=given.get("key"),
        worker_id=given.get("worker"),
        error=given.get("error"),
        reason=None if reason is None else DeadReason(reason),
        created_after=_time(given.get("after"), "after"),
        created_before=_time(given.get("before"), "before"),
        tag=given.get("tag"),
    )


def query_of(asked: Mapping[str, str], **changes: str | None) -> str:
    """The filters as the query of an address, with some of them changed or (None) left out."""
    kept = {name: asked[name] for name in FILTERS if asked.get(name)}
    kept.update({name: value for name, value in changes.items() if value is not None})
    for name, value in changes.items():
        if value is None:
            kept.pop(name, None)
    return urlencode(kept)


def _time(text: str | None, name: str) -> datetime | None:
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise FieldError(
            f"{name} is not a time", code="invalid_time", pointer=f"/{name}", hint="2026-01-31T13:00, in UTC"
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
