"""The buttons: each does what it says, once, for those who may, and is told and written down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlencode, urljoin
from uuid import UUID, uuid4

import pytest

from ropeway.core.access import NewTenant, Scope
from ropeway.core.errors import RopewayError, Unavailable
from ropeway.core.job import NewJob
from ropeway.core.query import MAX_PAGE, QueueStats
from ropeway.core.states import State
from ropeway.dashboard.asking import MAX_FORM_BYTES
from ropeway.dashboard.cookies import NOTICE, SESSION
from ropeway.dashboard.many import MOST_PICKED
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import Changed, Engine
from ropeway.service.dead import DeadJobs
from ropeway.service.keys import Keys
from tests.dashboard.dashboard_kit import (
    FORM,
    PAGES,
    House,
    Page,
    Person,
    dead,
    enqueued,
    house,
    in_every_state,
    leased,
    noted,
    page,
    state_of,
    with_schedule,
)

#: The widest yes that a form can say: to any number of jobs, at any time.
YES = {"confirmed": "yes", "asked_at": "2999-01-01T00:00:00+00:00", "count": "1000000"}


def notice(shown: Page) -> bool:
    return any(given.get("class") == "notice" for given in shown.all("p"))


async def told_once(person: Person, response_text: Page, words: str, path: str) -> None:
    """The page after an action says what was done; the next one says it no more."""
    assert words in response_text.text
    assert notice(response_text)
    again = await person.see(path)
    assert words not in again.text
    assert not notice(again)


async def paused(engine: Engine, queue: str) -> bool:
    (stats,) = await engine.queue_stats([queue])
    return stats.paused


async def states(engine: Engine, ids: Sequence[UUID]) -> list[State]:
    return [job.state for job in await engine.get(ids) if job is not None]


# ── Queues ──


async def test_a_queue_is_paused_and_resumed(any_store: str) -> None:
    async with house(any_store) as there:
        await enqueued(there.engine, queue="mails")
        person = await there.person(name="ada")
        shown = await person.follow(await person.press("/ui/queues", "ui/queues/mails/pause"))
        await told_once(person, shown, "The queue mails is paused", "/ui/queues")
        assert await paused(there.engine, "mails")
        shown = await person.follow(await person.press("/ui/queues", "ui/queues/mails/resume"))
        await told_once(person, shown, "The queue mails goes on.", "/ui/queues")
        assert not await paused(there.engine, "mails")
        who = f"ada ({person.key_id})"
        assert await noted(there.engine) == [
            (who, "queue.resume", "mails", None),
            (who, "queue.pause", "mails", None),
        ]
        assert f"{who} queue.resume mails" in (await person.see("/ui/audit")).text


class PausesBlindly(MemoryEngine):
    """Does not say what a queue holds once it was paused."""

    blind = False

    async def pause(self, *arguments: Any, **options: Any) -> None:
        await super().pause(*arguments, **options)
        self.blind = True

    async def queue_stats(self, *arguments: Any, **options: Any) -> list[QueueStats]:
        if self.blind:
            raise Unavailable("the store is away")
        return await super().queue_stats(*arguments, **options)


async def test_what_was_done_is_noted_although_the_store_goes_away_right_then() -> None:
    engine = PausesBlindly()
    async with house("memory://", engine=engine) as there:
        await enqueued(engine, queue="mails")
        person = await there.person()
        assert (await person.post("/ui/queues/mails/pause")).status_code == 303
        assert [one[1:3] for one in await noted(engine)] == [("queue.pause", "mails")]
        engine.blind = False
        assert await paused(engine, "mails")


async def test_what_was_done_is_seen_on_the_next_page_and_not_only_after_a_second(memory_store: str) -> None:
    async with house(memory_store) as there:
        await enqueued(there.engine, queue="mails")
        person = await there.person()
        shown = await person.follow(await person.press("/ui/queues", "ui/queues/mails/pause"))
        assert [action for action, _ in shown.posts()] == ["../ui/queues/mails/resume"]


async def test_a_notice_that_an_error_page_has_shown_is_not_shown_again(memory_store: str) -> None:
    async with house(memory_store) as there:
        await enqueued(there.engine)
        person = await there.person()
        await person.post("/ui/queues/default/pause")
        assert "is paused" in page(await person.get("/ui/nope")).text
        assert not notice(await person.see("/ui/audit"))


async def test_the_update_of_another_page_does_not_take_the_notice(memory_store: str) -> None:
    async with house(memory_store) as there:
        await enqueued(there.engine)
        person = await there.person()
        answer = await person.post("/ui/queues/default/pause")
        assert not notice(page(await person.get("/ui/workers", hx_request="true")))
        assert notice(await person.follow(answer))


async def test_a_forged_notice_is_not_shown(memory_store: str) -> None:
    async with house(memory_store) as there:
        person = await there.person()
        (session,) = person.http.cookies.jar
        name = session.name.replace(SESSION, NOTICE)
        person.http.cookies.set(name, "All jobs are lost. Call 555-0100.", domain="localhost.local")
        response = await person.get("/ui/queues")
        assert name in response.request.headers["cookie"]
        assert not notice(page(response))


# ── One job ──


async def test_a_job_is_cancelled_and_retried(any_store: str) -> None:
    async with house(any_store) as there:
        id = await enqueued(there.engine)
        person = await there.person()
        path = f"/ui/jobs/{id}"
        shown = await person.follow(await person.confirm(await person.press(path, "/cancel")))
        await told_once(person, shown, "The job is cancelled.", path)
        assert "heartbeat" not in shown.text
        assert await state_of(there.engine, id) is State.CANCELLED
        shown = await person.follow(await person.press(path, "/retry"))
        await told_once(person, shown, "The job runs again", path)
        assert await state_of(there.engine, id) is State.QUEUED
        who = f"a test ({person.key_id})"
        expected = [(who, "job.retry", str(id), None), (who, "job.cancel", str(id), None)]
        assert await noted(there.engine) == expected


async def test_a_job_is_not_cancelled_before_somebody_has_said_yes(local_store: str) -> None:
    """By the server, not by a script: whoever is faster than the script is asked too."""
    async with house(local_store) as there:
        id = await enqueued(there.engine, "mail.send", queue="mails")
        person = await there.person()
        response = await person.press(f"/ui/jobs/{id}", "/cancel")
        assert response.status_code == 200
        asking = page(response)
        for words in ("Cancel this job?", "mail.send", str(id), "in the queue mails, queued"):
            assert words in asking.text
        back = [given["href"] for given in asking.all("a") if given["href"].endswith(f"ui/jobs/{id}")]
        assert back, "a no leads back"
        assert await state_of(there.engine, id) is State.QUEUED
        assert await noted(there.engine) == []
        for other in ({}, {"confirmed": "no"}, {"confirmed": ""}):
            await person.post(f"/ui/jobs/{id}/cancel", other)
        assert await state_of(there.engine, id) is State.QUEUED


async def test_the_end_of_a_running_job_is_told_as_it_is(memory_store: str) -> None:
    async with house(memory_store) as there:
        id = await enqueued(there.engine)
        await leased(there.engine)
        person = await there.person()
        shown = await person.follow(await person.confirm(await person.press(f"/ui/jobs/{id}", "/cancel")))
        assert "Its worker learns it at its next heartbeat." in shown.text


async def test_a_job_is_rescheduled(any_store: str) -> None:
    async with house(any_store) as there:
        id = await enqueued(there.engine)
        person = await there.person()
        path = f"/ui/jobs/{id}"
        shown = await person.follow(await person.press(path, "/reschedule", delay="3600"))
        await told_once(person, shown, "The job is due in 3600 seconds.", path)
        assert await state_of(there.engine, id) is State.SCHEDULED
        shown = await person.follow(await person.press(path, "/reschedule", delay="0"))
        assert "The job is due now." in shown.text
        assert await state_of(there.engine, id) is State.QUEUED
        assert [action for _, action, _, _ in await noted(there.engine)] == ["job.reschedule"] * 2


@pytest.mark.parametrize("delay", ["soon", "-1", "nan", "inf", "1e300", "0x10"])
async def test_a_bad_delay_changes_nothing(memory_store: str, delay: str) -> None:
    async with house(memory_store) as there:
        id = await enqueued(there.engine)
        response = await (await there.person()).post(f"/ui/jobs/{id}/reschedule", {"delay": delay})
        assert response.status_code == 422
        assert "delay" in page(response).text
        assert await state_of(there.engine, id) is State.QUEUED
        assert await noted(there.engine) == []


async def test_what_cannot_be_done_is_told_and_not_noted(local_store: str) -> None:
    async with house(local_store) as there:
        person = await there.person()
        ids = await in_every_state(there.engine)
        for path, status in (
            (f"/ui/jobs/{ids[State.SUCCEEDED]}/retry", 409),
            (f"/ui/jobs/{ids[State.SUCCEEDED]}/cancel", 409),
            (f"/ui/jobs/{ids[State.RUNNING]}/reschedule", 409),
            (f"/ui/jobs/{uuid4()}/cancel", 404),
            ("/ui/jobs/nonsense/cancel", 422),
            ("/ui/queues/unheard.of/pause", 404),
            ("/ui/schedules/unheard.of/run", 404),
        ):
            response = await person.post(path)
            assert response.status_code == status, (path, response.text)
            page(response)
        assert await noted(there.engine) == []
        assert await states(there.engine, list(ids.values())) == list(ids)


# ── Many jobs ──


async def test_the_picked_jobs_are_cancelled_after_a_second_yes_and_the_others_left(any_store: str) -> None:
    async with house(any_store) as there:
        ids = [answer.id for answer in await there.engine.enqueue([NewJob("work")] * 4)]
        person = await there.person()
        await there.engine.cancel([ids[1]])
        picked = [("id", str(id)) for id in ids[:3]]
        first = await person.post(
            "/ui/jobs/bulk", [*picked, ("verb", "cancel"), ("what", "picked"), ("back", "ui/jobs?queue=default")]
        )
        assert "Cancel 2 jobs?" in page(first).text
        assert "The state of 1 of those picked does not allow it." in page(first).text
        assert await state_of(there.engine, ids[0]) is State.QUEUED, "nothing is done before it is confirmed"
        response = await person.confirm(first)
        shown = await person.follow(response)
        assert str(response.url.join(response.headers["location"])).endswith("/ui/jobs?queue=default")
        await told_once(person, shown, "2 jobs cancelled.", "/ui/jobs")
        assert await states(there.engine, ids) == [State.CANCELLED] * 3 + [State.QUEUED]
        who = f"a test ({person.key_id})"
        assert {one[:3] for one in await noted(there.engine)} == {
            (who, "job.cancel", str(ids[0])),
            (who, "job.cancel", str(ids[2])),
        }
        again = await person.confirm(await person.post("/ui/jobs/bulk", [*picked, ("verb", "retry")]))
        assert "3 jobs run again." in (await person.follow(again)).text
        assert await states(there.engine, ids) == [State.QUEUED] * 4


async def test_a_job_that_was_picked_twice_counts_once(memory_store: str) -> None:
    async with house(memory_store) as there:
        id = await enqueued(there.engine)
        asked = await (await there.person()).post("/ui/jobs/bulk", [("id", str(id))] * 2 + [("verb", "cancel")])
        assert "Cancel 1 job?" in page(asked).text


@pytest.mark.parametrize("path", ["/ui/jobs/bulk", "/ui/dead/replay"])
async def test_no_pick_is_not_all_there_are(memory_store: str, path: str) -> None:
    """Without the script the buttons for what was picked can be pressed when nothing was."""
    async with house(memory_store) as there:
        id, corpse = await enqueued(there.engine, queue="other"), await dead(there.engine)
        person = await there.person()
        for confirmed in ("", "yes"):
            fields = {"verb": "cancel", "what": "picked", "confirmed": confirmed}
            response = await person.post(path, fields)
            assert response.status_code == 422
            assert "nothing was picked" in page(response).text
        assert await states(there.engine, [id, corpse]) == [State.QUEUED, State.DEAD]


async def test_no_more_jobs_can_be_picked_than_a_page_could_show(memory_store: str) -> None:
    async with house(memory_store) as there:
        id = await enqueued(there.engine)
        fields = [("id", str(id))] * (MOST_PICKED + 1)
        response = await (await there.person()).post("/ui/jobs/bulk", [*fields, ("verb", "cancel")])
        assert response.status_code == 422
        assert await state_of(there.engine, id) is State.QUEUED


async def test_all_that_a_filter_finds_are_cancelled_after_a_second_yes(any_store: str) -> None:
    async with house(any_store) as there:
        wanted = [one.id for one in await there.engine.enqueue([NewJob("work", queue="mails")] * 3)]
        others = [await enqueued(there.engine, queue="other"), await enqueued(there.engine, "else", queue="mails")]
        person = await there.person()
        path = "/ui/jobs?" + urlencode({"queue": "mails", "type": "work"})
        first = [form for form in (await person.see(path)).posts() if ("verb", "cancel") in form[1]]
        (action, fields) = first[0]
        response = await person.post(urljoin(path, action), fields, mark=None)
        assert response.status_code == 200
        asking = page(response)
        assert "Cancel 3 jobs?" in asking.text
        assert "queue mails, type work" in asking.text
        assert await states(there.engine, wanted) == [State.QUEUED] * 3, "nothing is done before it is confirmed"
        assert await noted(there.engine) == []

        ((action, fields),) = asking.posts()
        response = await person.post(urljoin("/ui/jobs/bulk", action), fields, mark=None)
        shown = await person.follow(response)
        await told_once(person, shown, "3 jobs cancelled.", "/ui/jobs")
        assert "queue=mails" in response.headers["location"], "back to the list that was looked at"
        assert await states(there.engine, wanted) == [State.CANCELLED] * 3
        assert await states(there.engine, others) == [State.QUEUED] * 2
        who = f"a test ({person.key_id})"
        assert await noted(there.engine) == [(who, "job.cancel", "queue=mails type=work", 3)]


async def test_all_that_a_filter_finds_run_again_after_a_second_yes(any_store: str) -> None:
    async with house(any_store) as there:
        ids = await in_every_state(there.engine)
        person = await there.person()
        asking = page(await person.post("/ui/jobs/bulk", {"verb": "retry"}))
        assert "Retry 2 jobs?" in asking.text
        assert "all jobs that died or were cancelled" in asking.text
        ((action, fields),) = asking.posts()
        assert await state_of(there.engine, ids[State.DEAD]) is State.DEAD
        shown = await person.follow(await person.post(urljoin("/ui/jobs/bulk", action), fields, mark=None))
        assert "2 jobs run again." in shown.text
        changed = {State.DEAD: State.QUEUED, State.CANCELLED: State.QUEUED}
        assert await states(there.engine, list(ids.values())) == [changed.get(state, state) for state in ids]
        assert await noted(there.engine) == [(f"a test ({person.key_id})", "job.retry", "all jobs", 2)]


async def test_more_jobs_than_one_page_of_the_store_are_cancelled_and_retried_in_one_go(memory_store: str) -> None:
    async with house(memory_store) as there:
        ids = [one.id for one in await there.engine.enqueue([NewJob("work")] * (2 * MAX_PAGE + 1))]
        person = await there.person()
        for verb, words, state in (("cancel", "cancelled", State.CANCELLED), ("retry", "run again", State.QUEUED)):
            asking = await person.post("/ui/jobs/bulk", {"verb": verb})
            assert f"{verb.capitalize()} 1,001 jobs?" in page(asking).text
            done = await person.confirm(asking)
            assert f"1,001 jobs {words}." in (await person.follow(done)).text
            assert set(await states(there.engine, ids)) == {state}


@pytest.mark.parametrize(
    "changed", [{"asked_at": ""}, {"asked_at": "soon"}, {"asked_at": "2026-01-01"}, {"count": "0"}, {"count": "x"}]
)
async def test_a_yes_without_its_question_is_asked_first(memory_store: str, changed: dict[str, str]) -> None:
    async with house(memory_store) as there:
        id, corpse = await enqueued(there.engine, queue="other"), await dead(there.engine)
        person = await there.person()
        for path in ("/ui/jobs/bulk", "/ui/dead/replay"):
            response = await person.post(path, {"verb": "cancel", **YES, **changed})
            assert "1 " in page(response).text
            assert len(page(response).posts()) == 1
        assert await states(there.engine, [id, corpse]) == [State.QUEUED, State.DEAD]


async def test_a_yes_is_to_no_jobs_that_came_after_the_question(any_store: str) -> None:
    async with house(any_store) as there:
        person = await there.person()
        before = [one.id for one in await there.engine.enqueue([NewJob("work")] * 3)]
        asking = await person.post("/ui/jobs/bulk", {"verb": "cancel"})
        later = [one.id for one in await there.engine.enqueue([NewJob("work")] * 2)]
        shown = await person.follow(await person.confirm(asking))
        assert "3 jobs cancelled." in shown.text
        assert "There are more" not in shown.text
        assert await states(there.engine, [*before, *later]) == [State.CANCELLED] * 3 + [State.QUEUED] * 2
        asking = await person.post("/ui/jobs/bulk", {"verb": "retry"})
        assert "Retry 3 jobs?" in page(asking).text
        await there.engine.cancel(later)
        shown = await person.follow(await person.confirm(asking))
        assert "3 jobs run again." in shown.text
        assert await states(there.engine, [*before, *later]) == [State.QUEUED] * 3 + [State.CANCELLED] * 2


@pytest.mark.parametrize("of_group", [True, False])
async def test_a_replay_is_of_no_jobs_that_died_after_the_question(any_store: str, of_group: bool) -> None:
    async with house(any_store) as there:
        person = await there.person()
        before = [await dead(there.engine, "the disk is full") for _ in range(2)]
        (group,) = (await DeadJobs(there.engine).groups()).groups
        fields = {"fingerprint": group.fingerprint} if of_group else {}
        asking = await person.post("/ui/dead/replay", fields)
        assert "Replay 2 dead jobs?" in page(asking).text
        later = await dead(there.engine, "the disk is full")
        shown = await person.follow(await person.confirm(asking))
        assert "2 jobs run again." in shown.text
        assert await states(there.engine, [*before, later]) == [State.QUEUED, State.QUEUED, State.DEAD]


async def test_a_yes_is_to_no_more_jobs_than_the_question_named(local_store: str) -> None:
    """Others may have come to be like that meanwhile."""
    async with house(local_store) as there:
        person = await there.person()
        ids = [one.id for one in await there.engine.enqueue([NewJob("work")] * 3)]
        yes = {**YES, "count": "2"}
        for verb, words in (("cancel", "2 jobs cancelled."), ("retry", "2 jobs run again.")):
            shown = await person.follow(await person.post("/ui/jobs/bulk", {"verb": verb, **yes}))
            assert words in shown.text
        assert await states(there.engine, ids) == [State.QUEUED] * 3
        corpses = [await dead(there.engine, f"{word} fell", queue="q") for word in ("one", "two", "three")]
        shown = await person.follow(await person.post("/ui/dead/replay", yes))
        assert "2 jobs run again." in shown.text
        assert sorted(await states(there.engine, corpses)) == [State.DEAD, State.QUEUED, State.QUEUED]


async def test_a_filter_that_finds_nothing_offers_nothing(memory_store: str) -> None:
    async with house(memory_store) as there:
        await enqueued(there.engine)
        person = await there.person()
        for fields in ({"verb": "cancel", "queue": "none"}, {"verb": "cancel", "status": "dead"}):
            asking = page(await person.post("/ui/jobs/bulk", fields))
            assert "There is nothing to do." in asking.text
            assert asking.posts() == []
        done = await person.post("/ui/jobs/bulk", {"verb": "cancel", "status": "dead", **YES})
        assert "0 jobs cancelled." in (await person.follow(done)).text
        assert await noted(there.engine) == []


async def test_a_bad_filter_changes_nothing_even_when_confirmed(memory_store: str) -> None:
    async with house(memory_store) as there:
        id = await enqueued(there.engine)
        person = await there.person()
        for field in ({"status": "bogus"}, {"queue": "!"}, {"after": "soon"}, {"id": "nonsense"}):
            response = await person.post("/ui/jobs/bulk", {"verb": "cancel", **YES, **field})
            assert response.status_code == 422, field
        assert await state_of(there.engine, id) is State.QUEUED


# ── Dead letters ──


async def test_one_group_of_dead_jobs_is_replayed_after_a_second_yes(any_store: str) -> None:
    async with house(any_store) as there:
        full = [await dead(there.engine, "the disk is full") for _ in range(2)]
        lost = await dead(there.engine, "the line was lost", error="OSError")
        person = await there.person()
        groups = (await DeadJobs(there.engine).groups()).groups
        assert [group.count for group in groups] == [2, 1]
        forms = [
            form
            for form in (await person.see("/ui/dead")).posts()
            if ("fingerprint", groups[0].fingerprint) in form[1]
        ]
        ((action, fields),) = forms
        asking = page(await person.post(urljoin("/ui/dead", action), fields, mark=None))
        assert "Replay 2 dead jobs?" in asking.text
        assert "the disk is full" in asking.text
        assert "the line was lost" not in asking.text
        assert await states(there.engine, full) == [State.DEAD] * 2

        ((action, fields),) = asking.posts()
        shown = await person.follow(await person.post(urljoin("/ui/dead/replay", action), fields, mark=None))
        await told_once(person, shown, "2 jobs run again.", "/ui/dead")
        assert await states(there.engine, full) == [State.QUEUED] * 2
        assert await state_of(there.engine, lost) is State.DEAD
        who = f"a test ({person.key_id})"
        assert await noted(there.engine) == [(who, "dlq.retry", groups[0].fingerprint, 2)]


async def test_several_groups_and_those_of_one_queue_are_replayed(local_store: str) -> None:
    async with house(local_store) as there:
        ids = [await dead(there.engine, f"{word} is broken", queue="mails") for word in ("one", "two", "three")]
        other = await dead(there.engine, "elsewhere", queue="other")
        person = await there.person()
        prints = [
            ("fingerprint", group.fingerprint) for group in (await DeadJobs(there.engine).groups("mails")).groups
        ]
        asking = page(await person.post("/ui/dead/replay", [*prints[:2], ("queue", "mails")]))
        assert "Replay 2 dead jobs?" in asking.text
        ((_, fields),) = asking.posts()
        assert [value for name, value in fields if name == "fingerprint"] == [text for _, text in prints[:2]]
        await person.follow(await person.post("/ui/dead/replay", fields, mark=None))
        assert sorted(await states(there.engine, ids)) == [State.DEAD, State.QUEUED, State.QUEUED]

        asking = page(await person.post("/ui/dead/replay", {"queue": "mails"}))
        assert "Replay 1 dead job?" in asking.text
        ((_, fields),) = asking.posts()
        await person.follow(await person.post("/ui/dead/replay", fields, mark=None))
        assert await states(there.engine, ids) == [State.QUEUED] * 3
        assert await state_of(there.engine, other) is State.DEAD, "another queue's are left"
        assert (await noted(there.engine))[0][1:] == ("dlq.retry", "all of mails", 1)


async def test_one_dead_job_is_replayed_after_a_second_yes(any_store: str) -> None:
    async with house(any_store) as there:
        ids = [await dead(there.engine, "the disk is full") for _ in range(3)]
        person = await there.person()
        path = "/ui/dead?queue=default"
        forms = [form for form in (await person.see(path)).posts() if ("id", str(ids[1])) in form[1]]
        ((action, fields),) = forms
        response = await person.post(urljoin(path, action), fields, mark=None)
        assert "Replay 1 dead job?" in page(response).text
        assert await states(there.engine, ids) == [State.DEAD] * 3
        response = await person.confirm(response)
        assert "queue=default" in response.headers["location"]
        await told_once(person, await person.follow(response), "1 job run again.", path)
        assert await states(there.engine, ids) == [State.DEAD, State.QUEUED, State.DEAD]
        assert await noted(there.engine) == [(f"a test ({person.key_id})", "dlq.retry", str(ids[1]), None)]


async def test_picked_dead_jobs_are_replayed_after_a_second_yes(local_store: str) -> None:
    async with house(local_store) as there:
        ids = [await dead(there.engine, f"{word} is broken") for word in ("one", "two", "three")]
        person = await there.person()
        boxes = [given for given in (await person.see("/ui/dead")).all("input") if given.get("name") == "id"]
        assert {given["value"] for given in boxes if given.get("form") == "replay-jobs"} == set(map(str, ids))
        picked = [("id", str(id)) for id in ids[:2]]
        first = await person.post("/ui/dead/replay", [*picked, ("what", "picked")])
        assert "Replay 2 dead jobs?" in page(first).text
        # One is replayed by somebody else before the yes.
        await DeadJobs(there.engine).retry([ids[0]])
        shown = await person.follow(await person.confirm(first))
        await told_once(person, shown, "1 job run again; the state of 1 did not allow it.", "/ui/dead")
        assert await states(there.engine, ids) == [State.QUEUED, State.QUEUED, State.DEAD]
        assert [one[1:] for one in await noted(there.engine)] == [("dlq.retry", str(ids[1]), None)]
        again = page(await person.post("/ui/dead/replay", picked))
        assert "Replay 0 dead jobs?" in again.text
        assert "2 jobs of those picked cannot be replayed any more." in again.text
        assert again.posts() == []


async def test_the_dead_jobs_of_one_group_are_shown_alone(local_store: str) -> None:
    async with house(local_store) as there:
        full = [await dead(there.engine, "the disk is full") for _ in range(2)]
        lost = await dead(there.engine, "the line was lost", error="OSError")
        person = await there.person()
        groups = (await DeadJobs(there.engine).groups()).groups
        shown = await person.see("/ui/dead")
        links = [given["href"] for given in shown.all("a") if f"group={groups[0].fingerprint}" in given["href"]]
        assert len(links) == 1

        def rows(shown: Page) -> set[str]:
            ids = {given.get("id", "") for given in shown.all("tr")}
            return {id.removeprefix("job-") for id in ids if id.startswith("job-")}

        assert rows(shown) == {*map(str, full), str(lost)}
        alone = await person.see(urljoin("/ui/dead", links[0]))
        assert rows(alone) == set(map(str, full))
        assert "The newest jobs of this group" in alone.text
        none = await person.see("/ui/dead?group=0123456789abcdef")
        assert rows(none) == set()
        assert "None of the newest 3 dead jobs is of that group." in none.text
        assert (await person.get("/ui/dead?group=nonsense")).status_code == 422


async def test_jobs_and_groups_are_not_replayed_in_one_go(memory_store: str) -> None:
    async with house(memory_store) as there:
        id = await dead(there.engine)
        (group,) = (await DeadJobs(there.engine).groups()).groups
        fields = {"id": str(id), "fingerprint": group.fingerprint, **YES}
        assert (await (await there.person()).post("/ui/dead/replay", fields)).status_code == 422
        assert await state_of(there.engine, id) is State.DEAD


async def test_a_group_that_is_none_is_refused_before_anything_is_done(memory_store: str) -> None:
    """What was done to the groups before it would be in no log."""
    async with house(memory_store) as there:
        id = await dead(there.engine)
        (group,) = (await DeadJobs(there.engine).groups()).groups
        fields = [("fingerprint", group.fingerprint), ("fingerprint", "nonsense"), *YES.items()]
        response = await (await there.person()).post("/ui/dead/replay", fields)
        assert response.status_code == 422
        assert await state_of(there.engine, id) is State.DEAD
        assert await noted(there.engine) == []


async def test_one_go_is_over_all_groups_together(local_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropeway.dashboard.many.MOST_AT_ONCE", 3)
    async with house(local_store) as there:
        ids = [await dead(there.engine, f"{word} fell", queue="q") for word in ("one", "two", "one", "two")]
        groups = (await DeadJobs(there.engine).groups()).groups
        person = await there.person()
        fields = [("fingerprint", group.fingerprint) for group in groups]
        asking = await person.post("/ui/dead/replay", fields)
        assert "Replay 4 dead jobs?" in page(asking).text
        assert "One go takes the first 3." in page(asking).text
        shown = await person.follow(await person.confirm(asking))
        assert "3 jobs run again. There are more" in shown.text
        assert sorted(await states(there.engine, ids)) == [State.DEAD, *[State.QUEUED] * 3]
        assert [one[3] for one in await noted(there.engine)] == [3]


class GoesAway(MemoryEngine):
    """Runs jobs again so many times, and then does not answer."""

    answers = 1

    async def redrive(self, *arguments: Any, **options: Any) -> list[Changed | RopewayError]:
        if self.answers == 0:
            raise Unavailable("the store is away")
        self.answers -= 1
        return await super().redrive(*arguments, **options)


async def test_what_was_replayed_before_the_store_went_away_is_told_and_noted() -> None:
    async with house("memory://", engine=GoesAway()) as there:
        ids = [await dead(there.engine, f"{word} fell", queue="q") for word in ("one", "two", "three")]
        groups = (await DeadJobs(there.engine).groups()).groups
        fields = [("fingerprint", group.fingerprint) for group in groups]
        person = await there.person()
        shown = await person.follow(await person.confirm(await person.post("/ui/dead/replay", fields)))
        assert "1 job run again. Then the store did not answer: do it again for the rest." in shown.text
        assert sorted(await states(there.engine, ids)) == [State.DEAD, State.DEAD, State.QUEUED]
        assert [one[1] for one in await noted(there.engine)] == ["dlq.retry"]
        assert [one[3] for one in await noted(there.engine)] == [1]
        # With nothing done there is nothing to note.
        response = await person.confirm(await person.post("/ui/dead/replay", fields))
        assert response.status_code == 503
        assert len(await noted(there.engine)) == 1


# ── Schedules ──


async def test_a_schedule_is_paused_resumed_and_run(any_store: str) -> None:
    async with house(any_store) as there:
        await with_schedule(there.engine)
        person = await there.person()
        path = "/ui/schedules"
        shown = await person.follow(await person.press(path, "nightly/pause"))
        await told_once(person, shown, "The schedule nightly is paused", path)
        assert (await there.engine.get_schedule("nightly")).spec.paused
        shown = await person.follow(await person.press(path, "nightly/resume"))
        await told_once(person, shown, "The schedule nightly goes on.", path)
        assert not (await there.engine.get_schedule("nightly")).spec.paused
        shown = await person.follow(await person.press(path, "nightly/run"))
        (made,) = (await there.engine.find()).jobs
        assert (made.type, made.queue) == ("report", "reports")
        await told_once(person, shown, f"made the job {made.id} just now", path)
        assert [one[1:3] for one in await noted(there.engine)] == [
            ("schedule.run", "nightly"),
            ("schedule.resume", "nightly"),
            ("schedule.pause", "nightly"),
        ]


# ── Who may ──


async def everything(there: House) -> list[tuple[str, list[tuple[str, str]]]]:
    """One of every form that changes something."""
    ids = await in_every_state(there.engine)
    await with_schedule(there.engine)
    return [
        ("/ui/queues/queued/pause", []),
        ("/ui/queues/queued/resume", []),
        (f"/ui/jobs/{ids[State.DEAD]}/retry", []),
        (f"/ui/jobs/{ids[State.QUEUED]}/cancel", []),
        (f"/ui/jobs/{ids[State.QUEUED]}/cancel", [("confirmed", "yes")]),
        (f"/ui/jobs/{ids[State.SCHEDULED]}/reschedule", [("delay", "0")]),
        ("/ui/jobs/bulk", [("verb", "cancel"), ("id", str(ids[State.QUEUED])), ("confirmed", "yes")]),
        ("/ui/jobs/bulk", [("verb", "cancel"), *YES.items()]),
        ("/ui/dead/replay", [*YES.items()]),
        ("/ui/dead/replay", [("id", str(ids[State.DEAD])), ("confirmed", "yes")]),
        ("/ui/schedules/nightly/pause", []),
        ("/ui/schedules/nightly/run", []),
    ]


async def everything_stored(engine: Engine) -> object:
    """All that the forms could have changed."""
    jobs = (await engine.find(limit=500)).jobs
    queues = {stats.queue: stats.paused for stats in await engine.queue_stats()}
    return {job.id: (job.state, job.run_at) for job in jobs}, queues, await engine.schedules(), await noted(engine)


async def test_a_form_without_the_mark_of_the_session_does_nothing(local_store: str) -> None:
    async with house(local_store) as there:
        forms = await everything(there)
        person, other = await there.person(), await there.person()
        before = await everything_stored(there.engine)
        foreign = await other.mark()
        assert foreign != await person.mark()
        for path, fields in forms:
            for mark in (None, "wrong", "ä", foreign, foreign[:-1]):
                response = await person.post(path, fields, mark=mark)
                assert response.status_code == 403, (path, mark)
                assert "not of your session" in page(response).text
        assert await everything_stored(there.engine) == before
        assert (await person.post("/ui/logout", mark="wrong")).status_code == 403
        await person.see("/")


async def test_whoever_may_only_look_finds_no_buttons_and_cannot_act(local_store: str) -> None:
    async with house(local_store) as there:
        forms = await everything(there)
        reader = await there.person(Scope.READ)
        before = await everything_stored(there.engine)
        id = next(iter((await there.engine.find()).jobs)).id
        for path in ("/", "/ui/queues", "/ui/jobs", f"/ui/jobs/{id}", "/ui/dead", "/ui/schedules"):
            shown = await reader.see(path)
            assert [form for form in shown.posts() if form[1]] == [], path
            names = {given.get("name") for given in shown.all("input")}
            assert "read-only" in shown.text
            forms_of_buttons = {given.get("form") for given in shown.all("button")}
            assert not forms_of_buttons & {"picked", "replay-groups", "replay-jobs"}, path
            assert "fingerprint" not in names
        # The mark is in the form that signs out: the scope alone must stop it.
        mark = (await reader.see("/")).mark
        for path, fields in forms:
            response = await reader.post(path, fields, mark=mark)
            assert response.status_code == 403, path
            assert "needs the scope admin" in page(response).text
        assert await everything_stored(there.engine) == before


async def test_without_a_session_no_form_does_anything(memory_store: str) -> None:
    async with house(memory_store) as there:
        forms = await everything(there)
        mark = await (await there.person()).mark()
        before = await everything_stored(there.engine)
        for path, fields in forms:
            response = await there.stranger().post(path, fields, mark=mark)
            assert response.status_code == 303
            assert response.headers["location"].endswith("ui/login")
        assert await everything_stored(there.engine) == before


def finds(shown: Page, *places: str) -> list[bool]:
    """Whether the navigation leads to them."""
    links = [given["href"] for given in shown.all("a")]
    return [any(link.endswith(place) for link in links) for place in places]


async def test_the_audit_log_is_for_operators_as_it_is_over_the_api(local_store: str) -> None:
    async with house(local_store) as there:
        await enqueued(there.engine)
        # No name of hexadecimal digits: a form carries some at random.
        operator = await there.person(name="grace")
        await operator.post("/ui/queues/default/pause")
        assert finds(await operator.see("/"), "ui/audit") == [True]
        assert "queue.pause" in (await operator.see("/ui/audit")).text
        for scope in (Scope.READ, Scope.READ_PAYLOAD):
            reader = await there.person(scope)
            assert finds(await reader.see("/"), "ui/audit") == [False]
            response = await reader.get("/ui/audit")
            assert response.status_code == 403
            assert "needs the scope admin" in page(response).text
            assert "grace" not in response.text


async def test_the_settings_are_for_those_who_run_the_server(local_store: str) -> None:
    async with house(local_store) as there:
        assert finds(await (await there.person()).see("/ui/settings"), "ui/settings") == [True]
        await there.engine.create_tenant(NewTenant("other", "other"))
        _, token = await Keys(there.engine, tenant="other").create("theirs", {Scope.ADMIN})
        tenant = there.stranger()
        await tenant.post("/ui/login", {"key": token}, mark=None)
        assert finds(await tenant.see("/"), "ui/settings", "ui/audit") == [False, True]
        assert "only a key of the tenant default" in page(await tenant.get("/ui/settings")).text
        reader = await there.person(Scope.READ_PAYLOAD)
        assert finds(await reader.see("/"), "ui/settings") == [False]
        for person in (tenant, reader):
            response = await person.get("/ui/settings")
            assert response.status_code == 403
            assert "ROPEWAY_URL" not in response.text


async def test_no_address_does_anything_when_it_is_only_looked_at(local_store: str) -> None:
    """A link of another site brings the session along."""
    async with house(local_store) as there:
        forms = await everything(there)
        person = await there.person()
        mark = await person.mark()
        before = await everything_stored(there.engine)
        for path, fields in forms:
            response = await person.get(f"{path}?{urlencode([*fields, ('mark', mark)])}")
            assert response.status_code in (404, 405, 422), path
        assert (await person.get(f"/ui/logout?mark={mark}")).status_code == 405
        for path in PAGES:
            await person.see(path)
        assert await everything_stored(there.engine) == before
        await person.see("/")


async def test_payloads_and_results_are_for_those_who_may_see_them(local_store: str) -> None:
    async with house(local_store) as there:
        id = await enqueued(there.engine, payload=b'{"card":"4111-1111"}')
        path = f"/ui/jobs/{id}"
        reader = await there.person(Scope.READ)
        response = await reader.get(path)
        assert "Hidden: your key lacks the scope read:payload." in page(response).text
        assert "4111-1111" not in response.text
        assert "4111-1111" in (await (await there.person(Scope.READ_PAYLOAD)).see(path)).text


async def test_another_tenants_jobs_are_neither_seen_nor_changed(local_store: str) -> None:
    async with house(local_store) as there:
        await there.engine.create_tenant(NewTenant("other", "other"))
        (theirs,) = await there.engine.enqueue([NewJob("secret.work", queue="theirs")], tenant="other")
        person = await there.person()
        for path in ("/", "/ui/queues", "/ui/jobs", "/ui/events", "/ui/jobs?queue=theirs"):
            assert "secret.work" not in (await person.get(path)).text
        assert (await person.get(f"/ui/jobs/{theirs.id}")).status_code == 404
        assert (await person.post(f"/ui/jobs/{theirs.id}/cancel")).status_code == 404
        await person.post("/ui/jobs/bulk", {"verb": "cancel", **YES})
        await person.post("/ui/jobs/bulk", {"verb": "cancel", "id": str(theirs.id), "confirmed": "yes"})
        await person.post(f"/ui/jobs/{theirs.id}/cancel", {"confirmed": "yes"})
        (job,) = await there.engine.get([theirs.id], tenant="other")
        assert job is not None
        assert job.state is State.QUEUED


# ── Forms that are none ──


@pytest.mark.parametrize(
    "path",
    ["/ui/queues/default/explode", "/ui/jobs/{id}/explode", "/ui/schedules/nightly/explode", "/ui/jobs/bulk"],
)
async def test_a_verb_that_there_is_not_is_not_found(memory_store: str, path: str) -> None:
    async with house(memory_store) as there:
        id = await enqueued(there.engine)
        await with_schedule(there.engine)
        response = await (await there.person()).post(path.format(id=id), {"verb": "explode"})
        assert response.status_code == 404
        assert "there is no action 'explode'" in page(response).text


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=x", "text/plain", ""])
async def test_what_is_no_form_is_refused(memory_store: str, kind: str) -> None:
    """A page of another site can send some kinds without being asked first; none of them is taken."""
    async with house(memory_store) as there:
        await enqueued(there.engine)
        person = await there.person()
        body = urlencode({"mark": await person.mark()})
        response = await person.http.post("/ui/queues/default/pause", content=body, headers={"content-type": kind})
        assert response.status_code == 415
        page(response)
        assert not await paused(there.engine, "default")


async def test_a_form_that_is_too_large_or_broken_is_refused(memory_store: str) -> None:
    async with house(memory_store) as there:
        await enqueued(there.engine)
        person = await there.person()
        mark = f"mark={await person.mark()}&"
        for body, status in (
            (mark + "a=" + "b" * MAX_FORM_BYTES, 413),
            (mark + "a=%ff", 400),
            (mark + "&".join(["a=b"] * 3_000), 400),
        ):
            response = await person.http.post(
                "/ui/queues/default/pause", content=body, headers={"content-type": FORM}
            )
            assert response.status_code == status
            page(response)
        response = await person.http.post(
            "/ui/queues/default/pause", content=mark.encode() + b"a=\xff", headers={"content-type": FORM}
        )
        assert response.status_code == 400
        assert not await paused(there.engine, "default")


async def test_a_form_that_does_not_come_to_its_end_is_refused(
    memory_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropeway.dashboard.asking.FORM_SECONDS", 0.05)
    async with house(memory_store) as there:
        await enqueued(there.engine)
        person = await there.person()
        mark = await person.mark()

        async def trickle() -> AsyncIterator[bytes]:
            yield f"mark={mark}&".encode()
            await asyncio.Event().wait()

        response = await person.http.post(
            "/ui/queues/default/pause", content=trickle(), headers={"content-type": FORM}
        )
        assert response.status_code == 408
        assert "did not come to its end in time" in page(response).text
        assert not await paused(there.engine, "default")


@pytest.mark.parametrize(
    "back",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "\\\\evil.example",
        "javascript:alert(1)",
        "ui/../../../evil",
        "ui//evil.example",
        "ui/\\evil.example",
        "ui/jobs\r\nSet-Cookie: a=b",
        "UI/jobs",
        "",
    ],
)
async def test_back_leads_nowhere_else(memory_store: str, back: str) -> None:
    async with house(memory_store) as there:
        await enqueued(there.engine)
        response = await (await there.person()).post("/ui/queues/default/pause", {"back": back})
        assert response.status_code == 303
        assert response.headers["location"] == "../../../ui/queues"
        assert "a=b" not in str(response.headers)
