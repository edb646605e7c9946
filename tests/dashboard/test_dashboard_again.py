"""The command on a job's page that makes such a job again."""

from __future__ import annotations

import json
import re
import shlex
from html import unescape
from uuid import UUID

from ropeway.core.access import Scope
from ropeway.core.retry import retry_policy
from ropeway.dashboard.pages import MOST_CURL
from tests.dashboard.dashboard_kit import Person, enqueued, house, leased

#: What would end a word of a shell, or start something in it.
PAYLOAD = {"it's": 'a "quoted" $HOME `id` \\ é\n', "list": [1, 2.5, None]}


async def command_on(person: Person, id: UUID) -> list[str]:
    """The words of the command, as a shell reads them."""
    response = await person.get(f"/ui/jobs/{id}")
    found = re.search(r'<code id="curl">(.*?)</code>', response.text, re.DOTALL)
    assert found is not None, response.text
    return shlex.split(unescape(found[1]))


async def test_it_makes_a_job_like_the_first(local_store: str) -> None:
    async with house(local_store) as there:
        id = await enqueued(
            there.engine,
            "sum.up",
            payload=json.dumps(PAYLOAD).encode(),
            queue="sums",
            priority=2,
            max_attempts=7,
            timeout=90.0,
            retry=retry_policy("article", base=3.0),
            tags=("red", "it's"),
            headers={"note": "it's $HOME", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"},
            idempotency_key="once",
        )
        words = await command_on(await there.person(), id)
        assert words[:4] == ["curl", "-X", "POST", "$ROPEWAY_SERVER/v1/jobs"]
        _, token = await there.key(Scope.ENQUEUE)
        answer = await there.client().post(
            "/v1/jobs",
            content=words[words.index("-d") + 1],
            headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
        )
        assert answer.status_code == 201, answer.text
        made, first = await there.engine.get([UUID(answer.json()["id"]), id])
        assert made is not None
        assert first is not None
        for name in ("type", "queue", "priority", "max_attempts", "timeout", "retry", "tags"):
            assert getattr(made, name) == getattr(first, name), name
        assert json.loads(made.payload or b"") == PAYLOAD
        assert made.headers == {"note": "it's $HOME"}, "it belongs to no trace"
        assert made.idempotency_key is None, "with the key of the first it would be the first"


async def test_a_job_like_all_others_needs_little(memory_store: str) -> None:
    async with house(memory_store) as there:
        words = await command_on(await there.person(), await enqueued(there.engine))
        assert json.loads(words[-1]) == {"type": "work", "payload": {}, "max_attempts": 5, "timeout": 3600.0}


async def test_a_payload_that_is_too_long_for_a_command_is_left_to_the_api(memory_store: str) -> None:
    async with house(memory_store) as there:
        person = await there.person()
        longest = await enqueued(there.engine, payload=json.dumps("x" * (MOST_CURL - 2)).encode())
        assert len(await command_on(person, longest)) > 4
        longer = await enqueued(there.engine, payload=json.dumps("x" * (MOST_CURL - 1)).encode())
        response = await person.get(f"/ui/jobs/{longer}")
        assert "too long for a command" in response.text
        assert "curl -X" not in response.text


async def test_it_is_not_sent_with_every_update(memory_store: str) -> None:
    async with house(memory_store) as there:
        id = await enqueued(there.engine)
        await leased(there.engine)
        person = await there.person()
        assert "curl -X" in (await person.get(f"/ui/jobs/{id}")).text
        update = await person.get(f"/ui/jobs/{id}", hx_request="true")
        assert update.status_code == 200
        assert "curl" not in update.text


async def test_who_may_not_see_payloads_does_not_get_it(memory_store: str) -> None:
    async with house(memory_store) as there:
        id = await enqueued(there.engine)
        shown = await (await there.person(Scope.READ)).see(f"/ui/jobs/{id}")
        assert "as curl" not in shown.text
