"""The bad inputs that every engine must answer alike, as data; the numbers are those of the table of guarantees.

A request may name what its scene made: `%job%`, `%token%` and so on are filled in before it is sent. A row with
`stored` must be accepted, and its payload must come back as exactly those bytes.
"""

from __future__ import annotations

import base64
import gzip
import json
import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

ALL_SCOPES = ("enqueue", "work", "read", "read:payload", "admin", "tenant-admin")


class Row(NamedTuple):
    """One request and the answer to it."""

    number: str
    what: str
    status: int
    code: str | tuple[str, ...] | None
    body: bytes | None = None
    method: str = "POST"
    path: str = "/v1/jobs"
    headers: Mapping[str, str | None] = {}
    #: The members that the reply must have, with these values.
    has: Mapping[str, Any] = {}
    pointer: str | None = None
    stored: bytes | None = None
    #: What must be there first: the name of a method of `Scene`.
    scene: str = ""
    scopes: tuple[str, ...] = ALL_SCOPES
    #: Whether nothing at all may have changed; refusals never change anything.
    changes: bool = False

    @property
    def name(self) -> str:
        return f"{self.number} {self.what}"

    @property
    def codes(self) -> tuple[str | None, ...]:
        return self.code if isinstance(self.code, tuple) else (self.code,)


