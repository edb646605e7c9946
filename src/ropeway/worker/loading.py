"""From what a person types (`tasks.py`, `pkg.tasks`, `pkg.tasks:app`) to a Program."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from ropeway.core.errors import ConfigurationError
from ropeway.worker.program import Program

_loaded: dict[str, Program] = {}


def loaded_program(target: str) -> Program:
    """What this process, or the one that it was forked from, has loaded; else load it. The app may have gone to
    another folder since, where a file's path or a module's name leads nowhere."""
    return _loaded.get(target) or load_program(target)


def load_program(target: str) -> Program:
    """Import the target and return its app's program.

    The folder of a file, and the current folder for a module, are importable, as they are for `python file.py`
    and `python -m module`. Raises ConfigurationError in one line; what the module itself raises while it is
    imported is told with the line of the module that raised it.
    """
    place, _, attribute = target.partition(":")
    module = _import_file(Path(place)) if _is_file(place) else _import_module(place)
    apps = {name: value for name, value in vars(module).items() if _is_app(value)}
    if attribute:
        if attribute not in apps:
            near = difflib.get_close_matches(attribute, apps, n=1)
            raise ConfigurationError(
                f"{place} has no Ropeway app called {attribute!r}",
                hint=f"did you mean {place}:{near[0]}?" if near else _listed(apps),
            )
        return _program(target, apps[attribute])
    distinct = {id(app): name for name, app in reversed(apps.items())}
    if not distinct:
        raise ConfigurationError(f"{place} has no Ropeway app", hint="it needs a line such as: app = Ropeway()")
    if len(distinct) > 1:
        raise ConfigurationError(
            f"{place} has several apps: {', '.join(sorted(distinct.values()))}",
            hint=f"say which: {place}:{min(distinct.values())}",
        )
    return _program(target, apps[next(iter(distinct.values()))])


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place


def _is_app(value: object) -> bool:
    return not isinstance(value, type) and isinstance(getattr(type(value), "program", None), property)


def _program(target: str, app: object) -> Program:
    program = getattr(app, "program")  # noqa: B009 - the app's class is in a room above this one
    if not isinstance(program, Program):
        raise ConfigurationError("the object found is not a Ropeway app")
    _loaded[target] = program
    return program


def _listed(apps: dict[str, object]) -> str:
    return f"it has {', '.join(sorted(apps))}" if apps else "it needs a line such as: app = Ropeway()"


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}", hint="`ropeway init` writes a tasks.py to start with")
    path = path.resolve()
    _importable(path.parent)
    if path.stem in sys.modules and getattr(sys.modules[path.stem], "__file__", None) == str(path):
        return sys.modules[path.stem]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[path.stem]
        raise _failed_import(str(path), error) from error
    return module


def _import_module(name: str) -> ModuleType:
    _importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            hint = (
                f"did you mean {name}.py?" if Path(f"{name}.py").is_file() else "run it where the module is found"
            )
            raise ConfigurationError(f"there is no module {name!r}", hint=hint) from None
        raise _failed_import(name, error) from error
    except BaseException as error:
        raise _failed_import(name, error) from error


def _importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _failed_import(place: str, error: BaseException) -> BaseException:
    if isinstance(error, KeyboardInterrupt):
        return error
    where = ""
    trace = error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not filename.startswith("<frozen") and filename != __file__:
            where = f", {filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        where = f", {error.filename}:{error.lineno}"
    return ConfigurationError(f"{place} cannot be imported: {type(error).__name__}: {error}{where}")
