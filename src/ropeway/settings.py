"""Every setting: its type, its default and one sentence.

A value comes from the first of these that has one: a flag, the environment (`ROPEWAY_` + the name in capitals),
`[tool.ropeway]` in pyproject.toml (the name), the default. docs/settings.md lists them; a test compares.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from ropeway.core.errors import ConfigurationError
from ropeway.core.redact import MASK, hide_password

__all__ = ["Settings", "default_of", "describe", "hide_password", "is_secret", "setting_names", "variable_of"]

PREFIX = "ROPEWAY_"

_NONE: Mapping[str, Any] = MappingProxyType({})

# ── The kinds of value, each with the words an error uses for it ──

_A_YEAR = 366 * 86400
_LONGEST_KEEP = 100 * _A_YEAR

Url = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z][a-z0-9+.-]*://",
        extra={
            "expected": "a URL such as sqlite:///ropeway.db or postgresql://user@host/database",
            "secret": True,
        },
    ),
]
SchemaName = Annotated[
    str,
    msgspec.Meta(
        # A leading pg_ is PostgreSQL's own.
        pattern=r"^(?!pg_)[a-z_][a-z0-9_]{0,62}\Z",
        extra={"expected": "a schema name: small letters, digits and _, at most 63, not starting with pg_"},
    ),
]
Durability = Annotated[Literal["full", "relaxed"], msgspec.Meta(extra={"expected": "full or relaxed"})]
Switch = Annotated[bool, msgspec.Meta(extra={"expected": "1, 0, true or false"})]
AppPath = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[^:\n]+(:[A-Za-z_][A-Za-z0-9_]*)?\Z",
        extra={"expected": "a file or module such as tasks.py, package.tasks or package.tasks:app"},
    ),
]
Host = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[^\s/]+\Z", extra={"expected": "a host name or address such as 127.0.0.1, 0.0.0.0 or ::"}
    ),
]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535, extra={"expected": "a port from 0 (any free one) to 65535"})]
PortOrOff = Annotated[
    int,
    msgspec.Meta(ge=-1, le=65_535, extra={"expected": "a port up to 65535, 0 (any free one) or -1 (off)"}),
]
HostNames = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9._\[\]:-]+(,[A-Za-z0-9._\[\]:-]+)*\Z",
        extra={"expected": "host names with commas between them, such as jobs.example.com,jobs.internal"},
    ),
]
PathPrefix = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+\Z",
        max_length=200,
        extra={"expected": "a path such as /tools/ropeway, without a slash at its end"},
    ),
]
File = Annotated[
    str, msgspec.Meta(min_length=1, pattern=r"^[^\n\0]+\Z", extra={"expected": "the path of a file in PEM form"})
]
Token = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^rw_[!-~]{1,200}\Z",
        extra={"expected": "an API key as `ropeway keys create` shows it", "secret": True, "hidden": True},
    ),
]
LogLevel = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
    msgspec.Meta(extra={"expected": "DEBUG, INFO, WARNING, ERROR or CRITICAL", "written_in": "capitals"}),
]
LogFormat = Annotated[Literal["auto", "json", "text"], msgspec.Meta(extra={"expected": "auto, json or text"})]


def _says(text: str) -> msgspec.Meta:
    return msgspec.Meta(description=text)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings, valid and complete; make one with `Settings.load`.

    `sources` tells for each name where its value came from, in words fit to show: "default", "--url",
    "ROPEWAY_URL", "pyproject.toml [tool.ropeway] url". Passwords inside URLs appear neither in `repr` nor in
    errors; `shown()` is the way to print values.
    """

    url: Annotated[Url, _says("Where jobs are kept: the engine, chosen by the URL's scheme.")] = (
        "sqlite:///ropeway.db"
    )
    schema: Annotated[SchemaName, _says("The PostgreSQL schema that holds Ropeway's tables and functions.")] = (
        "ropeway"
    )
    listen_url: Annotated[
        Url | None,
        _says("A direct PostgreSQL connection for wake-ups, needed when `url` goes through a transaction pooler."),
    ] = None
    durability: Annotated[
        Durability,
        _says("`full` refuses a store that may lose accepted jobs in a crash; `relaxed` accepts it and says so."),
    ] = "full"
    app: Annotated[
        AppPath | None,
        _says("Where the tasks are, for commands that need them: a file, a module, or a module and a name in it."),
    ] = None
    concurrency: Annotated[
        int, msgspec.Meta(ge=1, le=10_000), _says("Jobs that one worker process runs at once.")
    ] = 100
    job_timeout: Annotated[
        float,
        msgspec.Meta(ge=1, le=86_400),
        _says("How long a job may run, in seconds, unless its task or the job itself says otherwise."),
    ] = 3600.0
    drain_seconds: Annotated[
        float,
        msgspec.Meta(ge=0, le=86_400),
        _says("How long a worker that was asked to stop lets running jobs finish before it gives them back."),
    ] = 25.0
    lease_seconds: Annotated[
        float,
        msgspec.Meta(ge=1, le=43_200),
        _says("How long a worker owns a job without a sign of life before others may run it."),
    ] = 30.0
    poll_seconds: Annotated[
        float,
        msgspec.Meta(ge=0.01, le=3600),
        _says("How often an idle worker looks for jobs when no wake-up arrives."),
    ] = 1.0
    retry_base: Annotated[float, msgspec.Meta(ge=0, le=_A_YEAR), _says("Seconds before the first retry.")] = 5.0
    retry_factor: Annotated[
        float, msgspec.Meta(ge=1, le=100), _says("What each further retry's delay is multiplied by.")
    ] = 2.0
    retry_cap: Annotated[
        float, msgspec.Meta(ge=0, le=_A_YEAR), _says("The longest delay before a retry, in seconds.")
    ] = 1800.0
    retry_jitter: Annotated[
        float,
        msgspec.Meta(ge=0, le=1),
        _says("The share of a delay by which it is varied at random, up and down, so that retries spread out."),
    ] = 0.25
    retry_max_attempts: Annotated[
        int, msgspec.Meta(ge=1, le=25), _says("Runs a job gets at most, unless it says otherwise itself.")
    ] = 5
    crash_limit: Annotated[
        int,
        msgspec.Meta(ge=1, le=1000),
        _says("How often a job may lose its worker before it is dead, whatever attempts it has left."),
    ] = 3
    ageing_seconds: Annotated[
        float,
        msgspec.Meta(ge=0.001, le=_A_YEAR),
        _says("For each such time a priority's oldest job has waited, that priority is served one step earlier."),
    ] = 60.0
    idempotency_ttl: Annotated[
        float,
        msgspec.Meta(ge=1, le=_LONGEST_KEEP),
        _says("How long, in seconds, an idempotency key answers with the job it first made."),
    ] = 86_400.0
    keep_succeeded: Annotated[
        float, msgspec.Meta(ge=0, le=_LONGEST_KEEP), _says("Seconds a succeeded job is kept.")
    ] = 86_400.0
    keep_cancelled: Annotated[
        float, msgspec.Meta(ge=0, le=_LONGEST_KEEP), _says("Seconds a cancelled job is kept.")
    ] = 604_800.0
    keep_dead: Annotated[
        float, msgspec.Meta(ge=0, le=_LONGEST_KEEP), _says("Seconds a dead job is kept, ready to be redriven.")
    ] = 1_209_600.0
    keep_events: Annotated[
        float,
        msgspec.Meta(ge=0, le=_LONGEST_KEEP),
        _says("Seconds the history of jobs is kept; raised to the longest that jobs are kept if less."),
    ] = 1_209_600.0
    keep_actions: Annotated[
        float,
        msgspec.Meta(ge=0, le=_LONGEST_KEEP),
        _says("Seconds it is kept what operators did (`ropeway audit`)."),
    ] = 7_776_000.0
    max_payload_bytes: Annotated[
        int, msgspec.Meta(ge=1, le=1 << 28), _says("The largest payload or result accepted, in bytes of JSON.")
    ] = 1_048_576
    reaper: Annotated[
        Switch,
        _says("Whether this process takes back lost jobs, ends overdue ones and removes what is no longer kept."),
    ] = True
    reaper_interval: Annotated[
        float, msgspec.Meta(ge=0.01, le=3600), _says("Seconds between two looks for lost and overdue jobs.")
    ] = 1.0
    dispatcher: Annotated[Switch, _says("Whether this process fires recurring schedules.")] = True
    dispatcher_interval: Annotated[
        float, msgspec.Meta(ge=0.01, le=3600), _says("Seconds between two looks for schedules that are due.")
    ] = 1.0
    host: Annotated[Host, _says("The address that Ropeway's HTTP ports listen on; 0.0.0.0 is all of them.")] = (
        "127.0.0.1"
    )
    port: Annotated[Port, _says("The port of `ropeway server`; 0 takes any free one.")] = 8000
    host_names: Annotated[
        HostNames | None,
        _says("Names besides localhost and the address itself that requests may call the server by."),
    ] = None
    behind_proxy: Annotated[
        Switch,
        _says("Whether a proxy in front speaks TLS, so that the server may listen beyond this host without it."),
    ] = False
    path_prefix: Annotated[
        PathPrefix | None,
        _says("The path under which a proxy shows the server, when it passes paths on as they came."),
    ] = None
    tls_cert: Annotated[File | None, _says("The server's certificate chain; with `tls_key` it speaks HTTPS.")] = (
        None
    )
    tls_key: Annotated[File | None, _says("The private key of `tls_cert`.")] = None
    token: Annotated[
        Token | None, _says("The API key that workers, clients and commands send to a Ropeway server.")
    ] = None
    compat: Annotated[
        Switch, _says("Whether the server also answers the older paths that docs/http.md lists.")
    ] = False
    age_target: Annotated[
        float,
        msgspec.Meta(ge=0.001, le=_A_YEAR),
        _says("Seconds that a job which could run may wait before the dashboard says that its queue is late."),
    ] = 60.0
    max_waiting: Annotated[
        int,
        msgspec.Meta(ge=1, le=1_000_000),
        _says("Long polls and streams that one server holds open at once; a tenant gets three quarters of them."),
    ] = 20_000
    tenant_rate: Annotated[
        float,
        msgspec.Meta(ge=0.001, le=1e9),
        _says(
            "Requests per second that a tenant may make, unless it has a limit of its own; a job counts as one."
        ),
    ] = 10_000.0
    tenant_burst: Annotated[
        int, msgspec.Meta(ge=1, le=2**53), _says("Requests that a tenant may make at once after a quiet time.")
    ] = 20_000
    tenant_max_queued: Annotated[
        int, msgspec.Meta(ge=1, le=2**53), _says("Jobs that a tenant may have waiting, in all its queues.")
    ] = 10_000_000
    tenant_max_leases: Annotated[
        int, msgspec.Meta(ge=1, le=2**53), _says("Jobs that a tenant's workers may hold at once.")
    ] = 100_000
    worker_http_port: Annotated[
        PortOrOff,
        _says("A worker's port for /health, /ready and /metrics: 0 takes any free one, -1 switches it off."),
    ] = 9091
    metrics_port: Annotated[
        Port | None,
        _says(
            "The same for `ropeway upkeep`, and for `ropeway server`, there on loopback only; none: no such port."
        ),
    ] = None
    log_level: Annotated[LogLevel, _says("The least urgent level that is logged.")] = "INFO"
    log_format: Annotated[
        LogFormat,
        _says("`json` is one object per line, `text` is for people, `auto` is text on a terminal only."),
    ] = "auto"

    sources: Mapping[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        # A job must not outlive its own history, however the settings were made.
        longest = max(("keep_succeeded", "keep_cancelled", "keep_dead"), key=lambda name: getattr(self, name))
        if self.keep_events < getattr(self, longest):
            source = self.sources.get("keep_events", "default")
            msgspec.structs.force_setattr(self, "keep_events", getattr(self, longest))
            sources = {**self.sources, "keep_events": f"{source}, raised to {longest}"}
            msgspec.structs.force_setattr(self, "sources", sources)

    @classmethod
    def load(
        cls,
        flags: Mapping[str, object] = _NONE,
        environ: Mapping[str, str] = os.environ,
        pyproject: Path | None = Path("pyproject.toml"),
    ) -> Settings:
        """The settings in force: flag > environment > [tool.ropeway] in pyproject.toml > default.

        A flag that is None and a variable that is empty count as not given; a pyproject.toml that is not there
        as empty. Names may be written with - for _. Raises ConfigurationError, naming the setting, where its
        value came from and what is expected. Variables of other names are other people's and are not looked at.
        """
        names = setting_names()
        given_flags = _known(flags, names, where="flags")
        in_file = _known(_tool_table(pyproject), names, where=f"{pyproject} [tool.ropeway]")
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for name in names:
            if given_flags.get(name) is not None:
                raw, source = given_flags[name], f"--{name.replace('_', '-')}"
            elif environ.get(variable_of(name)):
                raw, source = environ[variable_of(name)], variable_of(name)
            elif name in in_file:
                raw, source = in_file[name], f"{pyproject} [tool.ropeway] {name}"
            else:
                sources[name] = "default"
                continue
            values[name] = _parse(name, raw, source)
            sources[name] = source
        return cls(**values, sources=sources)

    def shown(self) -> dict[str, object]:
        """Every setting by name, passwords hidden: safe to print or log."""
        return {name: _shown(name, getattr(self, name)) for name in setting_names()}

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.shown().items())
        return f"Settings({inside})"


