"""Connections: one dedicated connection per kind of work, opened when needed, with errors that say what is known.

A pool costs more per call than the choice of driver does, and a claim must never wait behind a report. Each
`Channel` is one connection used by one call at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg
import msgspec

from ropeway.core.errors import ConfigurationError, EngineError, Indeterminate, Unavailable
from ropeway.runtime.faultpoints import fault

CONNECT_TIMEOUT = 5.0
STATEMENT_TIMEOUT = 30.0
#: Seconds that a server has to say that it has cancelled a statement; then nobody waits for it any more.
GRACE = 2.0

#: The server rolled the statement back and said why: nothing was stored.
_ROLLED_BACK = (
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.ReadOnlySQLTransactionError,
)
_NO_SCHEMA = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedFunctionError,
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedObjectError,
)
#: The connection is gone, or nobody knows what it is doing. (asyncpg calls it an internal error when it is used
#: between the server's last word and the end of the connection.)
BROKEN = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
    EOFError,
)


class Address(msgspec.Struct, frozen=True):
    """Where the database is, and whether a transaction pooler stands in front of it (`?pooled=1`)."""

    dsn: str
    pooled: bool = False

    @classmethod
    def parse(cls, url: str) -> Address:
        try:
            parts = urlsplit(url)
            _ = parts.port  # looked at only when it is asked for
        except ValueError:
            raise _unusable() from None
        options = dict(parse_qsl(parts.query))
        pooled = options.pop("pooled", "0")
        if pooled not in ("0", "1"):
            raise ConfigurationError("pooled must be 0 or 1", hint="for example postgresql://host/db?pooled=1")
        dsn = urlunsplit(parts._replace(query=urlencode(options)))
        return cls(dsn, pooled == "1")

    @property
    def shown(self) -> str:
        """The address without its password."""
        parts = urlsplit(self.dsn)
        host = parts.hostname or "localhost"
        port = f":{parts.port}" if parts.port else ""
        return f"postgresql://{host}{port}{parts.path}"


def _unusable() -> ConfigurationError:
    """Not what the parser said: a password that is not escaped may be what it took for a port, and named."""
    return ConfigurationError(
        "this PostgreSQL URL cannot be read",
        hint="postgresql://user:password@host:port/database, with / ? # @ : in a password escaped as %2F %3F ...",
    )


class Bounds(msgspec.Struct, frozen=True):
    """Seconds that a statement may take in all, that it may wait for a lock, and that its transaction may idle.

    The server ends what takes longer, so it is known that nothing was stored. Behind a transaction pooler a
    session's settings would be somebody else's. There a call carries them in a transaction of its own, at the
    price of two more round trips; where that is too much, this side cancels it after `statement` seconds.
    """

    statement: float
    lock: float
    idle: float

    def settings(self, command: str) -> str:
        """`SET` or `SET LOCAL` statements."""
        values = {
            "statement_timeout": self.statement,
            "lock_timeout": self.lock,
            "idle_in_transaction_session_timeout": self.idle,
        }
        return "; ".join(f"{command} {name} = {seconds * 1000:.0f}" for name, seconds in values.items())


#: For what somebody waits for at the other end of a request.
REQUESTS = Bounds(statement=5.0, lock=2.0, idle=10.0)


class Turns:
    """A lock whose holder, when it is done, first lets the next one start.

    Whoever just got its answer would otherwise go on and prepare its next batch while the connection stands idle:
    the next in line is woken only when the event loop comes round.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._queued = 0

    async def __aenter__(self) -> None:
        self._queued += 1
        try:
            await self._lock.acquire()
        finally:
            self._queued -= 1

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        if self._queued:
            await asyncio.sleep(0)


class Channel:
    """One connection, for one call at a time; connects again after it broke."""

    def __init__(self, address: Address, bounds: Bounds | None = None, *, carries: bool = False) -> None:
        """`carries`: behind a pooler, each call has its bounds with it."""
        self._address = address
        self._bounds = bounds
        self._carried = bounds.settings("SET LOCAL") if bounds and carries and address.pooled else None
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._lock = Turns()
        self._unconfirmed = False
        self._closed = False

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    async def fetch(self, statement: str, *arguments: Any, writes: bool = True) -> list[asyncpg.Record]:
        """Run one statement. A lost connection is Indeterminate when it `writes`, else Unavailable."""
        async with self._lock:
            connection = await self._connected()
            with self._explained(writes):
                if self._carried is None:
                    rows = await connection.fetch(statement, *arguments)
                else:
                    async with self._begun(connection):
                        rows = await connection.fetch(statement, *arguments)
            return rows

    async def value(self, statement: str, *arguments: Any, writes: bool = True) -> Any:
        """The first column of the first row, or None."""
        async with self._lock:
            connection = await self._connected()
            with self._explained(writes):
                if self._carried is None:
                    value = await connection.fetchval(statement, *arguments)
                else:
                    async with self._begun(connection):
                        value = await connection.fetchval(statement, *arguments)
            return value

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
        """Several statements, all or none."""
        async with self._lock:
            connection = await self._connected()
            with self._explained(writes=True):
                async with self._begun(connection):
                    yield connection

    @asynccontextmanager
    async def bare(self) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
        """The connection itself, for statements that refuse to run in a transaction."""
        async with self._lock:
            connection = await self._connected()
            with Explained(writes=True):
                yield connection

    @asynccontextmanager
    async def _begun(self, connection: asyncpg.Connection[asyncpg.Record]) -> AsyncIterator[None]:
        async with connection.transaction():
            if self._carried is not None:
                await connection.execute(self._carried)
            yield
            fault("commit.before")

    async def close(self) -> None:
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await connection.close()
            except BROKEN:
                connection.terminate()

    async def _connected(self) -> asyncpg.Connection[asyncpg.Record]:
        if self._closed:
            raise Unavailable("this engine is closed", hint="open another one")
        self._unconfirmed = False
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._address, bounds=self._bounds)
            self._connection.add_log_listener(self._heard)
        return self._connection

    def _heard(self, _: object, message: asyncpg.PostgresLogMessage) -> None:
        if _is_unconfirmed(message):
            self._unconfirmed = True

    @contextmanager
    def _explained(self, writes: bool) -> Iterator[None]:
        """Errors in our words. A commit that no standby confirmed is Indeterminate, whatever failed after it."""
        try:
            with Explained(writes):
                yield
        except (EngineError, asyncpg.PostgresError) as error:
            self._check_confirmed(error)
            raise
        self._check_confirmed()

    def _check_confirmed(self, error: Exception | None = None) -> None:
        if self._unconfirmed:
            self._unconfirmed = False
            raise unconfirmed() from error


