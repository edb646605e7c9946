"""Auditing: what operators did, durably, newest first, each tenant its own."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from ropeway.core.auditlog import Action, ActionFilter, NewAction
from ropeway.core.errors import FieldError
from ropeway.engines.capabilities import Capability
from ropeway.engines.protocol import Engine
from ropeway.testing.conformance.kit import DAY, OTHER_TENANT, advance_to, midnight
from ropeway.testing.conformance.subject import TEST_RULES, Harness
from ropeway.testing.conformance.tenancy import with_tenants


async def note(engine: Engine, *targets: str, actor: str = "ops (k1)", action: str = "job.cancel") -> None:
    await engine.note_actions([NewAction(actor, action, target) for target in targets])


def targets(actions: list[Action]) -> list[str]:
    return [action.target for action in actions]


class TestActions:
    async def test_an_action_is_kept_as_it_was_noted_at_the_engines_time(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await subject.advance(5)
            noted = [
                NewAction("Ops (k1)", "dlq.retry", "queue mail", count=2**40, request_id="r-1"),
                NewAction("root", "queue.pause", "mäil \U0001f4ec", count=0),
                NewAction("root", "queue.pause", ""),
            ]
            await engine.note_actions(noted)
            await engine.note_actions([])
            found = await engine.actions()
            now = await engine.now()
            assert [action.at for action in found] == [now] * 3
            fields = NewAction.__struct_fields__
            assert [NewAction(*(getattr(action, field) for field in fields)) for action in found] == noted[::-1]
            numbers = [action.n for action in found]
            assert numbers == sorted(numbers, reverse=True)
            assert len(set(numbers)) == 3

    async def test_pages_go_back_without_gaps_or_doubles(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            wanted = [f"job {n}" for n in range(25)]
            for target in wanted:
                await note(engine, target)
                await engine.note_actions([NewAction("a", "b", "foreign")], tenant=OTHER_TENANT)
            seen: list[str] = []
            before_n = None
            while page := await engine.actions(limit=10, before_n=before_n):
                seen += targets(page)
                before_n = page[-1].n
                await note(engine, "new ones come in front and are not seen")
            assert seen == wanted[::-1]

    async def test_by_actor_action_and_time(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            times = []
            for target, actor, action in (
                ("1", "ann", "job.cancel"),
                ("2", "bob", "job.cancel"),
                ("3", "ann", "key.create"),
                ("4", "Ann", "job.cancels"),
            ):
                times.append(await engine.now())
                await note(engine, target, actor=actor, action=action)
                await subject.advance(1)

            async def found(**fields: object) -> list[str]:
                return targets(await engine.actions(ActionFilter(**fields)))  # type: ignore[arg-type]

            assert await found() == ["4", "3", "2", "1"]
            assert await found(actor="ann") == ["3", "1"]
            assert await found(action="job.cancel") == ["2", "1"]
            assert await found(actor="ann", action="job.cancel") == ["1"]
            assert await found(after=times[1]) == ["4", "3", "2"]
            assert await found(before=times[1]) == ["1"]
            assert await found(after=times[1], before=times[3]) == ["3", "2"]
            assert await found(actor="%") == []
            first = (await engine.actions(ActionFilter(actor="ann"), limit=1))[0]
            assert targets(await engine.actions(ActionFilter(actor="ann"), before_n=first.n)) == ["1"]

    async def test_tenants_see_their_own(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await note(engine, "mine")
            await engine.note_actions([NewAction("a", "b", "theirs")], tenant=OTHER_TENANT)
            assert targets(await engine.actions()) == ["mine"]
            assert targets(await engine.actions(tenant=OTHER_TENANT)) == ["theirs"]
            assert await engine.actions(tenant="nobody") == []

    @pytest.mark.parametrize("limit", [0, 501, True], ids=str)
    async def test_a_page_has_a_size(self, harness: Harness, limit: int) -> None:
        async with with_tenants(harness) as subject:
            with pytest.raises(FieldError):
                await subject.engine.actions(limit=limit)

    async def test_they_are_kept_for_their_time_by_whole_days(self, harness: Harness) -> None:
        if Capability.TENANCY not in harness.capabilities:
            pytest.skip("this engine has no tenancy")
        async with harness.subject(msgspec.structs.replace(TEST_RULES, keep_actions=3 * DAY)) as subject:
            engine = subject.engine
            today = await midnight(engine, 0)
            await note(engine, "old")
            await engine.note_actions([NewAction("a", "b", "theirs")], tenant=OTHER_TENANT)
            last = (await engine.actions())[0].n
            await advance_to(subject, today + timedelta(days=1))
            await note(engine, "young")
            await advance_to(subject, today + timedelta(days=4) - timedelta(seconds=1))
            await engine.prune()
            assert targets(await engine.actions()) == ["young", "old"]
            await subject.advance(1)
            await engine.prune()
            assert targets(await engine.actions()) == ["young"]
            assert await engine.actions(tenant=OTHER_TENANT) == []
            await subject.advance(10 * DAY)
            await engine.prune()
            assert await engine.actions() == []
            await note(engine, "new")
            assert (await engine.actions())[0].n > last + 1, "a number is never given twice"
