"""The OpenAPI 3.1 document, made from the route table: what a route declares is what it is checked against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from types import UnionType
from typing import Any, Final, TypeAlias, get_args

import msgspec

from ropeway.api.routing import JSON, Route
from ropeway.core.fields import MAX_KEY_BYTES
from ropeway.wire import problems
from ropeway.wire.problems import CODES, Problem

Object: TypeAlias = dict[str, Any]

_REF: Final = "#/components/schemas/{name}"
_NAME: Final = {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"}

#: The `{...}` parts of paths.
PATH_PARAMETERS: Final[Mapping[str, Object]] = {
    "id": {
        "description": "A job's id.",
        "schema": {
            "type": "string",
            "format": "uuid",
            "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
        },
    },
    "queue": {"description": "A queue's name.", "schema": _NAME},
    "queue_name": {"description": "A queue's name.", "schema": _NAME},
    "name": {"description": "A schedule's name.", "schema": _NAME},
    "worker_id": {
        "description": "What a worker calls itself.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[^\\u0000-\\u001f\\u007f]+$"},
    },
    "key_id": {"description": "A key's public id.", "schema": _NAME},
    "tenant_id": {"description": "A tenant's id.", "schema": _NAME},
    "verb": {"description": "What to do with each item.", "schema": {"type": "string"}},
}

#: Request headers that a route may name; the first is taken by all.
HEADERS: Final[Mapping[str, Object]] = {
    "X-Request-Id": {
        "description": "An id for this request, to find it again in logs; what cannot be one is replaced.",
        "schema": {"type": "string"},
    },
    "Idempotency-Key": {
        "description": "Makes the call safe to repeat: the same key and body is the same job.",
        "schema": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_KEY_BYTES,
            "pattern": "^[\\u0021-\\u007e]+$",
        },
    },
    "Prefer": {"description": "`return=minimal` asks for a short answer.", "schema": {"type": "string"}},
    "Last-Event-ID": {"description": "Go on after this event.", "schema": {"type": "string"}},
    "traceparent": {"description": "The W3C trace that the job belongs to.", "schema": {"type": "string"}},
    "Accept": {
        "description": "`text/event-stream` for a stream, `application/json` for a page.",
        "schema": {"type": "string"},
    },
}

_TICKET: Final[Object] = {
    "name": "ticket",
    "in": "query",
    "description": "A one-use ticket in place of a key, for browsers; see POST /v1/streams/ticket.",
    "schema": {"type": "string"},
}

_BODY_CODES = (
    "malformed_json",
    "invalid_utf8",
    "duplicate_key",
    "request_timeout",
    "payload_too_large",
    "batch_too_large",
    "unsupported_media_type",
    "invalid_field",
    "unknown_field",
    "number_range",
    "too_deep",
    "nul_character",
    "invalid_unicode",
)

_DESCRIPTION = (
    "Durable background jobs over HTTP. Errors are `application/problem+json` with a stable `code`. Times are RFC "
    "3339 in UTC, durations are seconds. A path that answers GET answers HEAD alike, without the body."
)


def document(routes: Iterable[Route]) -> bytes:
    """The whole document, as it is sent."""
    shown = [route for route in routes if not route.hidden]
    schemas, components = _schemas(shown)
    names = _operation_ids(shown)
    paths: dict[str, Object] = {}
    for route in shown:
        operation = _operation(route, schemas, names)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Ropeway",
                "version": version("ropeway"),
                "description": _DESCRIPTION,
                "license": {"name": "MIT", "identifier": "MIT"},
            },
            # From where the document is: a proxy may show the server below a path.
            "servers": [{"url": "."}],
            "security": [{"key": []}],
            "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in shown if route.tag)],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "key": {
                        "type": "http",
                        "scheme": "bearer",
                        "bearerFormat": "rw_<env>_<id>_<secret>_<crc>",
                        "description": "An API key, made by `ropeway keys create` or POST /v1/keys.",
                    }
                },
            },
        }
    )


def codes_of(route: Route) -> frozenset[str]:
    """Every code that an answer of this route may carry: the handler's own, and the frame's."""
    codes = {*route.codes, "wrong_host", "bad_origin", "headers_too_large", "unknown_field", "invalid_field"}
    if route.scopes:
        codes |= {"unauthenticated", "missing_scope", "unavailable", "internal"}
        if not route.free:
            codes.add("rate_limited")
    if route.body is not None or route.streamed:
        codes |= set(_BODY_CODES)
    if "{id}" in route.path:
        codes.add("invalid_id")
    return frozenset(codes)


def _schemas(routes: list[Route]) -> tuple[dict[Any, Object], Object]:
    """The schema of every type that a route names, and the parts that they share."""
    named = [kind for route in routes for kind in (route.body, *route.replies.values()) if kind is not None]
    # Structs that are told apart by their fields alone are no type to msgspec; to JSON Schema they are a choice.
    plain = list(dict.fromkeys([Problem, *(choice for kind in named for choice in _choices(kind))]))
    found, components = msgspec.json.schema_components(plain, ref_template=_REF)
    components["Problem"]["properties"]["code"] = {"type": "string", "enum": list(CODES)}
    schemas = dict(zip(plain, found, strict=True))
    for kind in named:
        if kind not in schemas:
            schemas[kind] = {"anyOf": [schemas[choice] for choice in _choices(kind)]}
    return schemas, components


def _choices(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def _operation_ids(routes: list[Route]) -> dict[tuple[str, str], str]:
    """One id per operation; of two routes with one handler, the second is called by its path too."""
    ids: dict[tuple[str, str], str] = {}
    for route in routes:
        name = route.operation
        if name in ids.values():
            words = [word for word in route.path.strip("/").split("/") if not word.startswith("{")]
            name = "_".join([name, *words])
        ids[route.method, route.path] = name
    return ids


def _operation(route: Route, schemas: Mapping[Any, Object], names: Mapping[tuple[str, str], str]) -> Object:
    operation: Object = {"operationId": names[route.method, route.path], "summary": route.summary}
    told = [route.description] if route.description else []
    if route.scopes:
        told.append(f"Scope: {' or '.join(f'`{scope}`' for scope in route.scopes)}.")
    if told:
        operation["description"] = "\n\n".join(told)
    if route.tag:
        operation["tags"] = [route.tag]
    if not route.scopes:
        operation["security"] = []
    elif route.ticket:
        operation["security"] = [{"key": []}, {}]
    operation["parameters"] = _parameters(route)
    if route.body is not None or route.streamed:
        operation["requestBody"] = _request_body(route, schemas)
    operation["responses"] = _responses(route, schemas)
    return operation


# ── Requests ──


def _parameters(route: Route) -> list[Object]:
    found: list[Object] = []
    for part in route.path.split("/"):
        if part.startswith("{"):
            name = part[1:-1]
            found.append({"name": name, "in": "path", "required": True, **PATH_PARAMETERS[name]})
    if route.query is not None:
        found += _query_parameters(route.query)
    if route.ticket:
        found.append(_TICKET)
    for header in ("X-Request-Id", *route.headers):
        found.append({"name": header, "in": "header", "required": False, **HEADERS[header]})
    return found


def _query_parameters(kind: Any) -> list[Object]:
    schema = msgspec.json.schema(kind)
    parts = schema["$defs"]
    fields = parts[schema["$ref"].rpartition("/")[2]]
    required = fields.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _plain(each, parts)}
        for name, each in fields["properties"].items()
    ]


def _plain(schema: Any, parts: Mapping[str, Any]) -> Any:
    """A parameter's schema: whole, without null (a parameter that is not sent is just not there)."""
    if "$ref" in schema:
        return _plain(parts[schema["$ref"].rpartition("/")[2]], parts)
    schema = {key: value for key, value in schema.items() if key != "default" or value is not None}
    if "anyOf" in schema:
        choices = [_plain(each, parts) for each in schema.pop("anyOf") if each != {"type": "null"}]
        return {**schema, **choices[0]} if len(choices) == 1 else {**schema, "anyOf": choices}
    return schema


