"""The two clients. Their methods are those of `plans`: here is only how a call is sent, blocking or awaited."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import update_wrapper
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack, overload
from urllib.parse import urlsplit

from ropeway.sdk import plans
from ropeway.sdk.gathering import Gathering
from ropeway.sdk.parts import JobId
from ropeway.sdk.streams import JobStream, StreamEvent
from ropeway.wire import models
from ropeway.wire.calls import USUAL, Call, Failed, Patience
from ropeway.wire.transport import ANSWER_SECONDS, BROKEN_OFF, AsyncTransport, SyncTransport

P = ParamSpec("P")
T = TypeVar("T")

HERE = "http://127.0.0.1:8000"


class _Blocking(Generic[P, T]):
    """A method that sends what a plan says and returns what it reads."""

    def __init__(self, plan: Callable[P, Call[T]]) -> None:
        self._plan = plan
        self.__doc__ = plan.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, T]: ...
    def __get__(self, client: Client | None, owner: type) -> Self | Callable[P, T]:
        if client is None:
            return self

        def method(*args: P.args, **kwargs: P.kwargs) -> T:
            return client.send(self._plan(*args, **kwargs))

        return update_wrapper(method, self._plan)


class _Awaited(Generic[P, T]):
    """The same, to be awaited."""

    def __init__(self, plan: Callable[P, Call[T]]) -> None:
        self._plan = plan
        self.__doc__ = plan.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: AsyncClient | None, owner: type) -> Self | Callable[P, Coroutine[Any, Any, T]]:
        if client is None:
            return self

        async def method(*args: P.args, **kwargs: P.kwargs) -> T:
            return await client.send(self._plan(*args, **kwargs))

        return update_wrapper(method, self._plan)


class _Gathered(_Awaited[P, models.EnqueuedBrief]):
    """The same for enqueue: calls that are made while one is under way go together."""

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(
        self, client: AsyncClient, owner: type
    ) -> Callable[P, Coroutine[Any, Any, models.EnqueuedBrief]]: ...
    def __get__(
        self, client: AsyncClient | None, owner: type
    ) -> Self | Callable[P, Coroutine[Any, Any, models.EnqueuedBrief]]:
        if client is None:
            return self

        async def method(*args: P.args, **kwargs: P.kwargs) -> models.EnqueuedBrief:
            return await client.gathering.submit(self._plan(*args, **kwargs))

        return update_wrapper(method, self._plan)


class Client:
    """A Ropeway server, for blocking code. One may serve many threads; close it, or use it in a `with`.

    `token` is the API key, by default that of ROPEWAY_TOKEN. A connection that breaks, a 429 or a 503 is followed
    by further tries; `timeout` is in seconds, for each.
    """

    def __init__(
        self,
        url: str = HERE,
        token: str | None = None,
        *,
        timeout: float = ANSWER_SECONDS,
        patience: Patience = USUAL,
    ) -> None:
        self._transport = SyncTransport(url, token_or_environment(token), timeout=timeout, patience=patience)

    def send(self, call: Call[T]) -> T:
        """Send a call of `ropeway.sdk.plans`."""
        return self._transport.send(call)

    enqueue = _Blocking(plans.enqueue)
    enqueue_batch = _Blocking(plans.enqueue_batch)
    get_job = _Blocking(plans.get_job)
    get_job_detail = _Blocking(plans.get_job_detail)
    get_status = _Blocking(plans.get_status)
    jobs_page = _Blocking(plans.jobs_page)
    cancel_job = _Blocking(plans.cancel_job)
    retry_job = _Blocking(plans.retry_job)
    lease = _Blocking(plans.lease)
    ack = _Blocking(plans.ack)
    nack = _Blocking(plans.nack)
    heartbeat = _Blocking(plans.heartbeat)
    snooze = _Blocking(plans.snooze)
    release = _Blocking(plans.release)
    progress = _Blocking(plans.progress)
    get_queue_stats = _Blocking(plans.get_queue_stats)
    list_queues = _Blocking(plans.list_queues)

    def list_jobs(self, **filters: Unpack[plans.JobFilters]) -> Iterator[models.Job]:
        """All jobs that the filters take, page by page as they are wanted."""
        cursor: str | None = None
        while True:
            page = self.jobs_page(cursor, **filters)
            yield from page.jobs
            cursor = page.next_cursor
            if cursor is None:
                return

    def stream_job(self, id: JobId, *, after: int | None = None) -> Iterator[StreamEvent]:
        """Everything that happened to a job (behind event number `after`), then what happens, until it has ended.

        A connection that breaks is made again, and nothing is told twice but progress and log lines.
        """
        stream = JobStream(id, after)
        tries = self._transport.tries(stream.call())
        while not stream.ended:
            failed = BROKEN_OFF
            try:
                for line in self._transport.lines(stream.call()):
                    for event in stream.feed(line):
                        tries = self._transport.tries(stream.call())
                        yield event
            except Failed as error:
                failed = error
            if not stream.ended:
                stream.broken()
                time.sleep(tries.pause(failed))

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {urlsplit(self._transport.url).netloc}>"


class AsyncClient:
    """A Ropeway server, for async code: `Client` with `await` before each call. For one event loop.

    Closing it waits for the enqueue calls that were made. An `async with` that is left by an exception, such as by
    Ctrl-C, cancels them.
    """

    def __init__(
        self,
        url: str = HERE,
        token: str | None = None,
        *,
        timeout: float = ANSWER_SECONDS,
        patience: Patience = USUAL,
    ) -> None:
        self._transport = AsyncTransport(url, token_or_environment(token), timeout=timeout, patience=patience)
        self.gathering = Gathering(self._transport)

    async def send(self, call: Call[T]) -> T:
        """Send a call of `ropeway.sdk.plans`."""
        return await self._transport.send(call)

    enqueue = _Gathered(plans.enqueue)
    enqueue_batch = _Awaited(plans.enqueue_batch)
    get_job = _Awaited(plans.get_job)
    get_job_detail = _Awaited(plans.get_job_detail)
    get_status = _Awaited(plans.get_status)
    jobs_page = _Awaited(plans.jobs_page)
    cancel_job = _Awaited(plans.cancel_job)
    retry_job = _Awaited(plans.retry_job)
    lease = _Awaited(plans.lease)
    ack = _Awaited(plans.ack)
    nack = _Awaited(plans.nack)
    heartbeat = _Awaited(plans.heartbeat)
    snooze = _Awaited(plans.snooze)
    release = _Awaited(plans.release)
    progress = _Awaited(plans.progress)
    get_queue_stats = _Awaited(plans.get_queue_stats)
    list_queues = _Awaited(plans.list_queues)

    async def list_jobs(self, **filters: Unpack[plans.JobFilters]) -> AsyncIterator[models.Job]:
        """All jobs that the filters take, page by page as they are wanted."""
        cursor: str | None = None
        while True:
            page = await self.jobs_page(cursor, **filters)
            for job in page.jobs:
                yield job
            cursor = page.next_cursor
            if cursor is None:
                return

    async def stream_job(self, id: JobId, *, after: int | None = None) -> AsyncIterator[StreamEvent]:
        """Everything that happened to a job (behind event number `after`), then what happens, until it has ended.

        A connection that breaks is made again, and nothing is told twice but progress and log lines.
        """
        stream = JobStream(id, after)
        tries = self._transport.tries(stream.call())
        while not stream.ended:
            failed = BROKEN_OFF
            try:
                async for line in self._transport.lines(stream.call()):
                    for event in stream.feed(line):
                        tries = self._transport.tries(stream.call())
                        yield event
            except Failed as error:
                failed = error
            if not stream.ended:
                stream.broken()
                await asyncio.sleep(tries.pause(failed))

    async def aclose(self) -> None:
        try:
            await self.gathering.close()
        except BaseException:
            self.gathering.cancel()
            raise
        finally:
            await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            # With the server away, waiting would be all tries of each call, and nobody is there for the answers.
            self.gathering.cancel()
        await self.aclose()

    def __repr__(self) -> str:
        return f"<AsyncClient of {urlsplit(self._transport.url).netloc}>"


def token_or_environment(token: str | None) -> str | None:
    """The key that was given, or that of ROPEWAY_TOKEN."""
    return token if token is not None else os.environ.get("ROPEWAY_TOKEN") or None
