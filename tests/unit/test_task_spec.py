"""Task declarations: options, new jobs, results, failures, names."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeway.app import task_spec
from ropeway.core.errors import (
    BadArguments,
    ConfigurationError,
    FieldError,
    PayloadError,
    RopewayError,
    UnknownTask,
    UsageError,
)
from ropeway.core.job import LARGEST_PAYLOAD, Alike, Job, NewJob, Progress
from ropeway.core.outcome import Failed, Snoozed
from ropeway.core.retry import PRESETS, RetryPolicy
from ropeway.core.states import DeadReason, State
from ropeway.core.unique import Unique
from ropeway.task.context import DiscardJob, JobContext, JobSignal, RetryJob, SnoozeJob
from ropeway.task.middleware import Middleware, wrap_enqueue, wrap_run
from ropeway.task.options import job_fields
from ropeway.task.registry import Registry
from ropeway.task.spec import TaskDefaults, TaskSpec, failure, unknown_task

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def welcome(user_id: int = 0) -> int:
    return user_id


def made(function: Any = welcome, **options: Any) -> TaskSpec:
    return task_spec(function, options)


# ── New jobs ──


def test_a_task_that_says_nothing_takes_the_defaults() -> None:
    job = made().new_job((7,), {}, None, TaskDefaults(max_attempts=3, timeout=60.0))
    assert job == NewJob("welcome", b'{"user_id":7}', max_attempts=3, timeout=60.0)


def test_what_the_task_says_goes_before_the_defaults_and_what_the_call_says_before_both() -> None:
    spec = made(
        name="mail.welcome",
        queue="mail",
        priority="high",
        max_attempts=8,
        retry="atlas",
        timeout=timedelta(minutes=1),
        unique=True,
        tags=["a"],
        headers={"h": "1"},
        expires_in=10,
        key_window=5,
    )
    job = spec.new_job((), {}, None, TaskDefaults(max_attempts=3, timeout=7.0))
    assert (job.type, job.queue, job.priority, job.max_attempts, job.timeout) == (
        "mail.welcome",
        "mail",
        3,
        8,
        60.0,
    )
    assert (job.retry, job.unique, job.tags, job.headers) == (PRESETS["atlas"], Unique(), ("a",), {"h": "1"})
    assert (job.expires_in, job.key_window) == (10.0, 5.0)
    given = job_fields({"queue": "b", "priority": 9, "max_attempts": 1, "unique": False, "delay": 3, "key": "k"})
    other = spec.new_job((), {}, given)
    assert (other.queue, other.priority, other.max_attempts, other.unique) == ("b", 9, 1, None)
    assert (other.delay, other.idempotency_key, other.timeout) == (3.0, "k", 60.0)


@pytest.mark.parametrize(
    "retry", [RetryPolicy(base=1.0), {"base": 1}, {"policy": "default", "base": 1.0}, PRESETS["default"]]
)
def test_a_retry_policy_has_three_spellings(retry: Any) -> None:
    assert made(retry=retry).retry in (RetryPolicy(base=1.0), RetryPolicy())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"priority": "urgent"}, "priority must be"),
        ({"priority": 10}, "priority must be"),
        ({"retry": "atlsa"}, "did you mean atlas"),
        ({"retry": {"bse": 1}}, "retry takes policy, base, factor, cap and jitter"),
        ({"retry": 3}, "retry must be a RetryPolicy"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"timeout": -1}, "timeout"),
        ({"tags": "a"}, "tags are a list"),
        ({"queue": "a b"}, "queue must be"),
        ({"name": "a b"}, "name must be"),
        ({"headers": {"a": 1}}, "headers are pairs of strings"),
        ({"window": "late"}, "window must be"),
        ({"tz": "Europe/Paris"}, "tz goes with window"),
        ({"process": True}, "is async"),
        ({"retry_on": "OSError"}, "retry_on takes exception classes"),
        ({"give_up_on": (OSError, 3)}, "give_up_on takes exception classes"),
        ({"unique": 3}, "unique must be"),
    ],
)
def test_wrong_options_are_refused_at_the_declaration(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RopewayError, match=words):
        made(**options)


def test_a_key_may_depend_on_the_arguments() -> None:
    spec = made(key=lambda user_id=0: f"u{user_id}")
    assert spec.new_job((7,), {}).idempotency_key == "u7"
    assert spec.new_job((), {}).idempotency_key == "u0"
    assert spec.new_job((7,), {}, {"idempotency_key": "other"}).idempotency_key == "other"
    assert made(key="always").new_job((), {}).idempotency_key == "always"


@pytest.mark.parametrize(("value", "code"), [("a\0b", "nul_character"), (2**63, "number_range")])
def test_what_json_takes_and_a_store_does_not_is_told_by_argument(value: Any, code: str) -> None:
    def task(a: int, b: Any) -> None: ...

    with pytest.raises(PayloadError, match=r"task\(\): argument 'b': ") as error:
        made(task).new_job((1, [value]), {})
    assert (error.value.code, error.value.pointer) == (code, "/payload/b/0")


def several(number: int, text: str, share: float, words: list[str], at: datetime | None = None) -> None:
    """Nothing inside its payload is an object, so the payload is looked at less closely."""


@given(
    number=st.integers(-(2**64), 2**64),
    text=st.text(st.characters(codec=None))
    | st.sampled_from(["\0", "a\0", "\ud800", "1" * 30, "\\u0000", '"}', "\x1f"]),
    share=st.floats(),
    words=st.lists(st.text(max_size=3), max_size=3),
    at=st.none() | st.datetimes(timezones=st.just(UTC)),
    by_name=st.booleans(),
)
def test_the_short_way_for_flat_payloads_leads_where_the_long_one_does(
    number: int, text: str, share: float, words: list[str], at: datetime | None, by_name: bool
) -> None:
    values = {"number": number, "text": text, "share": share, "words": words, "at": at}
    spec = made(several)
    assert spec.arguments.flat
    try:
        job = spec.new_job(() if by_name else tuple(values.values()), values if by_name else {})
    except RopewayError:
        # Refused the short way: the long one has no place for it either.
        assert not _comes_back({**values, "at": None})
    else:
        assert job == NewJob("several", job.payload)
        assert spec.bind(job.payload, lambda: None, job) == (tuple(values.values()), {})  # type: ignore[arg-type]


def _comes_back(values: dict[str, Any]) -> bool:
    try:
        payload = NewJob("several", msgspec.json.encode(values)).payload
    except (RopewayError, OverflowError, UnicodeEncodeError):
        return False
    return bool(msgspec.json.decode(payload) == values)


def plain(number: int, text: str, flag: bool) -> None:
    """Many calls of it at once are not looked at one by one."""


NUMBERS = st.integers(-(2**64), 2**64) | st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64])
TEXTS = st.text(st.characters(codec=None), max_size=4) | st.sampled_from(["\0", "\n", "\ud800", "\\u", '"', "é"])


@given(
    calls=st.lists(st.tuples(st.integers(-9, 9), st.text("ab", max_size=3), st.booleans()), max_size=4),
    odd=st.tuples(NUMBERS, TEXTS, st.booleans())
    | st.tuples(st.booleans(), TEXTS, st.integers(0, 1))
    | st.tuples(NUMBERS, st.none(), st.booleans())
    | st.tuples(st.floats(), TEXTS, st.booleans())
    | st.lists(st.integers(0, 1), max_size=4).map(tuple)
    | st.fixed_dictionaries({"number": NUMBERS, "text": TEXTS, "flag": st.booleans()}),
    place=st.integers(0, 4),
)
def test_many_calls_become_what_each_of_them_would(calls: list[Any], odd: Any, place: int) -> None:
    calls.insert(place, odd)
    maker = made(plain).maker()
    answers = [_answer(maker.one, *((call, {}) if isinstance(call, tuple) else ((), call))) for call in calls]
    refusals = [(answer, index) for index, answer in enumerate(answers) if isinstance(answer, tuple)]
    if refusals:
        with pytest.raises(RopewayError) as error:
            maker.many(calls)
        assert ((error.value.code, error.value.message), error.value.index) == refusals[0]
    else:
        assert list(maker.many(calls)) == answers


def _answer(make: Callable[..., NewJob], *call: Any) -> NewJob | tuple[str, str]:
    try:
        return make(*call)
    except RopewayError as error:
        return error.code, error.message


def test_many_plain_calls_share_what_they_have_in_common() -> None:
    jobs = made(plain).maker({"queue": "q", "delay": 5.0}).many((n, "é\n", n > 1) for n in range(3))
    assert isinstance(jobs, Alike)
    assert jobs.model == NewJob("plain", queue="q", delay=5.0)
    assert [json.loads(payload) for payload in jobs.payloads] == [
        {"number": n, "text": "é\n", "flag": n > 1} for n in range(3)
    ]


def test_a_payload_that_no_setting_allows_is_refused_among_many() -> None:
    calls = [(1, "", True), (2, "x" * LARGEST_PAYLOAD, True)]
    with pytest.raises(PayloadError) as error:
        made(plain).maker().many(calls)
    assert (error.value.code, error.value.index) == ("payload_too_large", 1)


def test_parameters_may_have_any_name_in_many_calls() -> None:
    def odd(größe: int, a0: int, self_: str) -> None: ...

    maker = made(odd).maker()
    (job,) = maker.many([(1, 2, "x")])
    assert job == maker.one((1, 2, "x"), {}) == NewJob("odd", '{"größe":1,"a0":2,"self_":"x"}'.encode())


def test_a_key_made_of_the_arguments_differs_from_call_to_call() -> None:
    jobs = made(plain, key=lambda number, text, flag: f"k{number}").maker().many([(1, "", True), (2, "", True)])
    assert [job.idempotency_key for job in jobs] == ["k1", "k2"]


@pytest.mark.parametrize("kind", [dict[str, int], Any, list[dict[str, int]], msgspec.Raw, list[list[int]]])
def test_what_may_hold_an_object_is_not_flat(kind: Any) -> None:
    def one(value: Any) -> None: ...

    one.__annotations__["value"] = kind
    assert not made(one).arguments.flat


def test_the_kind_comes_from_the_function() -> None:
    def blocking() -> None: ...

    assert [made().kind, made(blocking).kind, made(blocking, process=True).kind] == ["async", "thread", "process"]


# ── Results ──


@dataclasses.dataclass
class Point:
    x: int


def test_results_come_back_as_announced() -> None:
    def task() -> list[Point]: ...  # type: ignore[empty-body]

    spec = made(task)
    assert spec.decode_result(spec.encode_result([Point(1)])) == [Point(1)]
    assert spec.encode_result(None) is None
    assert spec.decode_result(None) is None
    with pytest.raises(msgspec.ValidationError):
        spec.decode_result(b'"x"')


def test_a_task_that_returns_nothing_may_have_a_result_by_finish() -> None:
    def task() -> None: ...

    assert made(task).decode_result(b'{"sent": 3}') == {"sent": 3}


class Nasty:
    def __repr__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (object, "<class 'object'>"),
        ({"a": {1j}}, "{'a': {1j}}"),
        ("\ud800", "'\\ud800'"),
        (Nasty(), "<Nasty>"),
    ],
)
def test_a_result_without_a_form_in_json_becomes_text(value: Any, stored: str) -> None:
    data = made().encode_result(value)
    assert data is not None
    assert json.loads(data) == stored


def test_an_announced_type_without_a_form_in_json_is_as_none() -> None:
    def task() -> complex: ...  # type: ignore[empty-body]

    spec = made(task)
    assert spec.decode_result(spec.encode_result(1j)) == "1j"


# ── Failures ──


def raised(error: BaseException) -> BaseException:
    def handler() -> None:
        raise error

    try:
        handler()
    except BaseException as caught:  # noqa: BLE001
        return caught
    raise AssertionError


def test_any_exception_is_tried_again_by_default() -> None:
    failed = made().failure(raised(ValueError("no")))
    assert failed.retry
    assert (failed.error.type, failed.error.message) == ("ValueError", "no")
    assert failed.error.traceback is not None
    assert "in handler\n    raise error\nValueError: no" in failed.error.traceback


@pytest.mark.parametrize(
    ("options", "error", "again"),
    [
        ({"retry_on": OSError}, ConnectionError(), True),
        ({"retry_on": OSError}, ValueError(), False),
        ({"retry_on": (OSError, ValueError)}, ValueError(), True),
        ({"give_up_on": OSError}, ConnectionError(), False),
        ({"give_up_on": [OSError]}, ValueError(), True),
        ({"retry_on": OSError, "give_up_on": ConnectionError}, ConnectionError(), False),
        ({"retry_on": OSError, "give_up_on": ConnectionError}, FileNotFoundError(), True),
        ({}, KeyboardInterrupt(), True),
    ],
)
def test_retry_on_and_give_up_on(options: dict[str, Any], error: BaseException, again: bool) -> None:
    failed = made(**options).failure(error)
    assert failed.retry is again
    assert failed.reason is DeadReason.REJECTED


def test_bad_arguments_are_given_up() -> None:
    failed = made().failure(BadArguments("welcome(): argument 'user_id' is missing"))
    assert (failed.retry, failed.reason, failed.error.type) == (False, DeadReason.REJECTED, "bad_arguments")
    assert failed.error.traceback is None


def test_errors_that_cannot_be_shown_are_stored_all_the_same() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("even this")

    failed = failure(Broken())
    assert failed.error.type.endswith("Broken")
    assert failed.error.message == "(Broken could not be shown)"


def test_a_foreign_exception_is_named_with_its_module() -> None:
    assert failure(json.JSONDecodeError("x", "y", 0)).error.type == "json.decoder.JSONDecodeError"
    assert failure(FieldError("x")).error.type == "FieldError"


# ── Names ──


def test_a_name_belongs_to_one_function() -> None:
    registry = Registry()
    registry.add(made())
    with pytest.raises(ConfigurationError) as error:
        registry.add(made())
    place = f"{__file__}:{welcome.__code__.co_firstlineno}"
    assert str(error.value).startswith(f"two tasks are named 'welcome': {place} and {place}")


def test_an_unknown_name_says_what_may_have_been_meant() -> None:
    registry = Registry()
    assert "no task is declared here" in str(registry.unknown("welcome"))
    for name in ("welcome", "goodbye"):
        registry.add(made(name=name))
    assert registry.names() == ["goodbye", "welcome"]
    assert [spec.name for spec in registry] == ["welcome", "goodbye"]
    assert registry.get("welcome") is not None
    assert registry.get("welcom") is None
    assert registry.near("welcom") == ["welcome"]
    assert "(did you mean welcome?)" in str(registry.unknown("welcom"))
    assert "(declared here: goodbye, welcome)" in str(registry.unknown("zzz"))
    failed = unknown_task(registry.unknown("zzz"))
    assert (failed.retry, failed.error.type) == (True, UnknownTask.code)


# ── The handler's context ──

JOB = Job(
    uuid4(),
    "default",
    "t",
    "default",
    State.RUNNING,
    5,
    b"{}",
    3,
    1,
    5,
    run_at=NOW,
    created_at=NOW,
    updated_at=NOW,
)


class Backend:
    def __init__(self) -> None:
        self.told: list[Any] = []
        self.is_cancelled = False

    def progress(self, progress: Progress) -> None:
        self.told.append(progress)

    def log(self, level: str, text: str) -> None:
        self.told.append((level, text))

    def cancelled(self) -> bool:
        return self.is_cancelled

    def transaction(self, finish: Any) -> Any:
        told = self.told

        class Block:
            async def __aenter__(self) -> str:
                return "connection"

            async def __aexit__(self, kind: Any, *rest: object) -> None:
                told.append(("rolled back", None) if kind else ("committed", finish()))

        return Block()


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def context(backend: Backend) -> JobContext:
    return JobContext(JOB, backend, SimpleNamespace(pool="p"))


def test_a_context_tells_and_passes_on(context: JobContext, backend: Backend) -> None:
    assert (context.job, context.attempt, context.key, context.state.pool) == (JOB, 3, str(JOB.id), "p")
    assert JobContext(msgspec.structs.replace(JOB, idempotency_key="k"), backend, SimpleNamespace()).key == "k"
    context.progress(1, 2, "half")
    context.log("hello")
    context.log("careful", "warning")
    assert backend.told == [Progress(1, 2, "half"), ("info", "hello"), ("warning", "careful")]
    with pytest.raises(FieldError, match="unknown level 'loud'"):
        context.log("x", "loud")  # type: ignore[arg-type]
    assert not context.cancelled
    backend.is_cancelled = True
    assert context.cancelled


def test_signals_pass_through_except_exception(context: JobContext) -> None:
    assert not issubclass(JobSignal, Exception)
    with pytest.raises(SnoozeJob) as snoozed:
        context.snooze(timedelta(minutes=1))
    assert snoozed.value.outcome() == Snoozed(delay=60.0)
    with pytest.raises(SnoozeJob) as snoozed:
        context.snooze(run_at=NOW)
    assert snoozed.value.outcome() == Snoozed(run_at=NOW)
    with pytest.raises(RetryJob) as again:
        context.retry(after=5, message="busy")
    outcome = again.value.outcome()
    assert isinstance(outcome, Failed)
    assert (outcome.retry, outcome.retry_after, outcome.error.message) == (True, 5.0, "busy")
    with pytest.raises(DiscardJob) as given_up:
        context.discard("no such user")
    outcome = given_up.value.outcome()
    assert isinstance(outcome, Failed)
    assert (outcome.retry, outcome.error.type, outcome.error.message) == (False, "discarded", "no such user")


NAIVE = NOW.replace(tzinfo=None)


@pytest.mark.parametrize("arguments", [{}, {"delay": 1, "run_at": NOW}, {"delay": -1}, {"run_at": NAIVE}])
def test_a_snooze_needs_one_time(context: JobContext, arguments: dict[str, Any]) -> None:
    with pytest.raises(FieldError):
        context.snooze(**arguments)


async def test_a_transaction_completes_the_job_once(context: JobContext, backend: Backend) -> None:
    with pytest.raises(UsageError, match="belongs inside"):
        context.finish(1)
    async with context.transaction() as connection:
        assert connection == "connection"
        context.finish({"a": 1})
    assert backend.told == [("committed", {"a": 1})]
    with pytest.raises(UsageError, match="belongs inside"):
        context.finish(2)
    with pytest.raises(UsageError, match="already had its transaction"):
        async with context.transaction():
            pass


async def test_an_exception_rolls_back(context: JobContext, backend: Backend) -> None:
    with pytest.raises(ValueError, match="no"):
        async with context.transaction():
            raise ValueError("no")
    assert backend.told == [("rolled back", None)]


# ── Middleware ──


class Noting(Middleware):
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    async def enqueue(self, job: NewJob, call_next: Any) -> Any:
        self.notes.append(f"{self.name} in")
        answer = await call_next(msgspec.structs.replace(job, tags=(*job.tags, self.name)))
        self.notes.append(f"{self.name} out")
        return answer

    async def run(self, ctx: JobContext, call_next: Any) -> Any:
        self.notes.append(f"{self.name} runs {ctx.job.type}")
        return f"{self.name}({await call_next()})"


async def test_the_first_middleware_is_the_outermost(context: JobContext) -> None:
    notes: list[str] = []
    middlewares = [Noting("a", notes), Middleware(), Noting("b", notes)]

    async def store(job: NewJob) -> Any:
        notes.append("store")
        return job.tags

    assert await wrap_enqueue(middlewares, store)(NewJob("t")) == ("a", "b")
    assert notes == ["a in", "b in", "store", "b out", "a out"]

    async def handler() -> str:
        return "done"

    wrapped = wrap_run(middlewares)
    assert wrapped is not None
    assert await wrapped(context, handler) == "a(b(done))"


async def test_middleware_that_overrides_nothing_costs_nothing(context: JobContext) -> None:
    class Silent(Middleware):
        pass

    async def store(job: NewJob) -> None: ...

    assert wrap_run([Silent(), Middleware()]) is None
    assert wrap_run([]) is None
    assert wrap_enqueue([Silent()], store) is store
    assert await Middleware().run(context, lambda: store(NewJob("t"))) is None