def job(payload: bytes = b"{}", **fields: Any) -> bytes:
    """A request to enqueue with exactly this payload."""
    rest = "".join(f", {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items())
    return b'{"type": "a", "payload": ' + payload + rest.encode() + b"}"


def fields(**values: Any) -> bytes:
    return json.dumps({"type": "a", **values}).encode()


def refused(
    number: str, what: str, status: int, code: str | tuple[str, ...], body: bytes | None, **more: Any
) -> Row:
    return Row(number, what, status, code, body, **more)


def accepted(number: str, what: str, payload: bytes, **more: Any) -> Row:
    return Row(number, what, 201, None, job(payload), stored=payload, changes=True, **more)


def asked(number: str, what: str, path: str, status: int, code: str | tuple[str, ...], **more: Any) -> Row:
    return Row(number, what, status, code, None, "GET", path, **more)


def settled(number: str, what: str, verb: str, body: bytes, **has: Any) -> Row:
    """A call with a current token: it is always heeded."""
    return Row(number, what, 200, None, body, path=f"/v1/jobs/%job%/{verb}", has=has, scene="leased", changes=True)


def lost(number: str, what: str, token: str, scene: str = "leased") -> Row:
    body = json.dumps({"lease_token": token}).encode()
    return Row(number, what, 409, "lease_lost", body, path="/v1/jobs/%job%/ack", scene=scene)


_WITH_TOKEN = b'{"lease_token": "%token%", '
_DEEP = 64
_MIB = 1 << 20
_LIMIT = _MIB + 64 * 1024

SYNTAX = [
    refused("1", "an empty body", 400, "malformed_json", b""),
    refused("2", "a body cut short", 400, "malformed_json", b'{"type":"a"'),
    refused("4", "a trailing comma", 400, "malformed_json", b'{"type":"a",}'),
    refused("4", "a comment", 400, "malformed_json", b'{"type":"a"} // comment'),
    refused("5", "a control byte in a string", 400, "malformed_json", b'{"type":"a","payload":"\x01"}'),
    refused("6", "a byte order mark", 400, "malformed_json", b'\xef\xbb\xbf{"type":"a"}'),
    refused("8", "a byte that is no UTF-8", 400, "invalid_utf8", b'{"type":"a","payload":"\xff"}'),
    refused("9", "NaN", 400, "malformed_json", job(b"NaN")),
    refused("10", "Infinity", 400, "malformed_json", job(b"Infinity")),
    refused("10", "-Infinity", 400, "malformed_json", job(b"-Infinity")),
    refused("11", "1e400", 422, "number_range", job(b"1e400"), pointer="/payload"),
    refused(
        "12",
        "many numbers that jsonb would blow up",
        422,
        "number_range",
        job(b"[" + b"1e131071," * 100_000 + b"1]"),
    ),
    refused("14", "an integer of 5,000 digits", 422, "number_range", job(b"9" * 5_000), pointer="/payload"),
    refused("15", "2^63", 422, "number_range", job(b"9223372036854775808"), pointer="/payload"),
    accepted("15", "2^63 - 1", b"9223372036854775807"),
    accepted("17", "2^53 + 1", b"9007199254740993"),
    accepted("18", "an empty array inside", b'{"a":[],"b":[[]]}'),
    accepted("19", "numbers written oddly", b"[-0, 1.0, 1.10, 1e2, -0.0]"),
    refused("20", "a key twice", 400, "duplicate_key", job(b'{"a":1,"a":2}')),
    refused("20", "a field twice", 400, "duplicate_key", b'{"type":"a","type":"b"}'),
    accepted("22", "as deep as allowed", b"[" * _DEEP + b"]" * _DEEP),
    refused("22", "one level too deep", 422, "too_deep", job(b"[" * (_DEEP + 1) + b"]" * (_DEEP + 1))),
    refused("22", "one level too deep in an object", 422, "too_deep", job(b'{"a":' * 65 + b"1" + b"}" * 65)),
    refused("23", "100,000 open brackets", 422, "too_deep", job(b"[" * 100_000)),
    refused("23", "100,000 open brackets alone", 422, "too_deep", b"[" * 100_000),
    accepted("24", "a payload that is a number", b"5"),
    accepted("24", "a payload that is a string", b'"x"'),
    accepted("24", "a payload that is null", b"null"),
    accepted("24", "a payload that is an array", b"[]"),
    refused("24", "a body that is an array", 422, "invalid_field", b"[]"),
    refused("24", "a body that is null", 422, "invalid_field", b"null"),
    refused("24", "a body that is a string", 422, "invalid_field", b'"a"'),
]

_ODD_TEXT = json.dumps("\U0001f600 \u202e \u200b" + "e" + "\u0301" * 10_000, ensure_ascii=False).encode()

TEXT = [
    refused("25", "NUL in a value", 422, "nul_character", job(b'{"a":["x\\u0000y"]}'), pointer="/payload/a/0"),
    refused("25", "NUL in a key", 422, "nul_character", job(b'{"a\\u0000":1}')),
    *(
        refused("27", f"NUL in {name}", 422, ("nul_character", "invalid_field"), body)
        for name, body in {
            "the type": b'{"type":"a\\u0000"}',
            "the queue": b'{"type":"a","queue":"q\\u0000"}',
            "the key": b'{"type":"a","idempotency_key":"k\\u0000"}',
            "a tag": b'{"type":"a","tags":["t\\u0000"]}',
            "a header": b'{"type":"a","headers":{"h":"v\\u0000"}}',
        }.items()
    ),
    refused(
        "27", "NUL in the worker id", 422, ("nul_character", "invalid_field"), b'{"worker_id":"w\\u0000"}',
        path="/v1/queues/default/lease",
    ),
    settled("28", "NUL in a result", "ack", _WITH_TOKEN + b'"result": "x\\u0000y"}', status="succeeded",
            sanitized=True),
    settled("29", "NUL in an error", "nack", _WITH_TOKEN + b'"error": "x\\u0000y"}', status="retrying",
            sanitized=True),
    refused("30", "half a surrogate pair", 422, "invalid_unicode", job(b'"\\ud800"'), pointer="/payload"),
    settled(
        "32", "half a surrogate pair in a result", "ack", _WITH_TOKEN + b'"result": ["\\udc00"]}',
        status="succeeded", sanitized=True,
    ),
    settled(
        "32", "half a surrogate pair in a traceback", "nack",
        _WITH_TOKEN + b'"error": {"type": "E", "message": "m", "traceback": "\\ud800"}}',
        status="retrying", sanitized=True,
    ),
    settled("32", "NaN in a result", "ack", _WITH_TOKEN + b'"result": NaN}', status="succeeded", sanitized=True),
    settled("32", "a key twice in a result", "ack", _WITH_TOKEN + b'"result": {"a":1,"a":2}}', status="succeeded"),
    settled(
        "32", "a result deeper than allowed", "ack", _WITH_TOKEN + b'"result": ' + b"[" * 80 + b"]" * 80 + b"}",
        status="succeeded", sanitized=True,
    ),
    accepted("33", "odd but valid text", _ODD_TEXT),
    settled(
        "35", "an error text of 10 MB", "nack", _WITH_TOKEN + b'"error": "' + b"x" * 10_000_000 + b'"}',
        status="retrying", truncated=True,
    ),
    settled(
        "36", "a result over the limit", "ack", _WITH_TOKEN + b'"result": "' + b"x" * _MIB + b'"}',
        status="succeeded", result_too_large=True,
    ),
]  # fmt: skip

_PICKLE = base64.b64encode(pickle.dumps(OSError))

TRANSPORT = [
    accepted("38", "a payload of exactly 1 MiB", b'"' + b"x" * (_MIB - 2) + b'"'),
    refused("38", "a payload of 1 MiB and a byte", 413, "payload_too_large", job(b'"' + b"x" * (_MIB - 1) + b'"')),
    refused("38", "a body over its limit", 413, "payload_too_large", job(b'"' + b"x" * _LIMIT + b'"')),
    refused(
        "41", "a gzip bomb", 415, "unsupported_media_type", gzip.compress(b"0" * 10_000_000),
        headers={"Content-Encoding": "gzip"},
    ),
    *(
        refused("42", f"content type {kind or 'missing'}", 415, "unsupported_media_type", fields(),
                headers={"Content-Type": kind})
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
                     "application/jsonp", "application/xml", None)
    ),
    Row("42", "content type with a charset", 201, None, fields(), changes=True,
        headers={"Content-Type": "application/json; charset=utf-8"}),
    refused("44", "200 headers", 431, "headers_too_large", fields(), headers={f"X-{i}": "1" for i in range(200)}),
    refused("44", "a header of 64 KiB", 431, "headers_too_large", fields(), headers={"X-Long": "x" * 65_536}),
    refused("46", "TRACE", 405, "method_not_allowed", None, method="TRACE"),
    refused("46", "PUT /v1/jobs", 405, "method_not_allowed", fields(), method="PUT"),
    refused("46", "an invented method", 405, "method_not_allowed", None, method="PROPFIND"),
    refused("47", "a batch of none", 422, "invalid_field", b'{"jobs": []}', path="/v1/jobs/batch",
            pointer="/jobs"),
    refused(
        "48", "a batch of 1,001", 413, "batch_too_large", json.dumps({"jobs": [{"type": "a"}] * 1_001}).encode(),
        path="/v1/jobs/batch",
    ),
    refused(
        "49", "a batch whose item 7 is bad", 422, "invalid_field",
        json.dumps({"jobs": [{"type": "a" if i != 7 else "a b"} for i in range(20)]}).encode(),
        path="/v1/jobs/batch", has={"index": 7},
    ),
    refused(
        "49", "a batch whose item 7 has an unknown field", 422, "unknown_field",
        json.dumps({"jobs": [{"type": "a", **({"x": 1} if i == 7 else {})} for i in range(20)]}).encode(),
        path="/v1/jobs/batch", has={"index": 7},
    ),
    refused(
        "49", "a batch whose item 7 holds NUL", 422, "nul_character",
        json.dumps({"jobs": [{"type": "a", "payload": "\0" if i == 7 else 1} for i in range(20)]}).encode(),
        path="/v1/jobs/batch", has={"index": 7},
    ),
    Row(
        "22", "a batch item as deep as allowed", 201, None,
        b'{"jobs": [' + job(b"[" * _DEEP + b"]" * _DEEP) + b"]}", path="/v1/jobs/batch", changes=True,
    ),
    refused(
        "22", "a batch item one level too deep", 422, "too_deep",
        b'{"jobs": [' + job(b"[" * 65 + b"]" * 65) + b"]}", path="/v1/jobs/batch", has={"index": 0},
    ),
]  # fmt: skip

