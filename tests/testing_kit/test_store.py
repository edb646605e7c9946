"""Where an app's jobs go while a test has hold of it, and that it gets its own store back."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from ropeway import JobContext, NotSupported, Ropeway, UsageError
from ropeway.testing import Kit


def test_jobs_go_to_the_tests_own_store(ropeway: Kit, app: Ropeway, real_store: Path) -> None:
    @app.task
    def greet(name: str) -> None: ...

    greet.enqueue("ada")
    app.enqueue_many([greet.call("bob"), greet.call("eve")])
    assert [job.args for job in ropeway.enqueued()] == [{"name": "ada"}, {"name": "bob"}, {"name": "eve"}]
    assert not real_store.exists()


async def test_an_async_test_uses_the_same_fixture(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with app:
        job = await greet.aenqueue("ada")
        await ropeway.adrain()
        assert await job.result() == "hello ada"
        assert (await app.job(job.id)).status == "succeeded"


def test_threads_reach_it_too(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def count(n: int) -> None: ...

    def enqueue(start: int) -> None:
        for n in range(start, start + 20):
            count.enqueue(n)

    threads = [threading.Thread(target=enqueue, args=(100 * i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {job.args["n"] for job in ropeway.enqueued()} == {100 * i + n for i in range(5) for n in range(20)}
    assert ropeway.drain().succeeded == 100


async def test_sync_code_that_an_async_test_calls_in_a_thread_reaches_it_too(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def greet(name: str) -> None: ...

    await asyncio.to_thread(greet.enqueue, "ada")
    ropeway.assert_enqueued(greet, "ada")


async def test_sync_calls_are_refused_in_async_code_as_in_production(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def greet() -> None: ...

    with pytest.raises(UsageError, match=r"await aenqueue\(\)"):
        greet.enqueue()
    with pytest.raises(UsageError, match=r"await ropeway.adrain\(\)"):
        ropeway.drain()
    with pytest.raises(UsageError, match=r"await ropeway.aperform\(\)"):
        ropeway.perform(greet)


def test_afterwards_the_app_is_as_it_was(tmp_path: Path) -> None:
    app = Ropeway(f"sqlite:///{tmp_path / 'real.db'}")
    app.state.colour = "red"

    @app.task
    def greet() -> None: ...

    real = greet.enqueue()
    with Kit(app) as ropeway:
        greet.enqueue()
        assert len(ropeway.enqueued()) == 1
        app.state.colour = "green"
        app.state.mood = "good"
    assert vars(app.state) == {"colour": "red"}
    assert real.refresh().type == "greet"
    with Kit(app) as ropeway:
        assert ropeway.enqueued() == []
    assert app.sync.job(real.id).status == "queued"
    app.close()


async def test_a_kit_may_end_inside_a_running_loop(app: Ropeway) -> None:
    @app.task
    def greet() -> None: ...

    with Kit(app):
        await asyncio.to_thread(greet.enqueue)  # a thread has made a loop of its own, which must be closed


def test_two_kits_cannot_hold_one_app(ropeway: Kit, app: Ropeway) -> None:
    assert ropeway.use(app) is app  # the same again is fine
    with pytest.raises(UsageError, match="another test kit"):
        Kit(app)
    with pytest.raises(UsageError, match="another app"):
        ropeway.use(Ropeway("memory://"))


def test_without_an_app_it_says_how_to_name_one() -> None:
    with Kit() as ropeway:
        for ask in (ropeway.drain, ropeway.enqueued, ropeway.clear, lambda: ropeway.engine):
            with pytest.raises(UsageError, match=r"ropeway.use\(app\)"):
                ask()


def test_what_is_not_in_json_is_refused_at_the_call_as_in_production(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def greet(name: str) -> None: ...

    with pytest.raises(Exception, match="argument 'name'"):
        greet.enqueue(7)  # type: ignore[arg-type]
    assert ropeway.enqueued() == []


def test_a_result_that_is_not_there_yet_is_told_at_once(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def one() -> int:
        return 1

    job = one.enqueue()
    with pytest.raises(UsageError, match=r"has not ended, it is queued.*ropeway.drain\(\)"):
        job.result()
    ropeway.drain()
    assert job.result() == 1


def test_an_enqueue_in_a_transaction_of_your_own_is_stored_at_once(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def greet(name: str) -> None: ...

    connection = object()
    job = greet.options(connection=connection).enqueue("ada")
    assert job.status is None  # as in production: it is there once the transaction has committed
    ropeway.assert_enqueued(greet, "ada")


async def test_the_same_from_async_code(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def greet(name: str) -> None: ...

    await greet.options(connection=object()).aenqueue("ada")
    ropeway.assert_enqueued(greet, "ada")


def test_keys_and_unique_rules_hold(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def greet(name: str) -> None: ...

    first = greet.options(key="k").enqueue("ada")
    again = greet.options(key="k").enqueue("ada")
    assert again.deduplicated
    assert again.id == first.id
    assert len(ropeway.enqueued()) == 1


def test_clear_forgets_jobs_and_keys(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def greet(name: str) -> None: ...

    greet.options(key="k").enqueue("ada")
    ropeway.clear()
    assert ropeway.enqueued() == []
    assert len(ropeway.drain()) == 0
    assert not greet.options(key="k").enqueue("ada").deduplicated


async def test_a_handlers_transaction_needs_a_connection_from_the_test(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    async def pay(ctx: JobContext) -> None:
        async with ctx.transaction():
            pass

    with pytest.raises(NotSupported, match=r"ropeway.use\(app, transaction=...\)"):
        await ropeway.aperform(pay)