def _request_body(route: Route, schemas: Mapping[Any, Object]) -> Object:
    content: Object = {}
    if route.body is not None:
        content[JSON] = {"schema": schemas[route.body]}
    for media in route.streamed:
        content[media] = {"schema": {"type": "string"}}
    return {"required": not route.body_optional, "content": content}


# ── Replies ──

_ID_HEADER: Final[Object] = {"X-Request-Id": {"description": "The request's id.", "schema": {"type": "string"}}}
_RATE_HEADERS: Final[Object] = {
    f"RateLimit-{name}": {"description": text, "schema": {"type": "integer"}}
    for name, text in (
        ("Limit", "Requests that the tenant may make at once."),
        ("Remaining", "How many of them are left."),
        ("Reset", "Seconds until all of them are."),
    )
}
_RETRY_AFTER: Final[Object] = {
    "Retry-After": {"description": "Seconds after which another try is worth it.", "schema": {"type": "integer"}}
}
_OF_STATUS: Final[Mapping[int, Object]] = {
    401: {"WWW-Authenticate": {"description": "`Bearer`.", "schema": {"type": "string"}}},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}
_GOOD: Final[Mapping[int, str]] = {
    200: "Done.",
    201: "Made.",
    202: "Taken.",
    204: "Nothing to tell.",
    503: "Not ready.",
}


