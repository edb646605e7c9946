"""The caller's own transaction: one SQL function, called through whatever driver holds the connection.

Known connections: asyncpg, psycopg 3 (sync and async), SQLAlchemy (session or connection, sync and async) and
Django's. They are told apart by the module of their type, so none of these packages is imported here.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from ropeway.core.errors import FieldError, InputError, NotSupported
from ropeway.core.events import rfc3339
from ropeway.core.job import NewJob
from ropeway.core.unique import unique_key
from ropeway.engines.batching import mismatch
from ropeway.engines.postgres.fields import rare_fields

# Every text travels as text: a connection may have codecs of its own for jsonb and uuid.
_ENQUEUE = "SELECT {schema}.enqueue(CAST({0} AS text), CAST({1} AS text), CAST(CAST({2} AS text) AS jsonb))"
_COMPLETE = (
    "SELECT {schema}.complete_one(CAST({0} AS text), CAST(CAST({1} AS text) AS uuid), CAST({2} AS integer), "
    "CAST(CAST({3} AS text) AS uuid), CAST({4} AS text), CAST({5} AS boolean), CAST({6} AS boolean))"
)


async def enqueue(connection: Any, schema: str, jobs: Sequence[NewJob], tenant: str, window: float) -> list[UUID]:
    """Enqueue through any known connection; inside a running event loop also through a sync one."""
    ids = []
    for index, job in enumerate(jobs):
        arguments = _enqueue_arguments(job, tenant, window)
        try:
            answer = scalar(connection, _ENQUEUE, schema, arguments)
            ids.append(UUID(str(await answer if inspect.isawaitable(answer) else answer)))
        except Exception as error:
            raise _explained(error, index) from error
    return ids


def enqueue_sync(connection: Any, schema: str, jobs: Sequence[NewJob], tenant: str, window: float) -> list[UUID]:
    """Enqueue through a sync connection, from code without an event loop."""
    ids = []
    for index, job in enumerate(jobs):
        try:
            answer = scalar(connection, _ENQUEUE, schema, _enqueue_arguments(job, tenant, window))
        except Exception as error:
            raise _explained(error, index) from error
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise NotSupported("this connection is async", hint="await the async call instead")
        ids.append(UUID(str(answer)))
    return ids


async def complete(connection: Any, schema: str, arguments: Sequence[Any]) -> bool:
    """`complete_one` through any known connection: False when the ticket is not current."""
    answer = scalar(connection, _COMPLETE, schema, arguments)
    return bool(await answer if inspect.isawaitable(answer) else answer)


def scalar(connection: Any, template: str, schema: str, arguments: Sequence[Any]) -> Any:
    """Run one statement that answers one value; the value, or an awaitable of it for async drivers."""
    driver = _driver(connection)
    if driver == "asyncpg":
        return connection.fetchval(_render(template, schema, arguments, "${}", first=1), *arguments)
    if driver == "sqlalchemy":
        return _through_sqlalchemy(connection, template, schema, arguments)
    statement = _render(template, schema, arguments, "%s")
    if driver == "django":
        with connection.cursor() as cursor:
            cursor.execute(statement, list(arguments))
            return cursor.fetchone()[0]
    return _through_psycopg(connection, statement, arguments)


#: What a connection is called, by package. A pool or an engine is none: it would leave the caller's transaction.
_CONNECTIONS = {
    "asyncpg": {"Connection", "PoolConnectionProxy"},
    "psycopg": {"Connection", "AsyncConnection"},
    "sqlalchemy": {
        "Connection",
        "AsyncConnection",
        "Session",
        "AsyncSession",
        "scoped_session",
        "async_scoped_session",
    },
    "django": {"BaseDatabaseWrapper", "ConnectionProxy"},
}


def _driver(connection: Any) -> str:
    for base in type(connection).__mro__:
        package = base.__module__.partition(".")[0]
        if base.__name__ in _CONNECTIONS.get(package, ()):
            return package
    raise FieldError(
        f"a {type(connection).__module__}.{type(connection).__qualname__} is not a connection Ropeway knows",
        pointer="/connection",
        hint="pass an asyncpg, psycopg 3, SQLAlchemy or Django connection, or a SQLAlchemy session",
    )


def _render(template: str, schema: str, arguments: Sequence[Any], mark: str, first: int = 0) -> str:
    marks = [mark.format(position + first) for position in range(len(arguments))]
    return template.format(*marks, schema=schema)


def _through_sqlalchemy(connection: Any, template: str, schema: str, arguments: Sequence[Any]) -> Any:
    from sqlalchemy import text

    statement = text(_render(template, schema, arguments, ":a{}"))
    result = connection.execute(statement, {f"a{i}": value for i, value in enumerate(arguments)})
    return _scalar_later(result) if inspect.isawaitable(result) else result.scalar_one()


async def _scalar_later(result: Any) -> Any:
    return (await result).scalar_one()


def _through_psycopg(connection: Any, statement: str, arguments: Sequence[Any]) -> Any:
    from psycopg.rows import tuple_row

    # The connection may give its rows as dicts.
    cursor = connection.cursor(row_factory=tuple_row)
    if "Async" in type(connection).__name__:
        return _psycopg_async(cursor, statement, arguments)
    with cursor:
        return cursor.execute(statement, list(arguments)).fetchone()[0]


async def _psycopg_async(cursor: Any, statement: str, arguments: Sequence[Any]) -> Any:
    async with cursor:
        await cursor.execute(statement, list(arguments))
        return (await cursor.fetchone())[0]


def _enqueue_arguments(job: NewJob, tenant: str, window: float) -> list[str]:
    options: dict[str, Any] = {
        "tenant": tenant,
        "queue": job.queue,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        **rare_fields(job),
    }
    if job.run_at is not None:
        options["run_at"] = rfc3339(job.run_at)
    if job.delay is not None:
        options["delay"] = job.delay
    if job.idempotency_key is not None:
        options["idempotency_key"] = job.idempotency_key
        options["fingerprint"] = job.body_fingerprint().hex()
        options["key_window"] = window if job.key_window is None else job.key_window
    if job.unique is not None:
        options["unique"] = {
            "key": unique_key(job),
            "within": job.unique.within,
            "states": ",".join(sorted(job.unique.blocking_states)),
        }
    return [job.type, job.payload.decode(), msgspec.json.encode(options).decode()]


def _explained(error: Exception, index: int) -> Exception:
    """Our word for a refusal by the SQL function; every other error stays the driver's own."""
    state, message = _sqlstate(error)
    if state == "RW422":
        return mismatch(index)
    if state == "RW400":
        return InputError(message, index=index)
    return error


def _sqlstate(error: BaseException) -> tuple[str | None, str]:
    """The SQLSTATE of a driver's error, however deep SQLAlchemy or Django have wrapped it."""
    seen: BaseException | None = error
    while seen is not None:
        state = getattr(seen, "sqlstate", None)
        if state is not None:
            return str(state), str(seen).splitlines()[0]
        seen = getattr(seen, "orig", None) or seen.__cause__
    return None, str(error)
