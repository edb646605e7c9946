"""From a call's arguments to a payload and back: what is kept comes back equal, the rest is refused by name."""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeway.core.errors import BadArguments, ConfigurationError, FieldError
from ropeway.core.job import Job
from ropeway.core.states import State
from ropeway.task.arguments import Arguments
from ropeway.task.context import JobContext

if TYPE_CHECKING:
    from nowhere import Missing

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONTEXT: Any = object()
JOB = Job(
    uuid4(),
    "default",
    "t",
    "default",
    State.RUNNING,
    5,
    b"{}",
    1,
    1,
    5,
    run_at=NOW,
    created_at=NOW,
    updated_at=NOW,
)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.StrEnum):
    LOW = "low"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Fine(Point):
    z: int = 0


@dataclasses.dataclass(eq=False)
class Faceless:
    """Equal only to itself."""

    x: int
    inside: Any = None


class User(pydantic.BaseModel):
    name: str
    born: datetime | None = None


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    at: datetime
    given: str = pydantic.Field("", alias="givenName")


class Secret(pydantic.BaseModel):
    word: pydantic.SecretStr


class Row(NamedTuple):
    a: int
    b: str


class Options(TypedDict):
    dpi: int


def there_and_back(function: Any, *args: Any, **kwargs: Any) -> Any:
    """The arguments a run gets for those of a call."""
    arguments = Arguments.of(function)
    return arguments.bind(arguments.encode(args, kwargs), lambda: CONTEXT, JOB)


def refused(function: Any, *args: Any, **kwargs: Any) -> FieldError:
    with pytest.raises(FieldError) as error:
        Arguments.of(function).encode(args, kwargs)
    assert "\n" not in str(error.value)
    return error.value


def bad(function: Any, payload: bytes) -> BadArguments:
    with pytest.raises(BadArguments) as error:
        Arguments.of(function).bind(payload, lambda: CONTEXT, JOB)
    assert error.value.code == "bad_arguments"
    assert "\n" not in str(error.value)
    return error.value


# ── What is stored ──


def test_positional_arguments_are_stored_by_name_and_defaults_only_when_given() -> None:
    def task(a: int, b: str = "x", *, c: float = 1.5) -> None: ...

    arguments = Arguments.of(task)
    assert arguments.encode((1,), {}) == b'{"a":1}'
    assert arguments.encode((1, "x"), {"c": 2.5}) == b'{"a":1,"b":"x","c":2.5}'
    assert arguments.encode((), {"a": 1}) == b'{"a":1}'
    assert arguments.bind(b'{"a":1}', lambda: CONTEXT, JOB) == ([1, "x"], {"c": 1.5})


def test_no_arguments_are_an_empty_object() -> None:
    def task() -> None: ...

    assert Arguments.of(task).encode((), {}) == b"{}"
    for payload in (b"{}", b" { } ", b"null"):
        assert Arguments.of(task).bind(payload, lambda: CONTEXT, JOB) == ((), {})


def test_a_default_is_the_very_object_of_the_function() -> None:
    shared: list[int] = []

    def task(seen: list[int] = shared) -> None: ...

    ((got,), _) = Arguments.of(task).bind(b"{}", lambda: CONTEXT, JOB)
    assert got is shared


def test_positional_only_parameters() -> None:
    def task(a: int, /, b: int) -> tuple[int, int]:
        return a, b

    args, kwargs = there_and_back(task, 1, b=2)
    assert task(*args, **kwargs) == (1, 2)


def test_keyword_arguments_of_any_name() -> None:
    def task(a: int, **rest: datetime) -> Any: ...

    args, kwargs = there_and_back(task, 1, at=NOW, b=NOW)
    assert (list(args), kwargs) == ([1], {"at": NOW, "b": NOW})
    assert "'at' does not fit: expected datetime, got int" in str(refused(task, 1, at=7))
    assert "'at' does not fit" in str(bad(task, b'{"a":1,"at":7}'))


@pytest.mark.parametrize("name", ["self", "class_", "a0", "__struct_fields__", "type", "ä"])
def test_parameters_may_have_any_name(name: str) -> None:
    names: dict[str, Any] = {}
    exec(f"def task(b: int, {name}: int): return b, {name}", names)
    args, kwargs = there_and_back(names["task"], 1, **{name: 2})
    assert names["task"](*args, **kwargs) == (1, 2)