@contextmanager
def standby_confirms(connection: asyncpg.Connection[asyncpg.Record]) -> Iterator[None]:
    """A commit in this block that no standby confirmed, though one should have, is Indeterminate."""
    heard: list[object] = []

    def hear(_: object, message: asyncpg.PostgresLogMessage) -> None:
        if _is_unconfirmed(message):
            heard.append(message)

    connection.add_log_listener(hear)
    try:
        yield
    finally:
        connection.remove_log_listener(hear)
    if heard:
        raise unconfirmed()


def _is_unconfirmed(message: asyncpg.PostgresLogMessage) -> bool:
    """A commit whose replication was not waited for is told as a mere warning, in the server's language."""
    return getattr(message, "server_source_function", None) == "SyncRepWaitForLSN"


def unconfirmed() -> Indeterminate:
    return Indeterminate("the standby did not confirm the commit in time")


async def connect(
    address: Address, *, statement_timeout: float | None = STATEMENT_TIMEOUT, bounds: Bounds | None = None
) -> asyncpg.Connection[asyncpg.Record]:
    """A new connection; Unavailable or ConfigurationError when there is none to be had."""
    if bounds is not None:
        statement_timeout = bounds.statement if address.pooled else bounds.statement + GRACE
    try:
        connection = await asyncpg.connect(
            address.dsn,
            timeout=CONNECT_TIMEOUT,
            command_timeout=statement_timeout,
            # A transaction pooler hands each transaction another backend: nothing prepared may be relied on.
            statement_cache_size=0 if address.pooled else 100,
        )
        if address.pooled:
            await _learn_types(connection)
        elif bounds is not None:
            await _set(connection, bounds)
        return connection  # noqa: TRY300 - what goes wrong with the settings is told like the rest
    except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError):
        raise ConfigurationError(
            f"{address.shown} refused the user or password", hint="check ROPEWAY_URL"
        ) from None
    except asyncpg.InvalidCatalogNameError:
        raise ConfigurationError(
            f"there is no such database: {address.shown}", hint="create it, or check ROPEWAY_URL"
        ) from None
    except (asyncpg.ClientConfigurationError, ValueError):
        raise _unusable() from None
    except (*BROKEN, asyncpg.PostgresError) as error:
        raise Unavailable(
            f"no connection to {address.shown}: {_plain(error)}", hint="is PostgreSQL running there?"
        ) from error


#: Every type of array that our statements send or get.
_ARRAYS = """SELECT NULL::boolean[], NULL::smallint[], NULL::integer[], NULL::bigint[], NULL::double precision[],
    NULL::text[], NULL::bytea[], NULL::uuid[], NULL::timestamptz[], NULL::jsonb[], NULL::tid[]"""


async def _learn_types(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Let the driver ask what arrays are now, in one transaction.

    It asks when it first meets one, with just-in-time compilation switched off for the session, because that makes
    its question take seconds. A pooler would give each of those statements to another backend.
    """
    try:
        async with connection.transaction():
            await connection.fetch(_ARRAYS)
    except BaseException:
        connection.terminate()
        raise


async def _set(connection: asyncpg.Connection[asyncpg.Record], bounds: Bounds) -> None:
    """Once for the session. Not in the startup message: a pooler that keeps sessions whole may refuse it there."""
    try:
        await connection.execute(bounds.settings("SET"))
    except BaseException:
        connection.terminate()
        raise


class Explained:
    """Turns the driver's errors into ours: what is known about what was stored."""

    def __init__(self, writes: bool) -> None:
        self._writes = writes

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            return
        explained = explain(error, self._writes)
        if explained is not None:
            raise explained from error


def explain(error: BaseException, writes: bool) -> EngineError | None:
    """Our word for a driver's error; None when it is not about the store."""
    if isinstance(error, _NO_SCHEMA):
        return ConfigurationError(
            f"the database lacks a part of Ropeway's schema: {_plain(error)}", hint="run: ropeway migrate up"
        )
    if isinstance(error, asyncpg.QueryCanceledError):
        return Unavailable("the database cancelled the statement: it took too long")
    if isinstance(error, (asyncpg.AdminShutdownError, asyncpg.CrashShutdownError)):
        # The backend went away in the middle: the commit may or may not have been written.
        return _lost(writes, error)
    if isinstance(error, _ROLLED_BACK):
        return Unavailable(f"the database refused: {_plain(error)}")
    if isinstance(error, BROKEN):
        return _lost(writes, error)
    return None


def _lost(writes: bool, error: BaseException) -> EngineError:
    message = f"the connection to the database was lost: {_plain(error)}"
    return Indeterminate(message) if writes else Unavailable(message)


def _plain(error: BaseException) -> str:
    text = str(error).strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:200]
