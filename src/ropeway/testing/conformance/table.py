"""Every cell of the state table, the empty ones too."""

from __future__ import annotations

import msgspec
import pytest

from ropeway.core.errors import InvalidState, JobEnded, LeaseLost, NotFound
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done, Failed, Lost, Outcome, Released, Snoozed
from ropeway.core.states import TABLE, TERMINAL_STATES, Arrow, State, Verb, may
from ropeway.engines.protocol import Settled
from ropeway.runtime import ids
from ropeway.testing.conformance.kit import (
    BOOM,
    DAY,
    FAR,
    REACHABLE,
    UNREACHABLE,
    Driven,
    answer_to,
    changed,
    drive_to,
    job_of,
    lease_some,
    leased_ids,
    new_job,
    nothing_changes,
    refused,
    settle,
)
from ropeway.testing.conformance.subject import TEST_RULES, Harness, Subject

#: Nothing that has ended is kept past the day.
_RULES = msgspec.structs.replace(TEST_RULES, keep_succeeded=0.0, keep_cancelled=0.0, keep_dead=0.0)

_SETTLING = frozenset({Verb.ACK, Verb.NACK, Verb.SNOOZE, Verb.RELEASE, Verb.LOSE})

_ARROWS = [
    pytest.param(state, verb, arrow, id=f"{state}-{verb}-{arrow.target or 'gone'}")
    for (state, verb), cell in TABLE.items()
    for arrow in cell.arrows
    if state is not None and state not in UNREACHABLE
]
_EMPTY_CELLS = [
    pytest.param(state, verb, id=f"{state}-{verb}") for state in REACHABLE for verb in Verb if not may(state, verb)
]


class TestTable:
    @pytest.mark.parametrize(("state", "verb", "arrow"), _ARROWS)
    async def test_a_verb_leads_along_its_arrow_and_writes_its_event(
        self, harness: Harness, state: State, verb: Verb, arrow: Arrow
    ) -> None:
        async with harness.subject(_RULES) as subject:
            driven = await _prepare(subject, state, verb, arrow)
            job = await job_of(subject.engine, driven.id)
            before = await subject.engine.events_of(driven.id)
            assert job.state is state, f"could not bring a job to {state}: it is {job.state}"

            await _apply(subject, driven, verb, arrow)

            (after,) = await subject.engine.get([driven.id])
            events = await subject.engine.events_of(driven.id)
            assert (None if after is None else after.state) == arrow.target
            assert events[: len(before)] == before, "a transition rewrote the log"
            written = events[len(before) :]
            if arrow.event is None:
                assert written == []
                return
            (event,) = written
            assert (event.event, event.state) == (arrow.event, arrow.target)
            assert event.seq == before[-1].seq + 1
            assert event.at == await subject.engine.now()

    @pytest.mark.parametrize(("state", "verb"), _EMPTY_CELLS)
    async def test_any_other_verb_is_refused_and_changes_nothing(
        self, harness: Harness, state: State, verb: Verb
    ) -> None:
        async with harness.subject(_RULES) as subject:
            driven = await _prepare(subject, state, verb)
            assert (await job_of(subject.engine, driven.id)).state is state
            async with nothing_changes(subject.engine, driven.id):
                await _is_refused(subject, driven, state, verb)

    @pytest.mark.parametrize("arrow", TABLE[None, Verb.ENQUEUE].arrows, ids=lambda arrow: arrow.target)
    async def test_a_new_job_starts_its_log(self, harness: Harness, arrow: Arrow) -> None:
        async with harness.subject() as subject:
            delay = FAR if arrow.target is State.SCHEDULED else None
            (answer,) = await subject.engine.enqueue([new_job(delay=delay)])
            assert answer.state is arrow.target
            assert (await job_of(subject.engine, answer.id)).state is arrow.target
            (event,) = await subject.engine.events_of(answer.id)
            assert (event.event, event.state, event.seq) == (arrow.event, arrow.target, 1)

    @pytest.mark.parametrize("verb", [verb for verb in Verb if verb is not Verb.ENQUEUE])
    async def test_a_job_that_does_not_exist_can_only_be_enqueued(self, harness: Harness, verb: Verb) -> None:
        async with harness.subject() as subject:
            engine, nobody = subject.engine, ids.uuid7()
            if verb in _SETTLING:
                lease = Lease(nobody, 1, ids.token())
                refused(await answer_to(engine, lease, _outcome(verb)), LeaseLost)
            elif verb is Verb.LEASE:
                assert await lease_some(engine) == []
            elif verb is Verb.EXPIRE:
                assert await engine.expire() == []
            elif verb is Verb.PRUNE:
                assert (await engine.prune()).jobs == 0
                refused((await engine.delete([nobody]))[0], NotFound)
            elif verb is Verb.RESCHEDULE:
                with pytest.raises(NotFound):
                    await engine.reschedule(nobody, delay=0.0)
            else:
                answers = await (engine.cancel if verb is Verb.CANCEL else engine.redrive)([nobody])
                refused(answers[0], NotFound)
            assert await engine.get([nobody]) == [None]
            assert (await engine.tail()).events == []


