"""What stands behind a handler's `ctx` in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from ropeway.core.errors import Indeterminate, InvalidState
from ropeway.core.job import Progress

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine
    from ropeway.worker.executor import Reports
    from ropeway.worker.run import Run


class RunBackend:
    """The worker's side of one run's JobContext."""

    def __init__(self, run: Run, reporter: Reports, engine: Callable[[], Awaitable[Engine]], tenant: str) -> None:
        self._run = run
        self._reporter = reporter
        self._engine = engine
        self._tenant = tenant

    def progress(self, progress: Progress) -> None:
        self._run.reported = True
        self._reporter.progress(self._run.leased.lease, progress)

    def log(self, level: str, text: str) -> None:
        self._run.reported = True
        self._reporter.log(self._run.leased.lease, level, text)

    def cancelled(self) -> bool:
        return self._run.stop is not None

    def transaction(self, finish: Callable[[], object]) -> AbstractAsyncContextManager[Any]:
        return self._transaction(finish)

    @asynccontextmanager
    async def _transaction(self, finish: Callable[[], object]) -> AsyncIterator[Any]:
        run = self._run
        if run.committed or run.unknown_commit:
            raise InvalidState(
                "this job has already been completed by a transaction", hint="use one ctx.transaction() per run"
            )
        spec = run.spec
        assert spec is not None  # noqa: S101 - a handler is running
        try:
            engine = await self._engine()
            async with engine.transaction(
                run.leased.lease, lambda: spec.encode_result(finish()), tenant=self._tenant
            ) as connection:
                yield connection
        except Indeterminate:
            run.unknown_commit = True
            raise
        run.committed = True
