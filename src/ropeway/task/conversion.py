"""Between Python values and JSON, by annotation: msgspec, with hooks for pydantic's models.

pydantic is never imported here: its models are known by their attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from ropeway.core.errors import ConfigurationError


def is_pydantic_model(kind: Any) -> bool:
    return (
        isinstance(kind, type) and hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate_json")
    )


def _to_json(value: Any) -> Any:
    if is_pydantic_model(type(value)):
        return msgspec.Raw(value.model_dump_json(by_alias=True, round_trip=True).encode())
    raise TypeError(f"{type(value).__qualname__} has no form in JSON")


def _from_json(kind: type, value: Any) -> Any:
    if is_pydantic_model(kind):
        try:
            # As JSON, because a strict model takes a time from JSON as text, but not from Python.
            return kind.model_validate_json(msgspec.json.encode(value))  # type: ignore[attr-defined]
        except ValueError as error:
            raise ValueError(_one_line(error)) from None
    if kind is object:
        return value
    raise TypeError(f"{kind.__qualname__} has no form in JSON")


def _one_line(error: ValueError) -> str:
    """pydantic's many lines as one."""
    if not hasattr(error, "errors"):
        return str(error)
    flaws = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, flaw['loc']))}: {flaw['msg']}".lstrip(": ") for flaw in flaws)


_encoder = msgspec.json.Encoder(enc_hook=_to_json)
#: A value as JSON. Raises TypeError, OverflowError, RecursionError or a ValueError for what JSON has no form for.
to_json = _encoder.encode
#: Many values, each on a line that it alone ends.
lines_of_json = _encoder.encode_lines
#: What such an encoder may raise.
ENCODING_ERRORS = (TypeError, ValueError, OverflowError, RecursionError)


def decoder_of(annotation: Any, what: str) -> msgspec.json.Decoder[Any]:
    """What reads a value of this type from JSON. Raises ConfigurationError, saying `what` it was for."""
    try:
        for custom in _custom_types(msgspec.inspect.type_info(annotation)):
            if custom is not object and not is_pydantic_model(custom):
                raise ConfigurationError(
                    f"{what}: {custom.__qualname__} has no form in JSON",
                    hint="use plain types, dataclasses, enums, UUIDs, times or pydantic models",
                )
        return msgspec.json.Decoder(annotation, dec_hook=_from_json)
    except (TypeError, NameError) as error:
        raise ConfigurationError(f"{what}: {error}") from None


def struct_decoder(kind: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=_from_json)


#: Types whose JSON has no object inside.
_FLAT = (
    msgspec.inspect.IntType,
    msgspec.inspect.StrType,
    msgspec.inspect.FloatType,
    msgspec.inspect.BoolType,
    msgspec.inspect.NoneType,
    msgspec.inspect.UUIDType,
    msgspec.inspect.DateTimeType,
    msgspec.inspect.DateType,
)


def is_flat(annotation: Any) -> bool:
    """Whether values of this type are single ones, or lists of such."""
    return _flat_node(msgspec.inspect.type_info(annotation))


def _flat_node(node: msgspec.inspect.Type) -> bool:
    if isinstance(node, msgspec.inspect.ListType):
        return isinstance(node.item_type, _FLAT)
    if isinstance(node, msgspec.inspect.UnionType):
        return all(_flat_node(each) for each in node.types)
    return isinstance(node, _FLAT)


def _custom_types(node: Any, seen: set[int] | None = None) -> Iterator[type]:
    """The types in an annotation that msgspec does not know by itself."""
    seen = set() if seen is None else seen
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, msgspec.inspect.CustomType):
        yield node.cls
    elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field):
        for name in node.__struct_fields__:
            yield from _custom_types(getattr(node, name), seen)
    elif isinstance(node, tuple):
        for item in node:
            yield from _custom_types(item, seen)


# ── What comes back ──


class Difference(NamedTuple):
    """Where a value and what comes back for it are not the same, and both of them."""

    where: str
    value: Any
    back: Any


def difference(value: Any, back: Any, where: str = "") -> Difference | None:
    """The first place where what comes back from JSON is another thing than what was given; None if there is none.

    Equal is the same. Objects whose class has no equality of its own are compared by what they hold.
    """
    if value == back:
        return None
    if type(value) is not type(back):
        return Difference(where, value, back)
    if isinstance(value, dict):
        if value.keys() != back.keys():
            strange = next((key for key in value if key not in back), None)
            return Difference(f"{where}{{keys}}", strange, next(iter(back), None))
        pairs: Sequence[tuple[str, Any, Any]] = [(f"{where}[{key!r}]", value[key], back[key]) for key in value]
    elif isinstance(value, list | tuple):
        if len(value) != len(back):
            return Difference(where, value, back)
        pairs = [(f"{where}[{index}]", a, b) for index, (a, b) in enumerate(zip(value, back, strict=True))]
    else:
        names = _fields_of(value)
        pairs = [(f"{where}.{name}", getattr(value, name), getattr(back, name)) for name in names]
        if not names or _has_equality(type(value)):
            found = next((d for place, a, b in pairs if (d := difference(a, b, place))), None)
            return found or Difference(where, value, back)
    return next((found for place, a, b in pairs if (found := difference(a, b, place))), None)


def _has_equality(kind: type) -> bool:
    return any("__eq__" in vars(base) for base in kind.__mro__[:-1])


def _fields_of(value: Any) -> Sequence[str]:
    kind = type(value)
    return tuple(
        getattr(kind, "__struct_fields__", ())
        or getattr(kind, "__dataclass_fields__", ())
        or getattr(kind, "model_fields", ())
    )


# ── msgspec's words in ours ──


class Complaint(NamedTuple):
    """What msgspec says is wrong: with which member (None: the whole), where in it, and the words."""

    name: str | None
    where: str
    words: str


_PLACE = re.compile(r" - at `(?:key in )?\$(?:\.(\w+))?(.*)`\Z", re.DOTALL)
_OF_A_MEMBER = {
    re.compile(r"Object missing required field `(.+)`\Z", re.DOTALL): "is missing",
    re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL): "is not one it takes",
}


def complaint(error: Exception) -> Complaint:
    """A ValidationError or DecodeError taken apart."""
    text = str(error)
    name, where = None, ""
    if place := _PLACE.search(text):
        text, name, where = text[: place.start()], place[1], place[2]
    for form, words in _OF_A_MEMBER.items():
        if member := form.match(text):
            top = member[1] if name is None else name
            return Complaint(top, where if name is None else f"{where}.{member[1]}", words)
    text = text.replace("`", "")
    return Complaint(name, where, f"does not fit: {text[:1].lower()}{text[1:]}")
