"""Tenancy: tenants, the keys that speak for them, and the secret of the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from ropeway.core.access import ApiKey, Limits, NewKey, NewTenant, Scope, Tenant
from ropeway.core.errors import FieldError, NameTaken, NotFound, NotSupported
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.capabilities import Capability
from ropeway.engines.protocol import Engine
from ropeway.testing.conformance.kit import DAY, HOUR, OTHER_TENANT, enqueue_one, new_job
from ropeway.testing.conformance.subject import Harness, Subject

ALL_LIMITS = Limits(rate_per_second=2.5, burst=7, max_queued=2**53, max_payload_bytes=1, max_leases=9)


def new_key(id: str = "k1", **fields: Any) -> NewKey:
    known = {"name": "deploy", "scopes": frozenset({Scope.ENQUEUE}), "digest": bytes(range(32))}
    return NewKey(id=id, **{**known, **fields})


@asynccontextmanager
async def with_tenants(harness: Harness) -> AsyncIterator[Subject]:
    """A subject of an engine that knows tenants."""
    if Capability.TENANCY not in harness.capabilities:
        pytest.skip("this engine has no tenancy")
    async with harness.subject() as subject:
        yield subject


async def other_tenant(engine: Engine) -> Tenant:
    return await engine.create_tenant(NewTenant(id=OTHER_TENANT, name="Other Ltd"))


async def find(engine: Engine, id: str) -> tuple[ApiKey, Tenant]:
    found = await engine.find_key(id)
    assert found is not None, f"there is no key {id}"
    return found


class TestWithoutTenancy:
    async def test_an_engine_that_lacks_it_says_so(self, harness: Harness) -> None:
        if Capability.TENANCY in harness.capabilities:
            pytest.skip("this engine has it")
        async with harness.subject() as subject:
            engine = subject.engine
            for call in (
                engine.tenants(),
                engine.keys(),
                engine.find_key("k1"),
                engine.take_tokens("b", 1.0, rate=1.0, burst=1.0),
                engine.kept_out([new_job()]),
                engine.note_actions([]),
                engine.secret(),
            ):
                with pytest.raises(NotSupported):
                    await call


class TestTenants:
    async def test_the_default_tenant_is_there_from_the_start(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            (tenant,) = await subject.engine.tenants()
            assert (tenant.id, tenant.name) == (DEFAULT_TENANT, DEFAULT_TENANT)
            assert tenant.is_active
            assert tenant.limits == Limits()
            assert (tenant.email, tenant.last_seen_at) == (None, None)
            assert tenant.created_at.utcoffset() is not None

    async def test_a_tenant_is_kept_as_it_was_made(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await subject.advance(5)
            new = NewTenant(
                id="acme", name="Ácme Ltd \U0001f3d4", email="ops@example.com", is_active=False, limits=ALL_LIMITS
            )
            made = await engine.create_tenant(new)
            assert made == Tenant(
                id="acme",
                name=new.name,
                created_at=await engine.now(),
                email="ops@example.com",
                is_active=False,
                limits=ALL_LIMITS,
            )
            await engine.create_tenant(NewTenant(id="B", name="b"))
            assert [tenant.id for tenant in await engine.tenants()] == ["B", "acme", DEFAULT_TENANT]
            assert (await engine.tenants())[1] == made

    @pytest.mark.parametrize(
        ("id", "name"), [("acme", "another"), ("another", "Acme"), (DEFAULT_TENANT, "x"), ("x", DEFAULT_TENANT)]
    )
    async def test_an_id_or_name_that_is_taken_is_refused(self, harness: Harness, id: str, name: str) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await engine.create_tenant(NewTenant(id="acme", name="Acme"))
            before = await engine.tenants()
            with pytest.raises(NameTaken):
                await engine.create_tenant(NewTenant(id=id, name=name))
            assert await engine.tenants() == before

    async def test_names_are_taken_to_the_letter(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            await subject.engine.create_tenant(NewTenant(id="a", name="Acme"))
            await subject.engine.create_tenant(NewTenant(id="A", name="acme"))
            assert [tenant.name for tenant in await subject.engine.tenants()] == ["acme", "Acme", DEFAULT_TENANT]

    async def test_a_change_changes_what_is_given(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            made = await engine.create_tenant(NewTenant(id="acme", name="Acme", email="a@example.com"))
            await subject.advance(5)
            assert await engine.change_tenant("acme") == made
            named = await engine.change_tenant("acme", name="Acme 2")
            assert named == msgspec.structs.replace(made, name="Acme 2")
            limited = await engine.change_tenant("acme", limits=ALL_LIMITS)
            assert limited == msgspec.structs.replace(named, limits=ALL_LIMITS)
            fewer = await engine.change_tenant("acme", limits=Limits(burst=1))
            assert fewer.limits == Limits(burst=1), "limits are replaced as a whole"
            off = await engine.change_tenant("acme", is_active=False, email="")
            assert (off.is_active, off.email) == (False, None)
            on = await engine.change_tenant("acme", is_active=True, email="b@example.com")
            assert (on.is_active, on.email) == (True, "b@example.com")
            assert (await engine.tenants())[0] == on

    async def test_a_change_that_cannot_be_made_changes_nothing(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await engine.create_tenant(NewTenant(id="acme", name="Acme"))
            before = await engine.tenants()
            with pytest.raises(NameTaken):
                await engine.change_tenant("acme", name=DEFAULT_TENANT, is_active=False)
            with pytest.raises(NotFound):
                await engine.change_tenant("nobody", name="x")
            bad_ones: list[dict[str, Any]] = [
                {"name": ""},
                {"name": "a\0b"},
                {"name": "x" * 129},
                {"email": "a\nb"},
            ]
            for bad in bad_ones:
                with pytest.raises(FieldError):
                    await engine.change_tenant("acme", **bad)
            assert await engine.tenants() == before
            assert (await engine.change_tenant("acme", name="Acme")).name == "Acme", "its own name is not taken"


class TestKeys:
    async def test_a_key_is_kept_as_it_was_made(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await other_tenant(engine)
            await subject.advance(5)
            now = await engine.now()
            ends = datetime(2031, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
            new = new_key(scopes=frozenset(Scope), digest=b"\x00\xff" * 16, expires_at=ends, name="déploy")
            made = await engine.create_key(new, tenant=OTHER_TENANT)
            assert made == ApiKey(
                id="k1",
                tenant=OTHER_TENANT,
                name="déploy",
                scopes=frozenset(Scope),
                digest=b"\x00\xff" * 16,
                created_at=now,
                expires_at=ends,
            )
            assert await engine.keys(tenant=OTHER_TENANT) == [made]
            key, tenant = await find(engine, "k1")
            assert key == made
            assert (tenant.id, tenant.name) == (OTHER_TENANT, "Other Ltd")

    async def test_a_key_needs_its_tenant_and_an_id_of_its_own(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await other_tenant(engine)
            with pytest.raises(NotFound):
                await engine.create_key(new_key(), tenant="nobody")
            assert await engine.find_key("k1") is None
            made = await engine.create_key(new_key())
            for tenant in (DEFAULT_TENANT, OTHER_TENANT):
                with pytest.raises(NameTaken):
                    await engine.create_key(new_key(digest=b"2" * 32), tenant=tenant)
            assert (await find(engine, "k1"))[0] == made

    async def test_each_tenant_has_its_own_newest_first(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await other_tenant(engine)
            for id in ("b", "c", "a"):
                await engine.create_key(new_key(id))
                await engine.create_key(new_key(f"other-{id}"), tenant=OTHER_TENANT)
                await subject.advance(1)
            await engine.revoke_key("c")
            assert [key.id for key in await engine.keys()] == ["a", "c", "b"]
            assert [key.id for key in await engine.keys(tenant=OTHER_TENANT)] == ["other-a", "other-c", "other-b"]
            assert await engine.keys(tenant="nobody") == []

    async def test_whoever_has_no_right_is_told_by_what_is_found(self, harness: Harness) -> None:
        """An engine finds; whoever asks decides: a key that ended or whose tenant is switched off is shown so."""
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await other_tenant(engine)
            await engine.create_key(
                new_key(expires_at=await engine.now() + timedelta(seconds=10)), tenant=OTHER_TENANT
            )
            await subject.advance(9.999999)
            assert (await find(engine, "k1"))[0].good(await engine.now())
            await subject.advance(0.000001)
            assert not (await find(engine, "k1"))[0].good(await engine.now())
            await engine.change_tenant(OTHER_TENANT, is_active=False)
            assert not (await find(engine, "k1"))[1].is_active
            assert await engine.find_key("K1") is None
            assert await engine.find_key("unknown") is None

    async def test_a_revoked_key_stays_revoked_since_the_first_time(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            made = await engine.create_key(new_key())
            revoked = await engine.revoke_key("k1")
            assert revoked == msgspec.structs.replace(made, revoked_at=await engine.now())
            assert not revoked.good(await engine.now())
            await subject.advance(5)
            assert await engine.revoke_key("k1") == revoked
            assert (await find(engine, "k1"))[0] == revoked
            assert await engine.keys() == [revoked]

    async def test_a_foreign_key_answers_like_a_missing_one(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await other_tenant(engine)
            made = await engine.create_key(new_key())
            texts = set()
            for id in ("k1", "missing"):
                with pytest.raises(NotFound) as refused:
                    await engine.revoke_key(id, tenant=OTHER_TENANT)
                texts.add(str(refused.value))
                with pytest.raises(NotFound) as refused:
                    await engine.rotate_key(id, new_key("k2"), overlap=1, tenant=OTHER_TENANT)
                texts.add(str(refused.value))
            assert len(texts) == 1
            assert (await find(engine, "k1"))[0] == made
            assert await engine.find_key("k2") is None

    async def test_uses_are_noted_of_keys_and_their_tenants(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await other_tenant(engine)
            for id in ("k1", "k2"):
                await engine.create_key(new_key(id))
            await engine.create_key(new_key("k3"), tenant=OTHER_TENANT)
            await subject.advance(5)
            first = await engine.now()
            await engine.note_use(["k1", "k2", "unknown"])
            await engine.note_use([])
            assert [(await find(engine, id))[0].last_used_at for id in ("k1", "k2", "k3")] == [first, first, None]
            assert [tenant.last_seen_at for tenant in await engine.tenants()] == [first, None]
            await subject.advance(5)
            await engine.note_use({"k2", "k3"})
            later = await engine.now()
            assert [(await find(engine, id))[0].last_used_at for id in ("k1", "k2", "k3")] == [first, later, later]
            assert [tenant.last_seen_at for tenant in await engine.tenants()] == [later, later]

    async def test_keys_and_tenants_outlive_every_sweep(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await other_tenant(engine)
            await engine.create_key(new_key(expires_at=await engine.now()))
            await engine.create_key(new_key("k2"), tenant=OTHER_TENANT)
            await engine.revoke_key("k2", tenant=OTHER_TENANT)
            await subject.advance(400 * DAY)
            await engine.prune()
            assert len(await engine.tenants()) == 2
            assert await engine.find_key("k1") is not None
            assert await engine.find_key("k2") is not None


class TestRotation:
    async def test_both_keys_are_good_until_the_overlap_is_over(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            old = await engine.create_key(new_key())
            await subject.advance(5)
            now = await engine.now()
            made = await engine.rotate_key("k1", new_key("k2", name="n2", digest=b"2" * 32), overlap=HOUR)
            assert made == ApiKey("k2", DEFAULT_TENANT, "n2", frozenset({Scope.ENQUEUE}), b"2" * 32, now)
            assert (await find(engine, "k2"))[0] == made
            ending = (await find(engine, "k1"))[0]
            assert ending == msgspec.structs.replace(old, expires_at=now + timedelta(hours=1))
            assert ending.good(now)
            assert not ending.good(now + timedelta(hours=1))

    async def test_a_rotation_lengthens_no_life(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            ends = await engine.now() + timedelta(minutes=1)
            await engine.create_key(new_key(expires_at=ends))
            await engine.rotate_key("k1", new_key("k2"), overlap=HOUR)
            assert (await find(engine, "k1"))[0].expires_at == ends
            assert (await find(engine, "k2"))[0].expires_at is None

    async def test_without_overlap_the_old_key_ends_at_once(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await engine.create_key(new_key())
            await engine.rotate_key("k1", new_key("k2"), overlap=0)
            assert not (await find(engine, "k1"))[0].good(await engine.now())
            assert (await find(engine, "k2"))[0].good(await engine.now())

    async def test_only_a_good_key_is_rotated(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await engine.create_key(new_key("revoked"))
            await engine.revoke_key("revoked")
            await engine.create_key(new_key("ended", expires_at=await engine.now()))
            before = await engine.keys()
            for id in ("revoked", "ended", "unknown"):
                with pytest.raises(NotFound):
                    await engine.rotate_key(id, new_key("k2"), overlap=HOUR)
            assert await engine.keys() == before

    async def test_a_rotation_is_one_step(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            old = await engine.create_key(new_key())
            await engine.create_key(new_key("taken"))
            with pytest.raises(NameTaken):
                await engine.rotate_key("k1", new_key("taken", digest=b"2" * 32), overlap=0)
            with pytest.raises(NameTaken):
                await engine.rotate_key("k1", new_key("k1", digest=b"2" * 32), overlap=0)
            assert (await find(engine, "k1"))[0] == old
            assert (await find(engine, "taken"))[0].digest == old.digest

    @pytest.mark.parametrize("overlap", [-1, float("nan"), float("inf"), True], ids=str)
    async def test_an_overlap_that_is_none_is_refused(self, harness: Harness, overlap: float) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            old = await engine.create_key(new_key())
            with pytest.raises(FieldError):
                await engine.rotate_key("k1", new_key("k2"), overlap=overlap)
            assert await engine.keys() == [old]


class TestSecret:
    async def test_it_is_the_same_for_all_who_open_the_store(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            secret = await subject.engine.secret()
            assert len(secret) == 32
            assert await subject.engine.secret() == secret
            await enqueue_one(subject.engine)
            if Capability.SHARED in harness.capabilities:
                assert await (await subject.another()).secret() == secret
