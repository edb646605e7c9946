"""`perform`: one run of one task, arguments and result by way of JSON."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from ropeway import FieldError, JobContext, ResultUnavailable, Ropeway, UsageError
from ropeway.testing import DiscardJob, Kit, RetryJob, SnoozeJob


@dataclass
class Order:
    id: UUID
    at: datetime


def test_arguments_and_result_go_through_json(ropeway: Kit, app: Ropeway) -> None:
    seen: list[Any] = []

    @app.task
    def ship(ctx: JobContext, order: Order) -> Order:
        assert ctx.attempt == 1
        seen.append(order)
        return order

    order = Order(UUID(int=7), datetime(2026, 3, 2, tzinfo=UTC))
    back = ropeway.perform(ship, order)
    assert seen == [order]
    assert seen[0] is not order
    assert back == order
    assert back is not order
    assert ropeway.enqueued() == []


async def test_in_an_async_test(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    assert await ropeway.aperform(double, n=4) == 8


def test_type_mistakes_are_found(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def double(n: int) -> int:
        return f"{n}{n}"  # type: ignore[return-value]

    with pytest.raises(FieldError, match="argument 'n'"):
        ropeway.perform(double, "4")  # type: ignore[arg-type]
    with pytest.raises(FieldError, match="argument 'm' is not one it takes"):
        ropeway.perform(double, m=4)  # type: ignore[call-arg]
    with pytest.raises(ResultUnavailable, match="not what double announces: Expected `int`, got `str`"):
        ropeway.perform(double, 4)


def test_what_the_handler_raises(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def broken() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        ropeway.perform(broken)
    shown = [entry.name for entry in caught.traceback if not entry.ishidden(caught)]
    assert shown == ["test_what_the_handler_raises", "broken"]


@pytest.mark.parametrize(("how", "kind"), [("snooze", SnoozeJob), ("retry", RetryJob), ("discard", DiscardJob)])
def test_a_handler_that_ends_itself(ropeway: Kit, app: Ropeway, how: str, kind: type[BaseException]) -> None:
    @app.task
    def leaves(ctx: JobContext, how: str) -> None:
        {
            "snooze": lambda: ctx.snooze(5),
            "retry": lambda: ctx.retry(after=5),
            "discard": lambda: ctx.discard("enough"),
        }[how]()

    with pytest.raises(kind):
        ropeway.perform(leaves, how)


def test_what_it_enqueues_is_in_the_tests_store(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def child() -> None: ...

    @app.task
    def parent() -> None:
        child.enqueue()

    ropeway.perform(parent)
    assert [job.type for job in ropeway.enqueued()] == ["child"]


def test_the_options_of_the_call_are_on_the_job(ropeway: Kit, app: Ropeway) -> None:
    @app.task(window="22:00-22:01")
    def look(ctx: JobContext) -> list[Any]:
        return [ctx.job.queue, ctx.key, ctx.job.tenant]

    asked = look.options(queue="mail", key="k", tenant="acme", delay=60)
    assert ropeway.perform(asked) == ["mail", "k", "acme"]


def test_only_tasks_of_the_app(ropeway: Kit) -> None:
    other = Ropeway("memory://")

    @other.task
    def strange() -> None: ...

    with pytest.raises(UsageError, match="strange is a task of another app"):
        ropeway.perform(strange)
    with pytest.raises(UsageError, match="is not a task"):
        ropeway.perform(len)  # type: ignore[arg-type]