# ── Conversion ──


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 7),
        (float, 7),
        (bool, True),
        (str, "ä\u2028"),
        (None, None),
        (bytes, b"\x00\xff"),
        (datetime, NOW),
        (datetime, datetime(2026, 1, 1, 12, 30, 15, 123456)),  # noqa: DTZ001
        (datetime, datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Paris"))),
        (date, date(2026, 1, 1)),
        (time, time(12, 30)),
        (timedelta, timedelta(days=3, microseconds=7)),
        (UUID, uuid4()),
        (Decimal, Decimal("10.00000000000000000000000001")),
        (Colour, Colour.RED),
        (Level, Level.LOW),
        (Literal["a", "b"], "b"),
        (Point, Point(1, 2)),
        (Faceless, Faceless(1)),
        (User, User(name="a", born=NOW)),
        (Strict, Strict(at=NOW, givenName="a")),
        (list[User], [User(name="a"), User(name="b")]),
        (User | None, None),
        (dict[str, User], {"a": User(name="a")}),
        (Row, Row(1, "b")),
        (Options, {"dpi": 3}),
        (list[Point], [Point(1), Point(2)]),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (frozenset[str], frozenset({"a"})),
        (dict[int, str], {1: "a"}),
        (dict[UUID, list[date]], {uuid4(): [date(2026, 1, 1)]}),
        (int | None, None),
        (Annotated[int, msgspec.Meta(ge=0)], 3),
        (Any, {"a": [1, 2.5, None, True, "x", {"b": []}]}),
        (object, [1, "a"]),
        (dict, {"a": 1}),
        (list, [1, "a"]),
    ],
)
def test_what_is_given_comes_back(annotation: Any, value: Any) -> None:
    def task(x) -> None: ...  # type: ignore[no-untyped-def]

    task.__annotations__["x"] = annotation
    ((got,), _) = there_and_back(task, value)
    assert type(got) is type(value) or got == value
    assert got == value or vars(got) == vars(value)


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (int, "7", "does not fit: expected int, got str"),
        (int, True, "does not fit: expected int, got bool"),
        (int, 7.5, "does not fit: expected int, got float"),
        (int, NOW, "does not fit: expected int, got datetime"),
        (str, 7, "does not fit: expected str, got int"),
        (str, None, "does not fit: expected str, got None"),
        (str, b"a", "is bytes and would come back as str"),
        (float, float("nan"), "does not fit: expected float, got float"),
        (datetime, "tomorrow", "does not fit"),
        (Colour, "red", "is str and would come back as Colour"),
        (Colour, "blue", "does not fit: invalid enum value 'blue'"),
        (Point, {"x": 1}, "is dict and would come back as Point"),
        (Point, Fine(1, 2, 3), "is Fine and would come back as Point"),
        (User, {"name": "a"}, "is dict and would come back as User"),
        (list[int], (1, 2), "is tuple and would come back as list"),
        (list[int], [1, "a"], "'x[1]' does not fit: expected int, got str"),
        (list[Any], [1, (2,)], "'x[1]' is tuple and would come back as list"),
        (dict[str, Any], {1: 2}, "is int and would come back as str"),
        (Faceless, Faceless(1, (2,)), "'x.inside' is tuple and would come back as list"),
        (Point, Point("a"), "does not fit: expected int, got str"),  # type: ignore[arg-type]
        (Annotated[int, msgspec.Meta(ge=0)], -3, "does not fit: expected int >= 0"),
        (Secret, Secret(word="hush"), "would come back as"),
    ],
)
def test_what_would_not_come_back_is_refused(annotation: Any, value: Any, words: str) -> None:
    def task(x) -> None: ...  # type: ignore[no-untyped-def]

    task.__annotations__["x"] = annotation
    error = refused(task, value)
    assert words in str(error)
    assert "'x" in str(error)
    assert error.pointer == "/payload/x"
    assert "hush" not in str(error)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (NOW, "is datetime and would come back as str (annotate the parameter, x: datetime"),
        ((1, 2), "is tuple and would come back as list"),
        ([{"a": (1,)}], "'x[0]['a']' is tuple"),
        ({1: 2}, "is int and would come back as str"),
        (Level.LOW, "is Level and would come back as str"),
        (uuid4(), "is UUID"),
        (Point(1), "is Point and would come back as dict"),
        (User(name="a"), "is User and would come back as dict"),
        (float("inf"), "is float and would come back as None"),
        ({1, 2}, "is set and would come back as list"),
        (object(), "cannot be kept: object has no form in JSON"),
        ({(1, 2): 3}, "cannot be kept"),
        ("\ud800", "half of a surrogate pair"),
    ],
)
def test_without_an_annotation_only_plain_json_is_taken(value: Any, words: str) -> None:
    def task(x) -> None: ...  # type: ignore[no-untyped-def]

    assert words in str(refused(task, value)).replace('"', "'")


