"""Settings: where a value comes from, what is refused and how, and that no password is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ropeway.core.errors import ConfigurationError
from ropeway.settings import Settings, default_of, hide_password, setting_names, variable_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def pyproject(tmp_path: Path) -> Path:
    path = tmp_path / "pyproject.toml"
    path.write_text('[tool.ropeway]\nlease-seconds = 40\npoll_seconds = 4\nschema = "from_file"\n')
    return path


def load(flags: dict[str, object] | None = None, pyproject: Path | None = None, **environ: str) -> Settings:
    variables = {variable_of(name): value for name, value in environ.items()}
    return Settings.load(flags or {}, variables, pyproject)


def test_the_defaults_are_the_promised_ones() -> None:
    settings = load()
    assert settings == Settings(sources=dict.fromkeys(setting_names(), "default"))
    assert settings.url == "sqlite:///ropeway.db"
    assert settings.lease_seconds == 30
    assert (settings.retry_base, settings.retry_factor, settings.retry_cap) == (5, 2, 1800)
    assert (settings.retry_jitter, settings.retry_max_attempts, settings.crash_limit) == (0.25, 5, 3)
    assert (settings.keep_succeeded, settings.keep_cancelled) == (86_400, 604_800)
    assert settings.keep_dead == settings.keep_events == 1_209_600
    assert settings.max_payload_bytes == 1_048_576
    assert (settings.concurrency, settings.drain_seconds, settings.job_timeout) == (100, 25, 3600)
    assert (settings.reaper, settings.reaper_interval) == (True, 1)
    assert (settings.dispatcher, settings.dispatcher_interval) == (True, 1)
    assert (settings.host, settings.log_level, settings.log_format) == ("127.0.0.1", "INFO", "auto")


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(pyproject: Path) -> None:
    settings = load({"lease_seconds": 60}, pyproject, lease_seconds="50", poll_seconds="5")
    assert (settings.lease_seconds, settings.poll_seconds) == (60, 5)
    assert (settings.schema, settings.crash_limit) == ("from_file", 3)
    assert settings.sources["lease_seconds"] == "--lease-seconds"
    assert settings.sources["poll_seconds"] == "ROPEWAY_POLL_SECONDS"
    assert settings.sources["schema"] == f"{pyproject} [tool.ropeway] schema"
    assert settings.sources["crash_limit"] == "default"
    assert load({}, pyproject).lease_seconds == 40, "a name may be written with -"


def test_what_is_not_given_does_not_count(pyproject: Path) -> None:
    settings = load({"lease_seconds": None}, pyproject, lease_seconds="", listen_url="")
    assert settings.lease_seconds == 40
    assert settings.listen_url is None


def test_a_missing_file_is_an_empty_one(tmp_path: Path) -> None:
    assert load(pyproject=tmp_path / "nowhere" / "pyproject.toml") == load()
    other = tmp_path / "pyproject.toml"
    other.write_text("[tool.black]\nline-length = 100\n")
    assert load(pyproject=other) == load()


@pytest.mark.parametrize("name", setting_names())
def test_every_default_is_a_value_its_own_setting_accepts(name: str) -> None:
    if (default := default_of(name)) is not None:
        assert getattr(load(**{name: str(default)}), name) == default


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("lease_seconds", "soon", "a number from 1 to 43200"),
        ("lease_seconds", "0", "a number from 1 to 43200"),
        ("lease_seconds", "nan", "a number from 1 to 43200"),
        ("keep_dead", "inf", "a number from 0"),
        ("crash_limit", "2.5", "a whole number from 1 to 1000"),
        ("retry_jitter", "1.01", "a number from 0 to 1"),
        ("max_payload_bytes", "-1", "a whole number from 1"),
        ("schema", "Jobs", "a schema name"),
        ("schema", "jobs\n", "a schema name"),
        ("schema", "pg_jobs", "not starting with pg_"),
        ("schema", "j; drop table", "a schema name"),
        ("durability", "maybe", "full or relaxed"),
        ("url", "ropeway.db", "a URL such as sqlite:///ropeway.db"),
        ("reaper", "yes", "1, 0, true or false"),
        ("reaper", "2", "1, 0, true or false"),
        ("reaper_interval", "0", "a number from 0.01 to 3600"),
        ("concurrency", "0", "a whole number from 1 to 10000"),
        ("drain_seconds", "-1", "a number from 0 to 86400"),
        ("job_timeout", "0.5", "a number from 1 to 86400"),
        ("worker_http_port", "-2", "a port up to 65535, 0 (any free one) or -1 (off)"),
        ("worker_http_port", "65536", "a port up to 65535"),
        ("metrics_port", "-1", "a port from 0 (any free one) to 65535"),
        ("log_level", "loud", "DEBUG, INFO, WARNING, ERROR or CRITICAL"),
        ("log_format", "xml", "auto, json or text"),
        ("app", ":app", "a file or module such as tasks.py"),
        ("app", "tasks:9", "a file or module such as tasks.py"),
        ("host", "http://here", "a host name or address"),
    ],
)
def test_a_bad_value_is_refused_with_name_source_and_expectation(name: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(**{name: value})
    message = str(refused.value)
    assert message.startswith(f"{name}: ")
    assert f"from {variable_of(name)}" in message
    assert expected in message


@pytest.mark.parametrize(
    ("written", "meant"),
    [("1", True), ("true", True), ("True", True), ("0", False), ("false", False), (True, True), (False, False)],
)
def test_a_switch_is_on_or_off(written: str | bool, meant: bool) -> None:
    assert load({"reaper": written}).reaper is meant
    if isinstance(written, str):
        assert load(dispatcher=written).dispatcher is meant


def test_a_switch_in_the_file_is_a_boolean(pyproject: Path) -> None:
    pyproject.write_text("[tool.ropeway]\nreaper = false\n")
    settings = load(pyproject=pyproject)
    assert (settings.reaper, settings.dispatcher) == (False, True)


def test_a_switch_that_is_off_counts_as_given() -> None:
    settings = load({"reaper": False}, reaper="1")
    assert settings.reaper is False
    assert settings.sources["reaper"] == "--reaper"


@pytest.mark.parametrize("written", ["debug", "DEBUG", "Debug"])
def test_a_log_level_may_be_written_in_any_case(written: str) -> None:
    assert load(log_level=written).log_level == "DEBUG"


@pytest.mark.parametrize(
    "where", ["tasks.py", "pkg.tasks", "pkg.tasks:app", "my jobs/tasks.py", "/srv/x/tasks.py"]
)
def test_an_app_is_a_file_a_module_or_a_name_in_one(where: str) -> None:
    assert load(app=where).app == where


def test_ports_may_be_any_or_off() -> None:
    assert (load().worker_http_port, load().metrics_port) == (9091, None)
    assert load(worker_http_port="-1").worker_http_port == -1
    assert load(worker_http_port="0", metrics_port="0").metrics_port == 0


def test_a_bad_value_in_the_file_names_the_file(pyproject: Path) -> None:
    pyproject.write_text("[tool.ropeway]\ncrash_limit = true\n")
    with pytest.raises(ConfigurationError, match=r"crash_limit: True from .*pyproject\.toml \[tool\.ropeway\]"):
        load(pyproject=pyproject)


def test_an_unknown_name_is_refused_with_the_nearest_known_one(pyproject: Path) -> None:
    pyproject.write_text("[tool.ropeway]\nlease_second = 3\n")
    with pytest.raises(ConfigurationError, match=r"unknown setting 'lease_second'.*did you mean lease_seconds"):
        load(pyproject=pyproject)
    with pytest.raises(ConfigurationError, match="unknown setting 'colour' in flags"):
        load({"colour": "red"})


@pytest.mark.parametrize("text", ["[tool.ropeway", "tool = 3\n[tool.ropeway]", '[tool]\nropeway = "x"\n', "\xff"])
def test_a_broken_file_is_named(text: str, pyproject: Path) -> None:
    pyproject.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigurationError, match=r"pyproject\.toml"):
        load(pyproject=pyproject)


def test_history_outlives_the_jobs() -> None:
    settings = load(keep_cancelled="9000000")
    assert settings.keep_events == 9_000_000
    assert settings.sources["keep_events"] == "default, raised to keep_cancelled"
    assert load(keep_events="60").sources["keep_events"] == "ROPEWAY_KEEP_EVENTS, raised to keep_dead"
    assert Settings(keep_events=1.0).keep_events == 1_209_600
    assert load(keep_events="9000000").keep_events == 9_000_000


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://bob:hunter2@db/app", "postgresql://bob:***@db/app"),
        ("postgresql://bob:hun@ter/2@db:5432/app?x=1", "postgresql://bob:***@db:5432/app?x=1"),
        ("redis://:hunter2@cache/0", "redis://:***@cache/0"),
        ("postgresql://db/app?user=bob&password=hunter2&x=1", "postgresql://db/app?user=bob&password=***&x=1"),
        ("postgresql://bob@db:5432/app", "postgresql://bob@db:5432/app"),
        ("sqlite:///ropeway.db", "sqlite:///ropeway.db"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    settings = load(url=url, listen_url=url)
    assert settings.url == url
    assert hide_password(url) == shown
    assert settings.shown()["url"] == shown
    assert repr(settings).count(shown) == 2
    for text in (repr(settings), str(settings), f"{settings.shown()}"):
        assert "hunter2" not in text
        assert "ter/2" not in text


def test_a_malformed_url_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(url="bob:hunter2@db/app")
    assert "hunter2" not in str(refused.value)