FIELDS = [
    *(
        refused("51", f"max_attempts {value!r}", 422, "invalid_field", fields(max_attempts=value),
                pointer="/max_attempts")
        for value in (0, -1, 26, 1001, 3.5, "3", True, None)
    ),
    *(
        refused("52", f"priority {value!r}", 422, "invalid_field", fields(priority=value), pointer="/priority")
        for value in (2**31, -(2**31) - 1, 0, 10, "urgent", 1.5, True, None)
    ),
    refused("53", "a field nobody knows", 422, "unknown_field", fields(tenant_id="other"), pointer="/tenant_id"),
    refused("53", "a tenant", 422, "unknown_field", fields(tenant="other"), pointer="/tenant"),
    refused("53", "an id of one's own", 422, "unknown_field", fields(id="0198c0de-1234-7abc-8000-0123456789ab")),
    *(
        refused("55", f"type {value[:20]!r}", 422, "invalid_field", json.dumps({"type": value}).encode(),
                pointer="/type")
        for value in ("__import__('os')", "a/../b", "a b", "a" * 129, "", "å", "a\n")
    ),
    refused("55", "no type", 422, "invalid_field", b"{}"),
    *(
        refused("55", f"queue {value[:20]!r}", 422, "invalid_field", fields(queue=value), pointer="/queue")
        for value in ("a b", "", "q" * 129, "../etc")
    ),
    Row("56", "a type that no worker knows", 201, None, fields(type="nobody.knows.this"), changes=True),
    *(
        refused("57", f"retry {value}", 422, "invalid_field", fields(retry=value))
        for value in ({"base": 1e308, "factor": 10}, {"base": -1}, {"factor": 0.5}, {"cap": 1e300}, {"jitter": 2},
                      {"policy": "mine"})
    ),
    refused("57", "retry with a number nobody knows", 422, "unknown_field", fields(retry={"limit": 1})),
    *(
        refused("59", f"lease count {value!r}", 422, ("invalid_field", "number_range"),
                json.dumps({"worker_id": "w", "count": value}).encode(), path="/v1/queues/default/lease",
                pointer="/count")
        for value in (0, -1, 1_001, 10_001, "1", True, 1.5)
    ),
    *(
        refused("59", f"lease_seconds {value!r}", 422, "invalid_field",
                json.dumps({"worker_id": "w", "lease_seconds": value}).encode(), path="/v1/queues/default/lease",
                pointer="/lease_seconds")
        for value in (0, -1, 43_201, "30", True)
    ),
    refused("59", "no worker id", 422, "invalid_field", b'{"count": 1}', path="/v1/queues/default/lease"),
    refused("59", "no queues", 422, "invalid_field", b'{"worker_id": "w", "queues": []}', path="/v1/lease"),
    Row(
        "60", "a long poll of 99999 s with a job there", 200, None, b'{"worker_id": "w", "wait": 99999}',
        path="/v1/queues/default/lease", scene="queued", changes=True,
    ),
    refused("60", "a negative wait", 422, "invalid_field", b'{"worker_id": "w", "wait": -1}',
            path="/v1/queues/default/lease", pointer="/wait"),
    refused("62", "a dependency, which do not exist", 422, "unknown_field", fields(depends_on=["x"])),
    refused("§3", "two spellings of the attempts", 422, "conflicting_fields",
            fields(max_attempts=3, max_retries=2)),
    refused("§3", "two spellings of the time", 422, "conflicting_fields",
            fields(run_at="2026-01-01T00:00:00Z", execute_at="2026-01-01T00:00:00Z")),
    refused("§3", "a time and a delay", 422, "conflicting_fields", fields(run_at="2026-01-01T00:00:00Z", delay=5)),
    refused("§3", "two spellings of the expiry", 422, "conflicting_fields",
            fields(expires_in=5, expires_at="2030-01-01T00:00:00Z")),
    refused("§3", "two different keys", 422, "conflicting_fields", fields(idempotency_key="a"),
            headers={"Idempotency-Key": "b"}),
    refused("§3", "17 tags", 422, "invalid_field", fields(tags=["t"] * 17), pointer="/tags"),
    refused("§3", "33 headers", 422, "invalid_field", fields(headers={str(i): "v" for i in range(33)})),
    refused("§3", "a timeout beyond a day", 422, "invalid_field", fields(timeout=86_401), pointer="/timeout"),
    refused("§3", "a negative delay", 422, ("invalid_field", "invalid_time"), fields(delay=-1), pointer="/delay"),
    refused("§3", "a delay beyond ten years", 422, ("invalid_field", "invalid_time"), fields(delay=1e12)),
    refused("§3", "a delay of 1e308", 422, ("invalid_field", "invalid_time"), fields(delay=1e308)),
    refused("§5", "a retry by somebody unprintable", 422, "invalid_field", pointer="/by", path="/v1/jobs/retry",
            body=json.dumps({"ids": ["0198c0de-1234-7abc-8000-0123456789ab"], "by": "a\x07"}).encode()),
    refused("§5", "a retry of many by somebody unprintable", 422, "invalid_field", pointer="/by",
            body=b'{"by": "a\\u0007", "filter": {}}', path="/v1/jobs/retry-where"),
    refused("§5", "an empty address of a tenant", 422, "invalid_field", b'{"email": ""}', method="PATCH",
            path="/v1/tenants/default", pointer="/email"),
    refused("§8", "an empty type on an older face", 422, "invalid_field", b'{"queue_name": "q", "type": ""}',
            path="/jobs"),
    refused("§3", "uniqueness by nothing", 422, "invalid_field", fields(unique={"by": "nothing"})),
]  # fmt: skip