async def _prepare(subject: Subject, state: State, verb: Verb, arrow: Arrow | None = None) -> Driven:
    """A job in `state`, with what it takes for `verb` to go along `arrow`."""
    fields: dict[str, object] = {"idempotency_key": "the-key"}
    if verb is Verb.EXPIRE:
        fields["expires_in"] = 600.0
    if verb is Verb.LOSE and arrow is not None and arrow.target is State.DEAD:
        fields["max_attempts"] = 1
    failed = arrow is not None and arrow.target is State.RETRYING and verb in (Verb.SNOOZE, Verb.RESCHEDULE)
    driven = await drive_to(subject, state, failed=failed and state is not State.RETRYING, **fields)
    if verb is Verb.EXPIRE:
        await subject.advance(601)
    elif verb is Verb.PRUNE:
        await subject.advance(DAY)
    return driven


async def _apply(subject: Subject, driven: Driven, verb: Verb, arrow: Arrow) -> None:
    engine = subject.engine
    match verb:
        case Verb.LEASE:
            assert await leased_ids(engine) == [driven.id]
        case Verb.ACK | Verb.NACK | Verb.SNOOZE | Verb.RELEASE | Verb.LOSE:
            assert driven.lease is not None
            answer = await settle(engine, driven.lease, _outcome(verb, retry=arrow.target is not State.DEAD))
            assert (answer.id, answer.state, answer.already) == (driven.id, arrow.target, False)
        case Verb.CANCEL:
            assert changed((await engine.cancel([driven.id]))[0]).state is State.CANCELLED
        case Verb.EXPIRE:
            assert await engine.expire() == [driven.id]
        case Verb.REDRIVE:
            assert changed((await engine.redrive([driven.id]))[0]).state is State.QUEUED
        case Verb.RESCHEDULE:
            delay = 0.0 if arrow.target is State.QUEUED else FAR
            assert (await engine.reschedule(driven.id, delay=delay)).state is arrow.target
        case Verb.PRUNE:
            assert (await engine.prune()).jobs == 1
        case Verb.ENQUEUE:
            raise AssertionError("a job that exists cannot be enqueued")


async def _is_refused(subject: Subject, driven: Driven, state: State, verb: Verb) -> None:
    engine = subject.engine
    match verb:
        case Verb.ENQUEUE:
            # Ids are never taken from a caller: the way to ask for the same job again is its key.
            job = await job_of(engine, driven.id)
            delay = FAR if state is State.SCHEDULED else None
            (again,) = await engine.enqueue([new_job(idempotency_key=job.idempotency_key, delay=delay)])
            assert (again.id, again.state, again.deduplicated) == (driven.id, state, True)
        case Verb.LEASE:
            assert await leased_ids(engine) == []
        case Verb.ACK | Verb.NACK | Verb.SNOOZE | Verb.RELEASE | Verb.LOSE:
            await _tickets_are_refused(subject, driven, state, verb)
        case Verb.CANCEL:
            assert refused((await engine.cancel([driven.id]))[0], JobEnded).status == state.value
        case Verb.EXPIRE:
            assert await engine.expire() == []
        case Verb.REDRIVE:
            refused((await engine.redrive([driven.id]))[0], InvalidState)
        case Verb.RESCHEDULE:
            for delay in (0.0, FAR):
                with pytest.raises(InvalidState):
                    await engine.reschedule(driven.id, delay=delay)
        case Verb.PRUNE:
            assert (await engine.prune()).jobs == 0


async def _tickets_are_refused(subject: Subject, driven: Driven, state: State, verb: Verb) -> None:
    """A made-up ticket has lost its lease. The job's own last one learns what came of it."""
    made_up = Lease(driven.id, max((await job_of(subject.engine, driven.id)).attempt, 1), ids.token())
    refused(await answer_to(subject.engine, made_up, _outcome(verb)), LeaseLost)
    if driven.lease is None:
        return
    answer = await answer_to(subject.engine, driven.lease, _outcome(verb))
    if verb is driven.spent_by:
        assert isinstance(answer, Settled), f"the same call again must be answered as before, got {answer!r}"
        assert (answer.state, answer.already) == (state, True)
    elif state in TERMINAL_STATES:
        assert refused(answer, JobEnded).status == state.value
    else:
        refused(answer, LeaseLost)


def _outcome(verb: Verb, *, retry: bool = True) -> Outcome:
    outcomes: dict[Verb, Outcome] = {
        Verb.ACK: Done(),
        Verb.NACK: Failed(BOOM, retry=retry),
        Verb.SNOOZE: Snoozed(delay=FAR),
        Verb.RELEASE: Released(),
        Verb.LOSE: Lost("crashed"),
    }
    return outcomes[verb]
