"""The tasks of one app, by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from ropeway.core.errors import ConfigurationError, UnknownTask
from ropeway.task.spec import TaskSpec


class Registry:
    """Every declared task. A name belongs to one function."""

    def __init__(self) -> None:
        self._specs: dict[str, TaskSpec] = {}

    def add(self, spec: TaskSpec) -> None:
        """Raises ConfigurationError if the name is taken, naming both places."""
        taken = self._specs.get(spec.name)
        if taken is not None:
            raise ConfigurationError(
                f"two tasks are named {spec.name!r}: {taken.place} and {spec.place}",
                hint='give one of them another name: @app.task(name="...")',
            )
        self._specs[spec.name] = spec

    def get(self, name: str) -> TaskSpec | None:
        return self._specs.get(name)

    def names(self) -> list[str]:
        return sorted(self._specs)

    def near(self, name: str) -> list[str]:
        """Names that someone who wrote `name` may have meant, the likeliest first."""
        return difflib.get_close_matches(name[:128], self._specs, n=3)

    def unknown(self, name: str) -> UnknownTask:
        """The error for a name that is not declared here."""
        near = self.near(name)
        if near:
            hint = f"did you mean {near[0]}?"
        elif self._specs:
            hint = f"declared here: {', '.join(self.names()[:10])}{', ...' if len(self._specs) > 10 else ''}"
        else:
            hint = "no task is declared here: is the module with the tasks imported?"
        return UnknownTask(f"no task is named {name[:128]!r}", hint=hint)

    def __iter__(self) -> Iterator[TaskSpec]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)