def _dated(number: str, value: str, code: str | tuple[str, ...]) -> Row:
    return refused(number, f"run_at {value}", 422, code, fields(run_at=value), pointer="/run_at")


DATES = [
    _dated("63", "2026-01-01T00:00:00", "timezone_required"),
    *(
        _dated("64", value, "invalid_time")
        for value in ("2026-01-01", "2026-W01-1", "20260101T000000Z", "", "now")
    ),
    _dated("65", "2026-06-30T23:59:60Z", "invalid_time"),
    _dated("65", "2026-02-30T00:00:00Z", "invalid_time"),
    *(
        _dated("68", value, "invalid_time")
        for value in ("9999-12-31T23:59:59-14:00", "294277-01-01T00:00:00Z", "infinity", "2046-01-01T00:00:00Z")
    ),
    refused("68", "run_at as a number", 422, ("invalid_time", "invalid_field"), fields(run_at=1_767_225_600)),
    Row(
        "69", "nanoseconds", 201, None, fields(run_at="2031-01-01T00:00:00.123456789Z"), changes=True,
        has={"run_at": "2031-01-01T00:00:00.123456Z", "status": "scheduled"},
    ),
    Row("70", "a time in the past", 201, None, fields(run_at="2001-01-01T00:00:00Z"), changes=True,
        has={"status": "queued"}),
    Row("70", "a time with an offset", 201, None, fields(run_at="2031-01-01T02:00:00+02:00"), changes=True,
        has={"run_at": "2031-01-01T00:00:00.000000Z"}),
]  # fmt: skip

