"""A few connections for handlers' own transactions: made when needed, kept while they are good, never shared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import asyncpg
from asyncpg.transaction import Transaction

from ropeway.core.errors import Unavailable
from ropeway.engines.postgres.connection import BROKEN, Address, Explained, connect

#: Connections of one engine at most; a handler that finds all of them in use waits.
SIZE = 10

#: Seconds that cleaning or closing a connection may take.
PATIENCE = 5.0

#: The job's own timeout is the only one: what the server, the database or the user have set does not count here.
_NO_TIMEOUTS = "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0"
_NO_TIMEOUTS_17 = f"{_NO_TIMEOUTS}; SET LOCAL transaction_timeout = 0"

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class Pool:
    """Hands out connections with an open transaction, one user at a time each."""

    def __init__(self, address: Address, size: int = SIZE) -> None:
        self._address = address
        self._places = asyncio.Semaphore(size)
        self._idle: list[Connection] = []
        self._closed = False

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[tuple[Connection, Transaction]]:
        """A connection and the transaction that was begun on it; the user ends it, or it is rolled back."""
        async with self._places:
            connection, transaction = await self._begin()
            try:
                yield connection, transaction
            finally:
                await self._give_back(connection)

    async def close(self) -> None:
        """Close what nobody uses; the rest closes when it is given back."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await _end(connection)

    async def _begin(self) -> tuple[Connection, Transaction]:
        """Begin on a connection that is there, as long as one of them answers, else on a new one."""
        if self._closed:
            raise Unavailable("this engine is closed", hint="open another one")
        while self._idle:
            connection = self._idle.pop()
            try:
                return connection, await _begin_on(connection)
            except (*BROKEN, asyncpg.OperatorInterventionError):
                connection.terminate()
        connection = await connect(self._address, statement_timeout=None)
        try:
            with Explained(writes=False):
                return connection, await _begin_on(connection)
        except BaseException:
            connection.terminate()
            raise

    async def _give_back(self, connection: Connection) -> None:
        """Keep it for the next one, without what the last one left in its session."""
        try:
            if not connection.is_closed():
                await connection.reset(timeout=PATIENCE)
        except (*BROKEN, asyncpg.PostgresError):
            # Nobody knows what state it is in. The user has its answer already.
            connection.terminate()
        except BaseException:
            connection.terminate()
            raise
        if self._closed:
            await _end(connection)
        elif not connection.is_closed():
            self._idle.append(connection)


async def _begin_on(connection: Connection) -> Transaction:
    transaction = connection.transaction()
    await transaction.start()
    newest = connection.get_server_version().major >= 17
    await connection.execute(_NO_TIMEOUTS_17 if newest else _NO_TIMEOUTS)
    return transaction


async def _end(connection: Connection) -> None:
    try:
        await connection.close(timeout=PATIENCE)
    except (*BROKEN, asyncpg.PostgresError):
        connection.terminate()
