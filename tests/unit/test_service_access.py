"""Keys and who holds them: verdicts, how long they are kept, and what a store is asked for them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from ropeway.core import keytext
from ropeway.core.access import ApiKey, Limits, Scope
from ropeway.core.errors import FieldError, MissingScope, NameTaken, NotFound, Unauthenticated, Unavailable
from ropeway.service import access
from ropeway.service.access import ANYBODY, Access, Principal
from ropeway.service.keys import Keys
from ropeway.service.tenants import Tenants
from tests.unit.service_kit import START, CountingEngine, Time, counting


def gate(engine: CountingEngine, time: Time) -> Access:
    return Access(engine, clock=time.monotonic)


async def refused(access: Access, token: str) -> str:
    """The words of a refusal."""
    with pytest.raises(Unauthenticated) as refusal:
        await access.authenticate(token)
    assert refusal.value.code == "unauthenticated"
    return str(refusal.value)


def forged(token: str, *, id: str | None = None) -> str:
    """A key with a good check and a wrong secret, or another id."""
    text = keytext.parse_key(token)
    assert text is not None
    secret = text.secret if id else "9" * len(text.secret)
    return keytext.key_text("live", id or text.id, secret)


# ── who it is ──


async def test_a_key_tells_who_holds_it() -> None:
    async with counting() as (engine, time):
        await Tenants(engine).create("Acme Ltd", id="acme", limits=Limits(max_leases=7))
        key, token = await Keys(engine, tenant="acme").create("web", {Scope.ENQUEUE, Scope.WORK})
        principal = await gate(engine, time).authenticate(token)
        assert principal == Principal(
            "acme", key.id, "web", frozenset({Scope.ENQUEUE, Scope.WORK}), Limits(max_leases=7)
        )
        assert principal.actor == f"web ({key.id})"


async def test_an_admin_may_look_at_what_it_may_change() -> None:
    async with counting() as (engine, time):
        _, token = await Keys(engine).create("ops", {Scope.ADMIN})
        principal = await gate(engine, time).authenticate(token)
        assert principal.scopes == {Scope.ADMIN, Scope.READ, Scope.READ_PAYLOAD}
        principal.require(Scope.READ)
        principal.require(Scope.ENQUEUE, Scope.ADMIN)
        with pytest.raises(MissingScope, match="enqueue or work"):
            principal.require(Scope.ENQUEUE, Scope.WORK)


async def test_who_may_see_payloads_may_read() -> None:
    async with counting() as (engine, time):
        _, token = await Keys(engine).create("k", {Scope.READ_PAYLOAD})
        assert (await gate(engine, time).authenticate(token)).scopes == {Scope.READ, Scope.READ_PAYLOAD}


async def test_nothing_else_implies_anything() -> None:
    async with counting() as (engine, time):
        gatekeeper = gate(engine, time)
        for scope in set(Scope) - {Scope.ADMIN, Scope.READ_PAYLOAD}:
            _, token = await Keys(engine).create("k", {scope})
            assert (await gatekeeper.authenticate(token)).scopes == {scope}


# ── every bad key is answered alike ──


async def test_every_bad_key_gets_the_same_words() -> None:
    async with counting() as (engine, time):
        keys = Keys(engine)
        gatekeeper = gate(engine, time)
        _, good = await keys.create("good")
        revoked, revoked_token = await keys.create("revoked")
        await keys.revoke(revoked.id)
        _, expired_token = await keys.create("expired", expires_at=START + timedelta(seconds=5))
        await Tenants(engine).create("Gone", id="gone", is_active=False)
        _, inactive_token = await Keys(engine, tenant="gone").create("k")
        time.advance(5)
        bad = [
            "",
            "Bearer",
            "x" * 10_000,
            "\ud800",
            good[:-1] + ("0" if good[-1] != "0" else "1"),
            forged(good),
            forged(good, id="aaaaaaaaaaaa"),
            revoked_token,
            expired_token,
            inactive_token,
        ]
        words = {await refused(gatekeeper, token) for token in bad}
        # Once more, now that the answers may be remembered.
        words |= {await refused(gatekeeper, token) for token in bad}
        assert len(words) == 1
        assert "rw_" not in words.pop()
        await gatekeeper.authenticate(good)


async def test_a_mistyped_key_costs_no_look_into_the_store() -> None:
    async with counting() as (engine, time):
        _, token = await Keys(engine).create("k")
        gatekeeper = gate(engine, time)
        for place in range(len(token)):
            await refused(gatekeeper, token[:place] + "-" + token[place + 1 :])
        assert engine.asked["find_key"] == 0


async def test_an_unknown_id_is_compared_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bool] = []
    compare = access.hmac.compare_digest

    def watched(one: bytes, other: bytes) -> bool:
        compared.append(len(one) == len(other) == 32)
        return compare(one, other)

    monkeypatch.setattr(access.hmac, "compare_digest", watched)
    async with counting() as (engine, time):
        _, token = await Keys(engine).create("k")
        await refused(gate(engine, time), forged(token, id="aaaaaaaaaaaa"))
    assert compared == [True]


# ── how long an answer is kept ──


async def test_a_good_key_is_looked_up_once_in_a_while() -> None:
    async with counting() as (engine, time):
        _, token = await Keys(engine).create("k")
        gatekeeper = gate(engine, time)
        for _ in range(100):
            await gatekeeper.authenticate(token)
        assert engine.asked["find_key"] == 1
        assert not any(token in repr(kept) for kept in vars(gatekeeper).values())


async def test_revocation_reaches_a_process_that_knew_the_key_within_five_seconds() -> None:
    async with counting() as (engine, time):
        keys = Keys(engine)
        key, token = await keys.create("k")
        gatekeeper = gate(engine, time)
        await gatekeeper.authenticate(token)
        await keys.revoke(key.id)
        time.advance(access.KEEP_SECONDS)
        await refused(gatekeeper, token)
        assert access.KEEP_SECONDS <= 3


async def test_revocation_reaches_a_busy_process_sooner() -> None:
    """The renewal in the background brings the news, although the old verdict might still be used."""
    async with counting() as (engine, time):
        keys = Keys(engine)
        key, token = await keys.create("k")
        gatekeeper = gate(engine, time)
        await gatekeeper.authenticate(token)
        await keys.revoke(key.id)
        time.advance(access.RENEW_SECONDS)
        await gatekeeper.authenticate(token)
        await gatekeeper.close()
        await refused(gatekeeper, token)


async def test_switching_a_tenant_off_and_on_again_is_noticed() -> None:
    async with counting() as (engine, time):
        await Tenants(engine).create("Acme", id="acme")
        _, token = await Keys(engine, tenant="acme").create("k")
        gatekeeper = gate(engine, time)
        await gatekeeper.authenticate(token)
        await Tenants(engine).change("acme", is_active=False)
        time.advance(access.KEEP_SECONDS)
        await refused(gatekeeper, token)
        await Tenants(engine).change("acme", is_active=True, limits=Limits(burst=3))
        time.advance(access.KEEP_SECONDS)
        assert (await gatekeeper.authenticate(token)).limits == Limits(burst=3)


async def test_a_key_ends_to_the_moment_also_while_its_verdict_is_kept() -> None:
    async with counting() as (engine, time):
        _, token = await Keys(engine).create("k", expires_at=START + timedelta(seconds=1.5))
        gatekeeper = gate(engine, time)
        await gatekeeper.authenticate(token)
        time.advance(1.499)
        await gatekeeper.authenticate(token)
        time.advance(0.001)
        await refused(gatekeeper, token)
        assert engine.asked["find_key"] == 1


async def test_a_store_that_is_away_is_said_to_be_away_and_nobody_is_let_in() -> None:
    async with counting() as (engine, time):
        _, token = await Keys(engine).create("k")
        gatekeeper = gate(engine, time)
        await gatekeeper.authenticate(token)
        engine.away = Unavailable("away")
        time.advance(access.RENEW_SECONDS)
        await gatekeeper.authenticate(token)  # the renewal fails, the old verdict is still young enough
        await gatekeeper.close()
        time.advance(access.KEEP_SECONDS - access.RENEW_SECONDS)
        with pytest.raises(Unavailable):
            await gatekeeper.authenticate(token)
        engine.away = None
        await gatekeeper.authenticate(token)


async def test_many_at_once_share_one_look_and_one_who_leaves_takes_nothing_along() -> None:
    async with counting() as (engine, time):
        _, token = await Keys(engine).create("k")
        gatekeeper = gate(engine, time)
        first, *others = [asyncio.create_task(gatekeeper.authenticate(token)) for _ in range(50)]
        await asyncio.sleep(0)
        first.cancel()
        assert {principal.name for principal in await asyncio.gather(*others)} == {"k"}
        assert engine.asked["find_key"] == 1


async def test_guesses_are_bounded_and_forget_no_good_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MOST_BAD", 10)
    async with counting() as (engine, time):
        _, token = await Keys(engine).create("k")
        gatekeeper = gate(engine, time)
        await gatekeeper.authenticate(token)
        for number in range(40):
            await refused(
                gatekeeper, forged(token, id=f"aaaaaaaaaa{'abcdefgh'[number // 8]}{'abcdefgh'[number % 8]}")
            )
        assert engine.asked["find_key"] == 41
        assert len(gatekeeper._bad) == 10
        await gatekeeper.authenticate(token)
        assert engine.asked["find_key"] == 41
        # The same wrong key again and again is looked for once.
        for _ in range(20):
            await refused(gatekeeper, forged(token))
        assert engine.asked["find_key"] == 42


async def test_strangers_wait_in_line_and_those_who_are_known_do_not() -> None:
    async with counting() as (engine, time):
        _, token = await Keys(engine).create("k")
        gatekeeper = gate(engine, time)
        await gatekeeper.authenticate(token)
        look, under_way, most = engine.find_key, 0, 0
        all_in, may_go = asyncio.Event(), asyncio.Event()

        async def slow(id: str) -> object:
            nonlocal under_way, most
            if id.startswith("aaaa"):
                under_way += 1
                most = max(most, under_way)
                if under_way == access.STRANGERS_AT_ONCE:
                    all_in.set()
                await may_go.wait()
                under_way -= 1
            return await look(id)

        engine.find_key = slow  # type: ignore[assignment,method-assign]
        guesses = [
            asyncio.create_task(refused(gatekeeper, forged(token, id=f"aaaaaaaaaa{a}{b}")))
            for a in "abcdef"
            for b in "abcdef"
        ]
        await all_in.wait()
        time.advance(access.KEEP_SECONDS)
        # Looked up again, past all those who wait.
        await gatekeeper.authenticate(token)
        may_go.set()
        await asyncio.gather(*guesses)
        assert most == access.STRANGERS_AT_ONCE


# ── notes of use ──


async def test_use_is_noted_once_a_minute() -> None:
    async with counting() as (engine, time):
        await Tenants(engine).create("Acme", id="acme")
        keys = Keys(engine, tenant="acme")
        _, token = await keys.create("k")
        gatekeeper = gate(engine, time)

        async def used_for(seconds: int) -> None:
            for _ in range(seconds):
                await gatekeeper.authenticate(token)
                await gatekeeper.close()
                time.advance(1)

        await used_for(60)
        assert engine.asked["note_use"] == 1
        assert (await keys.all())[0].last_used_at == START
        await used_for(60)
        assert engine.asked["note_use"] == 2
        assert (await keys.all())[0].last_used_at == START + timedelta(seconds=60)
        assert (await Tenants(engine).get("acme")).last_seen_at == START + timedelta(seconds=60)


async def test_a_note_that_fails_refuses_nobody() -> None:
    async with counting() as (engine, time):
        _, token = await Keys(engine).create("k")
        gatekeeper = gate(engine, time)

        async def fail(ids: object) -> None:
            raise Unavailable("away")

        engine.note_use = fail  # type: ignore[assignment,method-assign]
        await gatekeeper.authenticate(token)
        await gatekeeper.close()


# ── making keys ──


async def test_the_secret_is_stored_nowhere() -> None:
    async with counting() as (engine, _):
        key, token = await Keys(engine, environment="test").create("k")
        secret = token.split("_")[3]
        assert token.startswith(f"rw_test_{key.id}_")
        assert len(key.digest) == 32
        assert secret not in repr(vars(engine))


async def test_a_new_key_may_only_enqueue() -> None:
    async with counting() as (engine, _):
        key, _ = await Keys(engine).create("k")
        assert key.scopes == {Scope.ENQUEUE}


async def test_keys_that_cannot_be_made() -> None:
    async with counting() as (engine, _):
        with pytest.raises(NotFound):
            await Keys(engine, tenant="nobody").create("k")
        with pytest.raises(FieldError, match="ahead"):
            await Keys(engine).create("k", expires_at=START)
        with pytest.raises(FieldError, match="scope"):
            await Keys(engine).create("k", ())
        with pytest.raises(FieldError, match="name"):
            await Keys(engine).create("")
        with pytest.raises(FieldError, match="environment"):
            Keys(engine, environment="Live!")


async def test_a_rotated_key_and_its_successor_are_both_good_for_a_while() -> None:
    async with counting() as (engine, time):
        keys = Keys(engine)
        gatekeeper = gate(engine, time)
        old, old_token = await keys.create("k", {Scope.READ}, START + timedelta(days=30))
        time.advance(86_400)
        new, new_token = await keys.rotate(old.id, overlap=60)
        assert (new.name, new.scopes) == (old.name, old.scopes)
        # It lives as long as the one before it.
        assert new.expires_at == START + timedelta(days=31)
        await gatekeeper.authenticate(old_token)
        await gatekeeper.authenticate(new_token)
        time.advance(60)
        await refused(gatekeeper, old_token)
        await gatekeeper.authenticate(new_token)
        with pytest.raises(NotFound):
            await keys.rotate(old.id)


async def test_a_key_of_another_tenant_is_answered_like_one_that_is_not_there() -> None:
    async with counting() as (engine, _):
        await Tenants(engine).create("Acme", id="acme")
        mine = Keys(engine)
        foreign, _ = await Keys(engine, tenant="acme").create("k")
        for verb in (mine.get, mine.rotate, mine.revoke):
            words = set()
            for id in (foreign.id, "aaaaaaaaaaaa", "no id at all"):
                with pytest.raises(NotFound) as refusal:
                    await verb(id)
                words.add(str(refusal.value))
            assert len(words) == 1
        assert (await Keys(engine, tenant="acme").all()) == [foreign]


async def test_revoking_again_gives_the_same_answer() -> None:
    async with counting() as (engine, time):
        keys = Keys(engine)
        key, _ = await keys.create("k")
        once = await keys.revoke(key.id)
        time.advance(10)
        assert await keys.revoke(key.id) == once


# ── the first start ──


async def test_a_first_start_makes_one_key_that_may_do_everything() -> None:
    async with counting() as (engine, time):
        gatekeeper, neighbour = gate(engine, time), gate(engine, time)
        made = [
            answer
            for answer in await asyncio.gather(gatekeeper.create_first_key(), neighbour.create_first_key())
            if answer is not None
        ]
        assert len(made) == 1
        key, token = made[0]
        assert isinstance(key, ApiKey)
        assert (await neighbour.authenticate(token)).scopes == frozenset(Scope) == ANYBODY.scopes
        assert await gatekeeper.create_first_key() is None


async def test_of_two_first_starts_at_the_same_moment_one_makes_the_key() -> None:
    async with counting() as (engine, time):

        async def none_yet(**_: object) -> list[ApiKey]:
            return []

        assert await gate(engine, time).create_first_key() is not None
        engine.keys = none_yet  # type: ignore[assignment,method-assign]
        assert await gate(engine, time).create_first_key() is None


async def test_no_first_key_where_somebody_has_been() -> None:
    async with counting() as (engine, time):
        await Tenants(engine).create("Acme")
        assert await gate(engine, time).create_first_key() is None


# ── tenants ──


async def test_tenants_are_made_found_and_changed() -> None:
    async with counting() as (engine, _):
        tenants = Tenants(engine)
        made = await tenants.create("Acme Ltd. (EU)", email="ops@acme.example", limits=Limits(burst=5))
        assert made.id == "acme-ltd.-eu"
        assert [tenant.id for tenant in await tenants.all()] == ["acme-ltd.-eu", "default"]
        limits = Tenants.merged(made.limits, max_leases=10, burst=None)
        changed = await tenants.change(made.id, name="Acme", email="", limits=limits)
        assert (changed.name, changed.email, changed.limits) == ("Acme", None, Limits(max_leases=10))
        with pytest.raises(NotFound, match="did you mean acme-ltd"):
            await tenants.get("acme-ltd-eu")
        with pytest.raises(NotFound):
            await tenants.change("nobody", name="x")
        with pytest.raises(NameTaken):
            await tenants.create("Acme")


async def test_tenants_that_cannot_be() -> None:
    async with counting() as (engine, _):
        tenants = Tenants(engine)
        for name in ("", "\x00", "x" * 129, "日本"):
            with pytest.raises(FieldError):
                await tenants.create(name)
        assert (await tenants.create("日本", id="japan")).name == "日本"
        with pytest.raises(FieldError, match="limits"):
            Tenants.merged(Limits(), burst=0)
        with pytest.raises(FieldError, match="switched off"):
            await tenants.change("default", is_active=False)


# ── calls that go on ──


async def test_a_call_that_goes_on_is_told_when_its_key_is_revoked() -> None:
    async with counting() as (engine, time):
        keys, gatekeeper = Keys(engine), gate(engine, time)
        key, token = await keys.create("worker")
        principal = await gatekeeper.authenticate(token)
        assert await gatekeeper.confirm(principal) == principal
        await keys.revoke(key.id)
        time.advance(access.CONFIRM_SECONDS)
        with pytest.raises(Unauthenticated):
            await gatekeeper.confirm(principal)


async def test_however_many_calls_go_on_a_key_is_looked_at_once_in_a_while() -> None:
    async with counting() as (engine, time):
        gatekeeper = gate(engine, time)
        _, token = await Keys(engine).create("worker")
        principal = await gatekeeper.authenticate(token)
        asked = engine.asked["find_key"]
        for _ in range(3):
            await asyncio.gather(*(gatekeeper.confirm(principal) for _ in range(100)))
            time.advance(access.CONFIRM_SECONDS / 2)
        assert engine.asked["find_key"] - asked == 2
        assert await gatekeeper.confirm(ANYBODY) is ANYBODY


async def test_a_call_that_goes_on_learns_of_new_limits_and_of_the_end_of_its_key() -> None:
    async with counting() as (engine, time):
        gatekeeper = gate(engine, time)
        ends_at = (await engine.now()) + timedelta(seconds=100)
        _, token = await Keys(engine).create("worker", expires_at=ends_at)
        principal = await gatekeeper.authenticate(token)
        await Tenants(engine).change("default", limits=Limits(max_leases=7))
        assert (await gatekeeper.confirm(principal)).limits == Limits(max_leases=7)
        time.advance(101)
        with pytest.raises(Unauthenticated):
            await gatekeeper.confirm(principal)