STATES = [
    refused("73", "the same key, another body", 422, "idempotency_mismatch",
            fields(idempotency_key="k", payload=2), scene="keyed"),
    Row("73", "the same key, the same body", 200, None, fields(idempotency_key="k", payload=1), scene="keyed",
        has={"deduplicated": True, "id": "%job%"}),
    Row("73", "the same key, the same body in another spelling", 200, None,
        b'{ "payload":1, "idempotency_key" : "k","type":"\\u0061"}', scene="keyed", has={"deduplicated": True}),
    Row("74", "the same key from another tenant", 201, None, fields(idempotency_key="foreign", payload=1),
        scene="foreign_key", changes=True, has={"deduplicated": False}),
    *(
        refused("75", f"{name} in the body", 422, "invalid_field", fields(idempotency_key=value),
                pointer="/idempotency_key")
        for name, value in {
            "an empty key": "",
            "a key of 513 bytes": "k" * 513,
            "a key of 257 letters and 514 bytes": "é" * 257,
            "a key with a control character": "a\x07b",
            "a key with a line end": "a\n",
        }.items()
    ),
    refused("75", "an empty key in the header", 422, "invalid_field", fields(), headers={"Idempotency-Key": ""}),
    refused("75", "a key of 513 bytes in the header", 422, "invalid_field", fields(),
            headers={"Idempotency-Key": "k" * 513}),
    Row("75", "a key of 512 bytes", 201, None, fields(idempotency_key="k" * 512), changes=True),
    lost("76", "an ack with a random token", "Zm9vYmFy" * 4),
    lost("76", "an ack with an empty token", ""),
    lost("76", "an ack with an old token", "%old%", scene="leased_again"),
    lost("76", "an ack with another job's token", "%other%", scene="two_leased"),
    lost("76", "an ack with a token of 10,000 characters", "x" * 10_000),
    lost("76", "an ack of a job that was never leased", "Zm9vYmFy" * 4, scene="queued"),
    Row("77", "an ack again with the good token", 200, None, b'{"lease_token": "%token%"}', scene="acked",
        path="/v1/jobs/%job%/ack", has={"status": "succeeded", "already_acked": True}),
    refused("79", "a heartbeat after the end", 409, "terminal", b'{"lease_token": "%token%"}', scene="acked",
            path="/v1/jobs/%job%/heartbeat", has={"job_status": "succeeded"}),
    refused("79", "a nack after the end", 409, "terminal", b'{"lease_token": "%token%", "error": "x"}',
            path="/v1/jobs/%job%/nack", has={"job_status": "succeeded"}, scene="acked"),
    Row("80", "a cancel of a running job", 202, None, b"{}", path="/v1/jobs/%job%/cancel", scene="leased",
        changes=True, has={"status": "cancelled"}),
    refused("80", "a beat for a cancelled job", 409, ("lease_lost", "terminal"), b'{"lease_token": "%token%"}',
            path="/v1/jobs/%job%/heartbeat", scene="cancelled"),
    refused("80", "a cancel of a finished job", 409, "terminal", b"{}", path="/v1/jobs/%job%/cancel",
            scene="acked", has={"job_status": "succeeded"}),
    refused("80", "a retry of a finished job", 409, "invalid_state", b"{}", path="/v1/jobs/%job%/retry",
            scene="acked"),
    refused("80", "a delete of a running job", 409, "invalid_state", None, method="DELETE", path="/v1/jobs/%job%",
            scene="leased"),
    refused("80", "a reschedule of a running job", 409, "invalid_state", b'{"delay": 5}', scene="leased",
            path="/v1/jobs/%job%/reschedule"),
]  # fmt: skip

