"""What a task's function takes: its parameters, their types, and which of them the worker fills in itself."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from ropeway.core.errors import ConfigurationError
from ropeway.core.job import Job
from ropeway.task.context import JobContext

NO_DEFAULT = inspect.Parameter.empty


class Parameter(NamedTuple):
    """One parameter. `role`: a value of the payload, all its other values, or what the worker fills in."""

    name: str
    role: Literal["value", "rest", "context", "job"]
    annotation: Any
    default: Any
    by_keyword: bool

    @property
    def required(self) -> bool:
        return self.role == "value" and self.default is NO_DEFAULT


class Signature(NamedTuple):
    name: str
    parameters: tuple[Parameter, ...]
    returns: Any


def read_signature(function: Callable[..., Any], names: Mapping[str, Any] | None = None) -> Signature:
    """The parameters of a function that becomes a task. `names` are local names that annotations may use.

    Raises ConfigurationError for a function that cannot be a task.
    """
    name = getattr(function, "__name__", type(function).__name__)
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError(f"{name} is not a function", hint="@app.task goes on `def` or `async def`")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{name}() has a yield", hint="a task returns its result; it cannot be a generator"
        )
    hints = _annotations(function, name, names)
    parameters = tuple(
        _parameter(parameter, hints.get(parameter.name, Any), name, index == 0)
        for index, parameter in enumerate(inspect.signature(function).parameters.values())
    )
    return Signature(name, parameters, hints.get("return", Any))


def _annotations(function: Callable[..., Any], name: str, names: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        local = None if names is None else dict(names)
        return typing.get_type_hints(function, localns=local, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"{name}(): an annotation cannot be resolved: {error}",
            hint="import or define that name before the task, not only under TYPE_CHECKING",
        ) from None
    except TypeError as error:
        raise ConfigurationError(f"{name}(): an annotation cannot be resolved: {error}") from None


def _parameter(parameter: inspect.Parameter, annotation: Any, function: str, first: bool) -> Parameter:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        raise ConfigurationError(
            f"{function}() takes *{parameter.name}: arguments are kept by name",
            hint=f"take a list: {parameter.name}: list[...]",
        )
    if first and parameter.name in ("self", "cls") and annotation is Any:
        raise ConfigurationError(
            f"{function}() is a method, a task needs no object", hint="make it a function or a staticmethod"
        )
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return Parameter(parameter.name, "rest", _plain(annotation), NO_DEFAULT, by_keyword=True)
    if parameter.default is None and annotation is not Any:
        annotation = typing.Optional[annotation]  # noqa: UP045 - `when: datetime = None` means it too
    return Parameter(
        parameter.name,
        _role(annotation),
        _plain(annotation),
        parameter.default,
        by_keyword=parameter.kind is inspect.Parameter.KEYWORD_ONLY,
    )


def _role(annotation: Any) -> Literal["value", "context", "job"]:
    choices = (annotation,)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        choices = typing.get_args(annotation)
    if JobContext in choices:
        return "context"
    return "job" if Job in choices else "value"


def _plain(annotation: Any) -> Any:
    """`object` says as little as nothing."""
    return Any if annotation is object else annotation
