"""Keys, rates and quotas as several processes see them: two engines open on one store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ropeway.core.access import Limits, Scope
from ropeway.core.errors import QueueFull, QuotaExceeded, RateLimited, Unauthenticated
from ropeway.core.job import NewJob
from ropeway.core.query import QueueSettings
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Engine, WorkerRef
from ropeway.runtime import ids
from ropeway.service.access import KEEP_SECONDS, NOTE_EVERY, Access, Principal
from ropeway.service.keys import Keys
from ropeway.service.limits import Admission
from ropeway.service.tenants import Tenants
from ropeway.settings import Settings
from ropeway.testing.conformance.kit import ack
from tests.engines.pg_kit import migrated


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return migrated(request.getfixturevalue("postgres_database"))
    return f"sqlite:///{tmp_path}/ropeway.db"


@asynccontextmanager
async def two(url: str) -> AsyncIterator[tuple[Engine, Engine]]:
    settings = Settings.load({"url": url}, {}, None)
    async with engine_for(settings) as here, engine_for(settings) as there:
        yield here, there


class Time:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def holder(tenant: str = "default", **limits: float) -> Principal:
    return Principal(tenant, "k", "key", frozenset(Scope), Limits(**limits))  # type: ignore[arg-type]


async def test_what_one_process_revokes_the_other_refuses(url: str) -> None:
    async with two(url) as (here, there):
        time = Time()
        access = Access(there, clock=time)
        await Tenants(here).create("Acme", id="acme")
        kept, kept_token = await Keys(here, tenant="acme").create("kept")
        gone, gone_token = await Keys(here).create("gone", {Scope.READ})
        assert (await access.authenticate(gone_token)).key_id == gone.id
        assert (await access.authenticate(kept_token)).tenant == "acme"
        await Keys(here).revoke(gone.id)
        await Tenants(here).change("acme", is_active=False)
        time.now += KEEP_SECONDS
        for token in (gone_token, kept_token):
            with pytest.raises(Unauthenticated):
                await access.authenticate(token)
        await Tenants(here).change("acme", is_active=True)
        # Late enough for another note: one that met the change of the tenant has left it alone.
        time.now += NOTE_EVERY
        assert (await access.authenticate(kept_token)).key_id == kept.id
        await access.close()
        assert (await Keys(here, tenant="acme").get(kept.id)).last_used_at is not None
        assert (await Tenants(here).get("acme")).last_seen_at is not None


async def test_of_two_first_starts_one_makes_the_key(url: str) -> None:
    async with two(url) as (here, there):
        made = [await Access(engine).create_first_key() for engine in (here, there)]
        assert [answer is not None for answer in made] == [True, False]


async def test_processes_share_a_rate(url: str) -> None:
    async with two(url) as (here, there):
        time = Time()
        # So slow that nothing comes in while this runs.
        who = holder(rate_per_second=0.001, burst=50)
        gates = [Admission(engine, clock=time) for engine in (here, there)]
        passed, waits = 0, []
        for number in range(200):
            try:
                await gates[number % 2].request(who)
                passed += 1
            except RateLimited as refusal:
                waits.append(refusal.retry_in or 0.0)
        assert passed == 50
        assert min(waits) > 1


async def test_processes_see_one_another_s_jobs_and_leases(url: str) -> None:
    async with two(url) as (here, there):
        await here.set_queue("mail", QueueSettings(depth_limit=4))
        time = Time()
        gates = [(Admission(engine, clock=time), engine) for engine in (here, there)]
        who = holder(max_queued=6, max_leases=3)

        async def enqueue(number: int, queue: str = "default") -> None:
            gate, engine = gates[number % 2]
            # Some time passes, so that each looks at what the other did.
            time.now += 2
            async with gate.admitted(who, [NewJob("t", queue=queue)]):
                await engine.enqueue([NewJob("t", queue=queue)])
            await gate.close()

        for number in range(4):
            await enqueue(number, "mail")
        for number in range(2):
            with pytest.raises(QueueFull):
                await enqueue(number, "mail")
        for number in range(2):
            await enqueue(number)
        for number in range(2):
            with pytest.raises(QuotaExceeded):
                await enqueue(number)
        taken = []
        for number, room in ((0, 3), (1, 1)):
            gate, engine = gates[number]
            allowed = await gate.lease(who, 10)
            assert allowed.number == room
            got = await engine.lease(["mail"], min(allowed.number, 2), WorkerRef("w", ids.token()))
            allowed.used(len(got.leases))
            taken += got.leases
        time.now += 60
        for gate, _ in gates:
            with pytest.raises(QuotaExceeded, match="leases"):
                await gate.lease(who, 10)
        await ack(here, taken[0])
        await enqueue(0)
        for gate, _ in gates:
            assert (await gate.lease(who, 10)).number == 1
            await gate.close()