_ID = "0198c0de-1234-7abc-8000-0123456789ab"

IDS = [
    *(
        asked("82", f"the id {value[:12]}", f"/v1/jobs/{value}", 422, "invalid_id")
        for value in (
            "not-a-uuid",
            f"%7B{_ID}%7D",
            f"urn:uuid:{_ID}",
            _ID.upper(),
            _ID.replace("-", ""),
            "0" * 500,
        )
    ),
    asked("82", "an id with NUL", "/v1/jobs/%00", 422, "invalid_id"),
    asked("82", "an id that is no UTF-8", "/v1/jobs/%FF%FE", 422, ("invalid_id", "invalid_field")),
    asked("82", "an id that is not there", f"/v1/jobs/{_ID}", 404, "not_found"),
    refused("82", "a lookup of what is no id", 422, "invalid_id", b'{"ids": ["x"]}', path="/v1/jobs/lookup"),
    asked("84", "a path that is no UTF-8", "/%FF", 404, "not_found"),
    asked("84", "a path nobody knows", "/v1/nothing", 404, "not_found"),
    asked("87", "a forged cursor", "/v1/jobs?cursor=Zm9vYmFyYmF6", 400, "bad_cursor"),
    asked("89", "a parameter that is no UTF-8", "/v1/jobs?cursor=%FF", 422, "invalid_field"),
    asked("87", "an empty cursor", "/v1/jobs?cursor=", 400, "bad_cursor"),
    asked("87", "a cursor cut short", "/v1/jobs?limit=1&cursor=%cut%", 400, "bad_cursor", scene="paged"),
    asked(
        "87", "a cursor with another byte", "/v1/jobs?limit=1&cursor=%changed%", 400, "bad_cursor", scene="paged"
    ),
    asked(
        "87", "a cursor of another tenant", "/v1/jobs?limit=1&cursor=%foreign%", 400, "bad_cursor", scene="paged"
    ),
    asked(
        "87", "a cursor of another question", "/v1/dlq?limit=1&cursor=%cursor%", 400, "bad_cursor", scene="paged"
    ),
    asked(
        "87",
        "a forged position",
        "/v1/events?after=Zm9v",
        400,
        "bad_cursor",
        headers={"Accept": "application/json"},
    ),
    asked("88", "a filter by expression", "/v1/jobs?filter=(a%2B)%2B%24", 422, "unknown_field"),
    asked("88", "an expression for a type", "/v1/jobs?type=(a%2B)%2B%24", 422, "invalid_field"),
    *(
        asked("89", f"{name}", f"/v1/jobs?{query}", 422, ("invalid_field", "unknown_field"))
        for name, query in {
            "SQL in the order": "order=id;%20DROP%20TABLE%20jobs--",
            "SQL in a queue": "queue='%20OR%201=1",
            "a column nobody knows": "sort=payload",
            "a status nobody knows": "status=sleeping",
            "an order nobody knows": "order=random",
            "a limit of 0": "limit=0",
            "a limit of 501": "limit=501",
            "a limit that is no number": "limit=ten",
            "a limit that is a fraction": "limit=1.5",
            "an include nobody knows": "include=secrets",
        }.items()
    ),
    asked("89", "a reason that is null", "/v1/dlq?reason=null", 422, "invalid_field", pointer="/reason"),
    asked("89", "an event that is null", "/v1/events?event=null", 422, "invalid_field", pointer="/event",
          headers={"Accept": "application/json"}),
    asked("89", "a long actor", f"/v1/audit?actor={'a' * 257}", 422, "invalid_field", pointer="/actor"),
    asked("89", "a list behind what is no id", "/v1/jobs?after_id=x", 422, "invalid_id", pointer="/after_id"),
    asked("89", "a parameter twice", "/v1/jobs?limit=1&limit=2", 422, ("invalid_field", "conflicting_fields")),
    asked("89", "a time without a zone", "/v1/jobs?created_after=2026-01-01T00:00:00", 422, "timezone_required"),
    asked("89", "a date", "/v1/jobs?created_after=2026-01-01", 422, "invalid_time"),
]  # fmt: skip