def test_what_contains_itself_is_refused() -> None:
    def task(x: Any) -> None: ...

    endless: list[Any] = []
    endless.append(endless)
    assert "'x' is nested too deeply, or contains itself" in str(refused(task, endless))


def test_a_none_default_allows_none() -> None:
    def task(at: datetime = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert there_and_back(task, None) == ((None,), {})


# ── Wrong calls ──


def test_wrong_calls_name_the_argument() -> None:
    def welcome(user_id: int, name: str = "x") -> None: ...

    assert str(refused(welcome)) == "welcome(): argument 'user_id' is missing"
    assert "'user' is not one it takes (did you mean 'user_id'?)" in str(refused(welcome, 1, user=1))
    assert "'quux' is not one it takes (it takes user_id, name)" in str(refused(welcome, 1, quux=1))
    assert "'user_id' was given twice" in str(refused(welcome, 1, user_id=1))
    assert "takes 2 positional arguments, 3 were given" in str(refused(welcome, 1, "a", 2))


# ── The worker's own parameters ──


def test_context_and_job_are_filled_in_wherever_they_stand() -> None:
    def task(a: int, ctx: JobContext, /, b: int, *, job: Job, c: int = 3) -> Any:
        return a, ctx, b, job, c

    arguments = Arguments.of(task)
    payload = arguments.encode((1, 2), {})
    assert json.loads(payload) == {"a": 1, "b": 2}
    args, kwargs = arguments.bind(payload, lambda: CONTEXT, JOB)
    assert task(*args, **kwargs) == (1, CONTEXT, 2, JOB, 3)
    assert arguments.wants_context


def test_the_context_is_made_only_if_it_is_wanted() -> None:
    def plain(a: int, job: Job) -> None: ...

    def never() -> JobContext:
        raise AssertionError("not wanted")

    args, _ = Arguments.of(plain).bind(b'{"a":1}', never, JOB)
    assert args == [1, JOB]
    assert not Arguments.of(plain).wants_context


def test_an_optional_context_is_one_too() -> None:
    def task(ctx: JobContext | None = None) -> None: ...

    assert Arguments.of(task).bind(b"{}", lambda: CONTEXT, JOB) == ([CONTEXT], {})


def test_they_cannot_be_sent() -> None:
    def task(ctx: JobContext, **rest: Any) -> None: ...

    assert "'ctx' is not one it takes" in str(refused(task, ctx=1))
    assert "'ctx' is filled in by the worker" in str(bad(task, b'{"ctx":1}'))


# ── From JSON ──


def test_an_object_is_keyword_arguments() -> None:
    def task(a: int, b: str = "x") -> None: ...

    assert Arguments.of(task).bind(b' {"b": "y", "a": 1}', lambda: CONTEXT, JOB) == ((1, "y"), {})


def test_any_other_value_goes_to_the_only_parameter() -> None:
    def task(ids: list[int] | None) -> None: ...

    assert Arguments.of(task).bind(b"[1, 2]", lambda: CONTEXT, JOB) == (([1, 2],), {})
    assert Arguments.of(task).bind(b"null", lambda: CONTEXT, JOB) == ((None,), {})
    assert "'ids' does not fit: expected array | null, got int" in str(bad(task, b"7"))
    # An object is keyword arguments even then.
    assert "'a' is not one it takes" in str(bad(task, b'{"a": 1}'))


def test_the_only_parameter_beside_the_workers_own() -> None:
    def task(ctx: JobContext, text: str) -> None: ...

    assert Arguments.of(task).bind(b'"hello"', lambda: CONTEXT, JOB) == ([CONTEXT, "hello"], {})


def test_a_parameter_named_payload_gets_the_whole_value() -> None:
    def task(payload: Any) -> None: ...

    arguments = Arguments.of(task)
    for value in ({"a": 1}, {"payload": 2}, [1], "x", 7, None, True):
        data = arguments.encode((value,), {})
        assert json.loads(data) == value
        assert arguments.bind(data, lambda: CONTEXT, JOB) == ((value,), {})
    assert "'payload' is tuple and would come back as list" in str(refused(task, (1,)))
    assert "'payload' is missing" in str(refused(task))


def test_a_typed_payload() -> None:
    def task(ctx: JobContext, payload: User | None = None) -> None: ...

    assert there_and_back(task, User(name="a")) == ([CONTEXT, User(name="a")], {})
    assert there_and_back(task) == ([CONTEXT, None], {})
    assert "'payload' does not fit: name: Field required" in str(bad(task, b"{}"))


def test_payload_beside_others_is_a_name_like_any_other() -> None:
    def task(payload: int, b: int) -> None: ...

    assert Arguments.of(task).encode((1, 2), {}) == b'{"payload":1,"b":2}'


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"{}", "argument 'a' is missing"),
        (b'{"a": "7"}', "argument 'a' does not fit: expected int, got str"),
        (b'{"a": 1, "c": 2}', "argument 'c' is not one it takes (it takes a, b)"),
        (b'{"a": 1, "b": {"name": 3}}', "argument 'b' does not fit: name: Input should be a valid string"),
        (b"7", "takes an object of arguments, the payload is another JSON value (send {a, b})"),
        (b"null", "takes an object of arguments"),
        (b"{", "the payload does not fit: input data was truncated"),
    ],
)
def test_a_payload_that_does_not_fit(payload: bytes, words: str) -> None:
    def task(a: int, b: User | None = None) -> None: ...

    assert words in str(bad(task, payload))


