"""Who may do what, before a handler is asked: keys, scopes, rates, and servers that ask for no keys."""

from __future__ import annotations

import pytest

from ropeway.api.routes import ROUTES
from ropeway.core.access import Limits, NewTenant, Scope
from ropeway.core.job import DEFAULT_TENANT
from ropeway.service.keys import Keys
from tests.api.frame_kit import Answer, Frame, frame

#: All that needs no key; docs/http.md says the same.
KEYLESS = {"/health", "/ready", "/openapi.json"}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_names_a_scope_or_is_meant_for_all(route: object) -> None:
    assert (route.path in KEYLESS) is not bool(route.scopes)  # type: ignore[attr-defined]


def _without_id(answer: Answer) -> tuple[int, dict[str, str], bytes]:
    id = answer.headers["x-request-id"]
    headers = {k: v for k, v in answer.headers.items() if k not in ("x-request-id", "date")}
    return answer.status, headers, answer.body.replace(id.encode(), b"-")


async def _bad_headers(served: Frame) -> list[str | None]:
    good = await served.token(Scope.WORK)
    env, id, secret, crc = good.split("_")[1:]
    key, revoked = await Keys(served.engine).create("gone", frozenset({Scope.WORK}))
    await Keys(served.engine).revoke(key.id)
    return [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer x y",
        "Basic dXNlcjpwYXNz",
        "Bearer x",
        f"Bearer {good} ",
        f"Token {good}",
        f"Bearer {good}x",
        f"Bearer rw_{env}_{id}_{'A' * len(secret)}_{crc}",
        f"Bearer rw_{env}_unknown2222_{secret}_{crc}",
        f"Bearer {revoked}",
        "Bearer " + "x" * 600,
        "Bearer ä",
    ]


async def test_every_kind_of_bad_key_gets_one_answer() -> None:
    async with frame() as served:
        answers = [
            _without_id(await served.ask("GET", "/free", token=None, headers={"Authorization": given}))
            for given in await _bad_headers(served)
        ]
    assert answers.count(answers[0]) == len(answers)
    status, headers, body = answers[0]
    assert (status, headers["www-authenticate"]) == (401, 'Bearer realm="ropeway"')
    assert b'"code":"unauthenticated"' in body


async def test_two_keys_are_none() -> None:
    async with frame() as served, served.connected() as line:
        head = await served.head("GET", "/free")
        await line.send(head[:-2] + b"Authorization: Bearer x\r\n\r\n")
        assert (await line.answer()).code == "unauthenticated"


async def test_a_key_is_needed_before_anything_is_told_about_a_request() -> None:
    async with frame() as served:
        for path, body in (("/things?limit=x", None), ("/things/batch", b"{")):
            answer = await served.ask("GET" if body is None else "POST", path, body, token=None)
            assert answer.status == 401


async def test_a_scope_that_is_missing_is_named_and_the_words_bearer_may_be_written_anyhow() -> None:
    async with frame() as served:
        token = await served.token(Scope.ENQUEUE)
        answer = await served.ask("GET", "/free", token=token)
        assert (answer.status, answer.code) == (403, "missing_scope")
        assert "work" in answer.json["detail"]
        good = await served.token(Scope.WORK)
        for scheme in ("Bearer", "bearer", "BEARER"):
            assert (await served.ask("GET", "/free", headers={"Authorization": f"{scheme} {good}"})).status == 204


async def test_who_may_see_payloads_or_is_an_admin_may_read_and_nothing_else_implies_anything() -> None:
    async with frame() as served:
        reading = {Scope.READ, Scope.READ_PAYLOAD, Scope.ADMIN}
        for scope in reading:
            assert (await served.ask("GET", "/things", token=await served.token(scope))).status == 200
        for scope in set(Scope) - reading:
            assert (await served.ask("GET", "/things", token=await served.token(scope))).status == 403
        assert (await served.ask("GET", "/free", token=await served.token(Scope.ADMIN))).status == 403


async def test_without_keys_everybody_is_the_default_tenant_with_all_scopes() -> None:
    async with frame(auth=False) as served:
        for token in (None, "rw_nonsense"):
            assert (await served.ask("GET", "/things", token=token)).json["tenant"] == DEFAULT_TENANT
            assert (await served.ask("DELETE", "/things/x", token=token)).status == 200
        refused = await served.ask("POST", "/things", b"{}", token=None, headers={"Content-Type": "text/plain"})
        assert refused.code == "unsupported_media_type"


# ── Rates ──


async def _tenant(served: Frame, limits: Limits) -> str:
    await served.engine.create_tenant(NewTenant("small", "Small", limits=limits))
    return (await Keys(served.engine, tenant="small").create("a test", frozenset(Scope)))[1]


async def test_a_rate_is_told_and_then_refused() -> None:
    async with frame() as served:
        token = await _tenant(served, Limits(rate_per_second=0.01, burst=7))
        first = await served.ask("GET", "/costly", token=token)
        assert first.status == 204
        assert (first.headers["ratelimit-limit"], first.headers["ratelimit-remaining"]) == ("7", "4")
        assert int(first.headers["ratelimit-reset"]) > 0
        assert (await served.ask("GET", "/costly", token=token)).headers["ratelimit-remaining"] == "1"
        refused = await served.ask("GET", "/costly", token=token)
        assert (refused.status, refused.code) == (429, "rate_limited")
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["ratelimit-limit"] == "7"


async def test_what_carries_a_lease_is_never_refused_for_rate() -> None:
    async with frame() as served:
        token = await _tenant(served, Limits(rate_per_second=0.001, burst=1))
        for _ in range(3):
            answer = await served.ask("GET", "/free", token=token)
            assert answer.status == 204
            assert "ratelimit-limit" not in answer.headers