AUTH = [
    *(
        asked("91", name, f"/v1/jobs/{_ID}", 401, "unauthenticated", headers={"Authorization": value})
        for name, value in {
            "no key": None,
            "an empty header": "",
            "Bearer alone": "Bearer",
            "two keys": "Bearer x y",
            "Basic": "Basic dXNlcjpwYXNz",
            "a key that is none": "Bearer rw_live_nobody",
            "a key of 10,000 letters": "Bearer " + "x" * 10_000,
            "a key that is no ASCII": "Bearer rw_live_\xff",
        }.items()
    ),
    asked("91", "a key in the URL", f"/v1/jobs/{_ID}?token=%key%", 401, "unauthenticated", scene="own_key",
          headers={"Authorization": None}),
    *(
        asked("92", name, f"/v1/jobs/{_ID}", 401, "unauthenticated", scene="own_key",
              headers={"Authorization": f"Bearer %{value}%"})
        for name, value in {
            "another secret": "wrong_secret",
            "a bad checksum": "bad_checksum",
            "a revoked key": "revoked",
            "an expired key": "expired",
            "an unknown id": "unknown_id",
        }.items()
    ),
    refused("94", "a producer's key on a lease", 403, "missing_scope", b'{"worker_id": "w"}',
            path="/v1/queues/default/lease", scopes=("enqueue",)),
    refused("94", "a worker's key on an operator's verb", 403, "missing_scope", b"{}",
            path="/v1/queues/default/pause", scopes=("work",)),
    refused("94", "a worker's key on an enqueue", 403, "missing_scope", fields(), scopes=("work",)),
    refused("94", "a reader's key on an enqueue", 403, "missing_scope", fields(), scopes=("read", "read:payload")),
    refused("94", "an operator's key on tenants", 403, "missing_scope", b'{"name": "x"}', path="/v1/tenants",
            scopes=("admin",)),
    refused("103", "another site's Origin", 403, "bad_origin", fields(), headers={"Origin": "https://evil.example"}),
    refused("103", "the Origin null", 403, "bad_origin", fields(), headers={"Origin": "null"}),
    refused("103", "another Host", 421, "wrong_host", fields(), headers={"Host": "evil.example"}),
]  # fmt: skip

INERT = [
    accepted("101", "markup", b'"<img src=x onerror=alert(1)></script>{{7*7}}"'),
    accepted("105", "a pickle", b'"' + _PICKLE + b'"'),
    accepted("105", "a YAML object", b'"!!python/object/apply:os.system [id]"'),
    accepted("105", "a jsonpickle object", b'{"py/object": "os.system"}'),
    settled(
        "106", "an exception named os.system", "nack",
        _WITH_TOKEN + b'"error": {"type": "os.system", "message": "id"}}', status="retrying",
    ),
]  # fmt: skip

ROWS: list[Row] = [*SYNTAX, *TEXT, *TRANSPORT, *FIELDS, *DATES, *STATES, *IDS, *AUTH, *INERT]
