"""What a test may say about what was enqueued, and what it is told when that is not so."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from unittest.mock import ANY

import pytest

from ropeway import FieldError, NewJob, Ropeway, Task, UnknownTask, UsageError
from ropeway.testing import Kit
from ropeway.testing.store import at_once

Send = Task[..., Any, ..., Any]


@pytest.fixture
def send(app: Ropeway) -> Send:
    @app.task(name="email.send", queue="mail")
    def send(to: str, subject: str = "Hello", data: dict[str, Any] | None = None) -> None: ...

    return send


@pytest.fixture
def ping(app: Ropeway) -> Send:
    @app.task
    def ping(**rest: int) -> None: ...

    return ping


def failure(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def test_what_is_not_mentioned_does_not_matter(ropeway: Kit, send: Send) -> None:
    send.enqueue("ada@example.com", data={"n": 1})
    ropeway.assert_enqueued(send)
    ropeway.assert_enqueued("email.send")
    ropeway.assert_enqueued(send, "ada@example.com")
    ropeway.assert_enqueued(send, to="ada@example.com", data={"n": 1}, queue="mail")
    ropeway.assert_enqueued(send, subject="Hello")  # the default that the handler will get
    ropeway.assert_enqueued(send, to=ANY, data={"n": ANY})
    ropeway.assert_enqueued(send.options(priority=1), times=1)
    ropeway.refute_enqueued(send, "bob@example.com")
    ropeway.refute_enqueued(send, queue="default")


def test_it_returns_the_job(ropeway: Kit, send: Send) -> None:
    enqueued = send.options(priority=2, delay=60).enqueue("ada")
    job = ropeway.assert_enqueued(send)
    assert job.id == enqueued.id
    assert (job.type, job.queue, job.priority, job.state, job.delay) == ("email.send", "mail", 2, "scheduled", 60)
    assert job.run_at == ropeway.clock.now() + timedelta(seconds=60)
    assert job.args == {"to": "ada", "subject": "Hello", "data": None}
    assert str(job) == "email.send(to='ada', subject='Hello', data=None)"


def test_when_it_was_to_run(ropeway: Kit, send: Send) -> None:
    start = ropeway.clock.now()
    send.options(delay=3600).enqueue("ada")
    ropeway.clock.advance(hours=2)
    ropeway.drain()
    ropeway.assert_enqueued(send, delay=3600)
    ropeway.assert_enqueued(send, delay=timedelta(hours=1), run_at=start + timedelta(hours=1))
    ropeway.refute_enqueued(send, delay=60)
    assert "delay: expected 60, got 3600.0" in failure(ropeway.assert_enqueued, send, delay=60)


def test_how_often(ropeway: Kit, send: Send) -> None:
    send.enqueue("ada")
    send.enqueue("ada")
    ropeway.assert_enqueued(send, "ada", times=2)
    assert failure(ropeway.assert_enqueued, send, "ada", times=1).startswith(
        "email.send(to='ada') was enqueued twice, expected once\n"
    )
    assert failure(ropeway.assert_enqueued, send, "bob", times=3).startswith(
        "email.send(to='bob') was not enqueued, expected 3 times\n"
    )
    with pytest.raises(UsageError, match="refute_enqueued"):
        ropeway.assert_enqueued(send, times=0)


def test_the_list(ropeway: Kit, send: Send, ping: Send) -> None:
    ping.enqueue(n=1)
    send.options(delay=3600).enqueue("ada")
    send.enqueue("bob", data={"n": 1})
    ping.options(queue="other", delay=90).enqueue()
    ropeway.enqueued(state="queued")
    assert [job.args for job in ropeway.enqueued(ping)] == [{"n": 1}, {}]
    assert [job.type for job in ropeway.enqueued(queue="mail")] == ["email.send", "email.send"]
    assert [job.type for job in ropeway.enqueued("ping", state="scheduled")] == ["ping"]


def test_a_failure_lists_the_jobs_and_how_the_nearest_differs(ropeway: Kit, send: Send, ping: Send) -> None:
    ping.enqueue(n=1)
    send.options(delay=3600).enqueue("ada")
    send.enqueue("bob", "Hi", {"user": {"id": 1}})
    told = failure(ropeway.assert_enqueued, send, "bob", data={"user": {"id": 2}}, queue="bulk")
    assert told.splitlines() == [
        "email.send(to='bob', data={'user': {'id': 2}}) with queue bulk was not enqueued",
        "",
        "enqueued were 3 jobs:",
        "   1. ping(n=1)                                                     queue default  queued",
        "   2. email.send(to='ada', subject='Hello', data=None)              queue mail     scheduled, in 1 h",
        "   3. email.send(to='bob', subject='Hi', data={'user': {'id': 1}})  queue mail     queued",
        "",
        "the nearest is 3:",
        "     data['user']['id']: expected 2, got 1",
        "     queue: expected bulk, got mail",
    ]


def test_other_keys_are_shown_whole(ropeway: Kit, send: Send) -> None:
    send.enqueue("bob", data={"a": 1, "b": 2})
    told = failure(ropeway.assert_enqueued, send, data={"a": 1})
    assert told.endswith("     data: expected {'a': 1}, got {'a': 1, 'b': 2}")


def test_a_failure_when_there_is_nothing(ropeway: Kit, send: Send) -> None:
    assert failure(ropeway.assert_enqueued, send) == "email.send() was not enqueued\n\nnothing was enqueued"


def test_a_refutation_marks_what_is_too_much(ropeway: Kit, send: Send, ping: Send) -> None:
    ping.enqueue()
    send.enqueue("ada")
    assert failure(ropeway.refute_enqueued, send, "ada").splitlines() == [
        "email.send(to='ada') was enqueued, it should not have been",
        "",
        "enqueued were 2 jobs:",
        "   1. ping()                                            queue default  queued",
        ">  2. email.send(to='ada', subject='Hello', data=None)  queue mail     queued",
    ]
    send.enqueue("ada")
    assert "was enqueued twice, it should not" in failure(ropeway.refute_enqueued, send, "ada")


def test_long_things_are_cut(ropeway: Kit, send: Send, ping: Send) -> None:
    for _ in range(60):
        ping.enqueue()
    send.enqueue("x" * 5000, data={str(n): n for n in range(1000)})
    told = failure(ropeway.assert_enqueued, send, "y" * 5000)
    assert "     and 11 more" in told
    assert all(len(line) < 200 for line in told.splitlines())


def test_dead_jobs_say_why(ropeway: Kit, app: Ropeway) -> None:
    @app.task(max_attempts=1)
    def broken() -> None:
        raise ValueError("no\nmore")

    broken.enqueue()
    ropeway.drain(raise_errors=False)
    assert "dead, ValueError: no" in failure(ropeway.refute_enqueued, broken).splitlines()[-1]


@pytest.mark.parametrize("check", ["assert_enqueued", "refute_enqueued"])
def test_a_typo_proves_nothing_and_is_told(ropeway: Kit, send: Send, ping: Send, check: str) -> None:
    ask = getattr(ropeway, check)
    with pytest.raises(FieldError, match=r"'too'.*it takes to, subject, data"):
        ask(send, too="ada")
    with pytest.raises(FieldError, match="too many positional arguments"):
        ask(send, 1, 2, 3, 4)
    with pytest.raises(UnknownTask, match=r"did you mean email\.send"):
        ask("email.sent")
    with pytest.raises(UsageError, match="is not a task"):
        ask(print)


def test_jobs_of_tasks_that_are_not_declared_here(ropeway: Kit) -> None:
    at_once(ropeway.engine.enqueue([NewJob("elsewhere", b'{"n": 1}'), NewJob("elsewhere", b"[1, 2]")]))
    ropeway.assert_enqueued("elsewhere", n=1, times=1)
    ropeway.assert_enqueued("elsewhere", payload=[1, 2])
    assert "n: expected 2, got 1" in failure(ropeway.assert_enqueued, "elsewhere", n=2)
    with pytest.raises(FieldError, match="name them"):
        ropeway.assert_enqueued("elsewhere", 1)


def test_a_payload_that_does_not_fit_is_shown_as_it_is(ropeway: Kit, send: Send) -> None:
    at_once(ropeway.engine.enqueue([NewJob("email.send", b'{"too": "ada"}')]))
    assert ropeway.enqueued(send)[0].args == {"too": "ada"}
    assert "to: expected 'ada', it was not given" in failure(ropeway.assert_enqueued, send, "ada")


def test_parameters_named_like_options_are_given_by_position(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def move(queue: str, times: int) -> None: ...

    move.enqueue("a", 2)
    ropeway.assert_enqueued(move, "a", 2)
    ropeway.refute_enqueued(move, "b")
