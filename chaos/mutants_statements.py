"""How an SQL engine is broken on purpose: a piece of one statement is exchanged for another, for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from uuid import UUID

from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.payload import CleanResult
from ropeway.engines import sqlfile
from ropeway.engines.protocol import LeaseBatch
from ropeway.engines.settling import Completion, SettlementStore


class Alteration(NamedTuple):
    """`old` becomes `new` in one named statement: of a file `sql/*.sql`, or a function of the schema."""

    statement: str
    old: str
    new: str = ""
    #: The file without its ending; empty for a function.
    file: str = ""


def replaced(text: str, change: Alteration) -> str:
    """The altered text. LookupError for a change that changes nothing: such a mutant would prove nothing."""
    if change.old not in text:
        raise LookupError(f"{change.statement} has no {change.old!r}")
    return text.replace(change.old, change.new)


@contextmanager
def altered(package: str, changes: Sequence[Alteration]) -> Iterator[None]:
    """Exchange statements of an engine that reads them from `sqlfile.statements` at each call."""
    with ExitStack() as restored:
        for change in changes:
            named = sqlfile.statements(package, f"sql/{change.file}.sql")
            before = named[change.statement]
            named[change.statement] = replaced(before, change)
            restored.callback(named.__setitem__, change.statement, before)
        yield


async def popped(store: SettlementStore, batch: LeaseBatch) -> LeaseBatch:
    """What was leased is over with that, as in a queue that pops: whoever dies with it has lost it."""
    if batch.leases:
        await store.complete(
            DEFAULT_TENANT, [Completion(leased.lease, CleanResult(None)) for leased in batch.leases]
        )
    return batch


def one_token() -> UUID:
    """The same for every lease."""
    return UUID(int=1)