def _responses(route: Route, schemas: Mapping[Any, Object]) -> Object:
    responses: Object = {}
    for status, kind in sorted(route.replies.items()):
        responses[str(status)] = _reply(route, status, kind, schemas)
    by_status: dict[int, list[str]] = {}
    for code in CODES:
        if code in codes_of(route):
            by_status.setdefault(CODES[code].status, []).append(code)
    for status, codes in sorted(by_status.items()):
        problem = _problem(status, codes)
        if str(status) in responses:
            responses[str(status)]["content"] |= problem["content"]
        else:
            responses[str(status)] = problem
    return responses


def _reply(route: Route, status: int, kind: Any, schemas: Mapping[Any, Object]) -> Object:
    content: Object = {}
    if kind is not None:
        content[JSON] = {"schema": schemas[kind]}
    if status == 200:
        for media in route.media:
            content[media] = {"schema": {"type": "string"}}
    headers = dict(_ID_HEADER)
    if route.scopes and not route.free:
        headers |= _RATE_HEADERS
    if status == 201:
        headers["Location"] = {"description": "Where it is now.", "schema": {"type": "string"}}
    reply: Object = {"description": _GOOD[status], "headers": headers}
    if content:
        reply["content"] = content
    if route.links and status < 300:
        reply["links"] = {name: _link(name, parameters) for name, parameters in route.links.items()}
    return reply


def _link(operation: str, parameters: Mapping[str, Any]) -> Object:
    link: Object = {"operationId": operation}
    if named := {name: value for name, value in parameters.items() if name != "body"}:
        link["parameters"] = named
    if "body" in parameters:
        link["requestBody"] = parameters["body"]
    return link


def _problem(status: int, codes: list[str]) -> Object:
    meanings = "\n".join(f"- `{code}`: {CODES[code].meaning}" for code in codes)
    return {
        "description": meanings,
        "headers": {**_ID_HEADER, **_OF_STATUS.get(status, {})},
        "content": {
            problems.CONTENT_TYPE: {
                "schema": {
                    "$ref": _REF.format(name="Problem"),
                    "properties": {"code": {"enum": codes}, "status": {"const": status}},
                }
            }
        },
    }