def setting_names() -> tuple[str, ...]:
    """The settings, in the order in which people are shown them."""
    return tuple(name for name in Settings.__struct_fields__ if name != "sources")


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def describe(name: str) -> str:
    """The one sentence about a setting."""
    return next(meta.description for meta in _metas(_types()[name]) if meta.description)


def default_of(name: str) -> object:
    """What a setting is when nobody sets it."""
    return next(field.default for field in msgspec.structs.fields(Settings) if field.name == name)


def is_secret(name: str) -> bool:
    """Whether a setting's value may hold a password; `Settings.shown` hides that part of it."""
    return bool(_extra(name, "secret"))


# ── How a value is read ──


def _known(given: Mapping[str, object], names: tuple[str, ...], *, where: str) -> dict[str, object]:
    known: dict[str, object] = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else "docs/settings.md lists all settings"
            raise ConfigurationError(f"unknown setting {key!r} in {where}", hint=hint)
        known[name] = value
    return known


def _tool_table(pyproject: Path | None) -> Mapping[str, object]:
    if pyproject is None:
        return {}
    try:
        document = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{pyproject} cannot be read: {error}") from error
    tool = document.get("tool", {})
    table = tool.get("ropeway", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise ConfigurationError(f"{pyproject}: tool.ropeway is {type(table).__name__}, expected a table")
    return table


def _parse(name: str, raw: object, source: str) -> Any:
    written = raw.upper() if isinstance(raw, str) and _extra(name, "written_in") == "capitals" else raw
    try:
        # strict=False reads numbers from the text of a variable; bounds and patterns are in the type.
        return msgspec.convert(written, _types()[name], strict=False)
    except msgspec.ValidationError as error:
        # A URL that is not one may be anything, so nobody can tell which part of it is the password.
        value = "the value (not shown: it may hold a password)" if is_secret(name) else repr(raw)
        raise ConfigurationError(
            f"{name}: {value} from {source} is not valid: expected {_expected(name)}"
        ) from error


def _expected(name: str) -> str:
    if expected := _extra(name, "expected"):
        return str(expected)
    metas = _metas(_types()[name])
    kind = "a whole number" if isinstance(default_of(name), int) else "a number"
    low = next(meta.ge for meta in metas if meta.ge is not None)
    high = next(meta.le for meta in metas if meta.le is not None)
    return f"{kind} from {low:g} to {high}"


def _extra(name: str, key: str) -> object:
    """What the type of a setting says about itself under `key`, or None."""
    return next((meta.extra[key] for meta in _metas(_types()[name]) if meta.extra and key in meta.extra), None)


@lru_cache
def _types() -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(Settings)}


def _metas(kind: Any) -> list[msgspec.Meta]:
    """Everything written into a type, also into the members of a union."""
    if get_origin(kind) is Annotated:
        base, *notes = get_args(kind)
        return [note for note in notes if isinstance(note, msgspec.Meta)] + _metas(base)
    return [meta for part in get_args(kind) for meta in _metas(part)]


def _shown(name: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    return MASK if _extra(name, "hidden") else hide_password(value)