# ── Declarations ──


def test_star_args_are_refused() -> None:
    def task(*numbers: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"takes \*numbers.*take a list: numbers: list"):
        Arguments.of(task)


def test_annotations_that_have_no_form_in_json_are_refused() -> None:
    def task(stream: complex) -> None: ...

    with pytest.raises(ConfigurationError, match=r"task\(\): parameter 'stream': complex has no form in JSON"):
        Arguments.of(task)

    def nested(streams: dict[str, list[type]]) -> None: ...

    with pytest.raises(ConfigurationError, match="parameter 'streams': type has no form"):
        Arguments.of(nested)


def test_annotations_that_json_cannot_tell_apart_are_refused() -> None:
    def task(when: datetime | str) -> None: ...

    with pytest.raises(ConfigurationError, match=r"parameter 'when': .*more than one str-like type"):
        Arguments.of(task)


def test_annotations_that_cannot_be_resolved_are_refused() -> None:
    def task(x: Missing) -> None: ...

    with pytest.raises(ConfigurationError, match=r"name 'Missing' is not defined \(import or define that name"):
        Arguments.of(task)


def test_local_names_can_be_given() -> None:
    @dataclasses.dataclass
    class Local:
        x: int

    def task(x: Local) -> None: ...

    arguments = Arguments.of(task, {"Local": Local})
    assert arguments.bind(arguments.encode((Local(1),), {}), lambda: CONTEXT, JOB) == ((Local(1),), {})


def test_what_is_no_function_of_ones_own_is_refused() -> None:
    class Holder:
        def method(self, x: int) -> None: ...

    def generator(x: int) -> Any:
        yield x

    async def async_generator(x: int) -> Any:
        yield x

    with pytest.raises(ConfigurationError, match="is a method"):
        Arguments.of(Holder.method)
    for function in (generator, async_generator):
        with pytest.raises(ConfigurationError, match="has a yield"):
            Arguments.of(function)
    with pytest.raises(ConfigurationError, match="Holder is not a function"):
        Arguments.of(Holder)


def test_pydantic_is_not_imported_without_need() -> None:
    import subprocess

    program = (
        "import sys\n"
        "from ropeway.task.arguments import Arguments\n"
        "def task(a: int, b: list[str]): ...\n"
        "Arguments.of(task).encode((1, []), {})\n"
        "assert 'pydantic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# ── Anything at all ──

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(PLAIN, PLAIN)
def test_every_plain_json_value_comes_back(first: Any, second: Any) -> None:
    def task(x, *, y=None) -> None: ...  # type: ignore[no-untyped-def]

    assert there_and_back(task, first, y=second) == ([first], {"y": second})


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.datetimes(timezones=st.just(UTC))),
    st.dictionaries(st.uuids(), st.decimals(allow_nan=False, allow_infinity=False)),
    st.builds(Point, st.integers(0, 9), st.integers(0, 9)) | st.none(),
    st.timedeltas(timedelta(days=-10_000), timedelta(days=10_000)),
    st.binary(),
)
def test_every_typed_value_comes_back(a: int, b: Any, c: Any, d: Any, e: Any, f: Any) -> None:
    def task(
        a: int, b: list[datetime], c: dict[UUID, Decimal], d: Point | None, e: timedelta, f: bytes
    ) -> None: ...

    assert there_and_back(task, a, b, c, d, e, f) == ((a, b, c, d, e, f), {})


@given(st.binary() | PLAIN.map(lambda value: json.dumps(value).encode()))
def test_no_payload_breaks_bind(payload: bytes) -> None:
    def task(a: int, b: User | None = None) -> None: ...

    with suppress(BadArguments):
        Arguments.of(task).bind(payload, lambda: CONTEXT, JOB)
