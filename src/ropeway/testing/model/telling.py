"""Differences, as a person would tell them: a whole job is thirty fields, and one of them is wrong."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec


def said(value: object) -> str:
    """A record as a person would write it: what it leaves at its default is not said."""
    if isinstance(value, msgspec.Struct):
        told = (
            f"{field.name}={said(getattr(value, field.name))}"
            for field in msgspec.structs.fields(value)
            if getattr(value, field.name) != field.default
        )
        return f"{type(value).__name__}({', '.join(told)})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(said, value))}]"
    if isinstance(value, UUID) and value.int < 1_000_000:
        return f"job {value.int}"
    return str(value) if isinstance(value, StrEnum | datetime) else repr(value)


def compare(what: str, got: object, expected: object) -> None:
    """Fail with the difference alone: a whole job is thirty fields."""
    if got != expected:
        raise AssertionError(f"{what}:\n" + "\n".join(_differences("", got, expected)))


def _differences(path: str, got: object, expected: object) -> list[str]:
    if got == expected:
        return []
    if isinstance(got, list | tuple) and isinstance(expected, list | tuple):
        lines = [
            line
            for index, pair in enumerate(zip(got, expected, strict=False))
            for line in _differences(f"{path}[{index}]", *pair)
        ]
        both = min(len(got), len(expected))
        lines += [f"  {path}[{index}] should not be there: {said(got[index])}" for index in range(both, len(got))]
        return lines + [
            f"  {path}[{index}] is missing: {said(expected[index])}" for index in range(both, len(expected))
        ]
    if isinstance(got, msgspec.Struct) and type(got) is type(expected):
        return [
            line
            for name in got.__struct_fields__
            for line in _differences(f"{path}.{name}", getattr(got, name), getattr(expected, name))
        ]
    return [f"  {path or 'it'} is {said(got)}, not {said(expected)}"]
