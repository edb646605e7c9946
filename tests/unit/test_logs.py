"""Log lines: what they look like, what never stands in them, who else's come out the same way."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from ropeway.core.job import NewJob
from ropeway.core.redact import hide_password, redact
from ropeway.engines.purging import log_purged
from ropeway.observability import logs, names
from ropeway.observability.lines import MAX_TEXT

JOB_ID = UUID("0198c0de-1234-7abc-8000-0123456789ab")


class Output(io.BytesIO):
    def lines(self) -> list[str]:
        return self.getvalue().decode().splitlines()

    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines()]

    def one(self) -> dict[str, Any]:
        (line,) = self.objects()
        return line


class Terminal(Output):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    yield
    logs.unconfigure()


@pytest.fixture
def output() -> Output:
    output = Output()
    logs.configure("DEBUG", "json", output)
    return output


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    logs.configure("DEBUG", "auto", terminal)
    return terminal


log = logs.logger("ropeway.test")


class TestJson:
    def test_a_line_has_the_fixed_fields_first_and_then_its_own(self, output: Output) -> None:
        log.info(names.JOB_SUCCEEDED, job_id=JOB_ID, type="email.send", queue="mail", attempt=2, duration_ms=12.5)
        line = output.one()
        assert list(line) == [
            "ts", "level", "event", "logger", "job_id", "type", "queue", "attempt", "duration_ms",
        ]  # fmt: skip
        assert line["level"] == "info"
        assert line["event"] == "job_succeeded"
        assert line["logger"] == "ropeway.test"
        assert line["job_id"] == str(JOB_ID)
        assert line["duration_ms"] == 12.5

    def test_the_time_is_now_in_utc(self, output: Output) -> None:
        before = datetime.now(UTC)
        log.info("x")
        text = output.one()["ts"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text)
        assert 0 <= (datetime.fromisoformat(text) - before).total_seconds() < 60 or (
            abs((datetime.fromisoformat(text) - before).total_seconds()) < 1e-3
        )

    @pytest.mark.parametrize("level", ["debug", "info", "warning", "error", "critical"])
    def test_every_level_has_its_word(self, level: str, output: Output) -> None:
        getattr(log, level)("x")
        assert output.one()["level"] == level

    def test_levels_below_the_one_that_was_asked_for_are_left_out(self) -> None:
        output = Output()
        logs.configure("warning", "json", output)
        for level in ("debug", "info", "warning", "error"):
            getattr(log, level)("x")
        assert [line["level"] for line in output.objects()] == ["warning", "error"]

    def test_bound_fields_come_first_and_follow_a_new_configuration(self) -> None:
        bound = log.bind(worker_id="w1").bind(pid=7)
        output = Output()
        logs.configure("INFO", "json", output)
        bound.info("x", own=1)
        line = output.one()
        assert list(line)[4:] == ["worker_id", "pid", "own"]

    def test_an_exception_brings_its_traceback(self, output: Output) -> None:
        try:
            raise ValueError("cannot reach postgresql://bob:hunter2@db/x")  # noqa: TRY301
        except ValueError as error:
            log.exception("first")
            caught = error
        log.error("second", exc_info=caught)
        for line in output.objects():
            assert "ValueError: cannot reach postgresql://bob:***@db/x" in line["exception"]
            assert "test_logs.py" in line["exception"]
            assert "exc_info" not in line

    @pytest.mark.parametrize(
        "value", ["\ud800", {1: "\udfff"}, float("nan"), {"a": {1, 2}}, object(), b"\xff", 10**400, [object()]]
    )
    def test_no_value_can_lose_a_line(self, value: object, output: Output) -> None:
        log.info("odd", value=value, kept=1)
        assert output.one()["event"] == "odd"
        assert int(output.one()["kept"]) == 1

    def test_not_even_one_that_cannot_be_printed(self, output: Output) -> None:
        class Hostile:
            def __str__(self) -> str:
                raise RuntimeError

        log.info("odd", value=Hostile())
        assert output.one()["value"] == "<Hostile>"

    def test_one_line_stays_one_line(self, output: Output) -> None:
        log.error("x", error='first\nsecond\r\n{"event":"job_succeeded"}')
        assert len(output.lines()) == 1
        assert output.one()["event"] == "x"

    def test_very_long_text_is_cut(self, output: Output) -> None:
        log.error("x", error="a" * (MAX_TEXT + 5))
        assert output.one()["error"] == "a" * MAX_TEXT + f"... ({MAX_TEXT + 5} characters)"

    def test_a_stream_that_is_gone_stops_nobody(self) -> None:
        output = Output()
        logs.configure("INFO", "json", output)
        output.close()
        log.info("x")


#: The id of a key is public, it tells people which one it was.
API_KEY = "rw_live_abcdefghijkl_hunter2" + "x" * 36 + "_0abcdef"

SECRETS = [
    ({"url": "postgresql://bob:hunter2@db/x"}, "postgresql://bob:***@db/x"),
    ({"url": "redis://:hunter2@cache/0"}, "redis://:***@cache/0"),
    ({"error": "no route to postgresql://bob:hunter2@db/x today"}, "no route to postgresql://bob:***@db/x today"),
    ({"error": "bad DSN: host=db password=hunter2 user=bob"}, "password=*** user=bob"),
    ({"error": "header Authorization: Bearer hunter2"}, "Authorization: ***"),
    ({"error": "{'api_key': 'hunter2', 'n': 1}"}, "'n': 1"),
    ({"error": "GET https://api/x?access_token=hunter2&n=1"}, "&n=1"),
    ({"password": "hunter2"}, "***"),
    ({"db_password": "hunter2"}, "***"),
    ({"lease_token": "hunter2"}, "***"),
    ({"CLIENT_SECRET": "hunter2"}, "***"),
    ({"Authorization": "Bearer hunter2"}, "***"),
    ({"sentry_dsn": "https://hunter2@sentry/1"}, "***"),
    ({"nested": {"deep": [{"token": "hunter2"}]}}, "***"),
    ({"nested": ["redis://:hunter2@cache/0"]}, "redis://:***@cache/0"),
    ({"error": ValueError("postgresql://bob:hunter2@db")}, "postgresql://bob:***@db"),
    ({"error": f"refused {API_KEY} today"}, "refused rw_live_abcdefghijkl_*** today"),
    ({"path": API_KEY}, "rw_live_abcdefghijkl_***"),
    ({"nested": [f"/v1/jobs/{API_KEY}"]}, "/v1/jobs/rw_live_abcdefghijkl_***"),
]


class TestSecrets:
    @pytest.mark.parametrize(("fields", "shown"), SECRETS)
    @pytest.mark.parametrize("form", ["json", "text"])
    def test_they_are_masked_in_every_form(self, fields: dict[str, Any], shown: str, form: Any) -> None:
        output = Output()
        logs.configure("INFO", form, output)
        log.info("x", **fields)
        log.bind(**fields).info("x")
        assert "hunter2" not in output.getvalue().decode()
        assert shown in output.getvalue().decode()

    @pytest.mark.parametrize("form", ["json", "text"])
    def test_also_in_what_others_log(self, form: Any) -> None:
        output = Output()
        logs.configure("INFO", form, output)
        logging.getLogger("ropeway.engines").warning("lost %s", "postgresql://bob:hunter2@db/x")
        logging.getLogger("ropeway.engines").warning("password=hunter2")
        assert "hunter2" not in output.getvalue().decode()

    def test_also_where_nothing_is_configured(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level("INFO"):
            log.info("x", url="postgresql://bob:hunter2@db/x", token="hunter2")
        assert caplog.messages == ["x url=postgresql://bob:***@db/x token=***"]

    @pytest.mark.parametrize(
        "text",
        [
            "unexpected token: }",
            "password authentication failed for user bob",
            "http://127.0.0.1:9091/metrics",
            "at 12:30:05 the key=value pair was there",
            "",
        ],
    )
    def test_harmless_text_is_left_alone(self, text: str) -> None:
        assert redact(text) == text

    def test_a_url_hides_as_much_as_the_settings_do(self) -> None:
        assert (
            hide_password("postgresql://bob:hun@ter2@db/x?sslpassword=q")
            == "postgresql://bob:***@db/x?sslpassword=***"
        )

    def test_a_purged_job_is_the_one_line_with_a_payload(self, output: Output) -> None:
        log_purged([_dead_job(b'{"password":"p4yload"}')])
        line = output.one()
        assert list(line) == ["ts", "level", "event", "logger", "job"]
        assert line["event"] == names.JOB_PURGED
        assert line["job"]["payload"] == {"password": "p4yload"}


def _dead_job(payload: bytes) -> Any:
    from ropeway.core.job import Job
    from ropeway.core.states import State

    at = datetime(2026, 1, 1, tzinfo=UTC)
    new = NewJob("email.send", payload)
    return Job(
        id=JOB_ID, tenant="default", type=new.type, queue=new.queue, state=State.DEAD, priority=5, payload=payload,
        attempt=1, attempts=1, max_attempts=1, run_at=at, created_at=at, updated_at=at, finished_at=at,
    )  # fmt: skip


class TestText:
    def test_a_terminal_gets_words_and_colours(self, terminal: Terminal) -> None:
        log.info(names.JOB_SUCCEEDED, job_id=JOB_ID, type="email.send", queue="mail", attempt=1, duration_ms=12.4)
        (line,) = terminal.lines()
        assert "\x1b[" in line
        plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
        assert re.fullmatch(
            r"\d\d:\d\d:\d\d\.\d{3}  INFO   job succeeded {3,}  0198c0de-1234-7abc  email\.send  mail  12\.4 ms",
            plain,
        )

    def test_the_error_comes_last(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        logs.configure("INFO", "auto", terminal)
        log.warning(names.JOB_FAILED, error="ValueError: no", job_id=JOB_ID, attempt=3, retry_in=5.25, gone=None)
        (line,) = terminal.lines()
        assert line[14:] == "WARN   job failed        0198c0de-1234-7abc  attempt 3  retry_in=5.25  ValueError: no"

    @pytest.mark.parametrize(("value", "coloured"), [("1", False), ("", True)])
    def test_no_color_is_respected(self, value: str, coloured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_COLOR", value)
        terminal = Terminal()
        logs.configure("INFO", "text", terminal)
        log.info("x")
        assert (b"\x1b" in terminal.getvalue()) == coloured

    def test_a_file_gets_full_times_and_no_colours(self) -> None:
        output = Output()
        logs.configure("INFO", "text", output)
        log.info(names.JOB_DEAD)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z  INFO   job dead", output.lines()[0])

    def test_a_terminal_is_not_told_what_to_do(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        logs.configure("INFO", "text", terminal)
        log.error("x", error="a\x1b[2Jb\x07\x9bc\nsecond line\u2028third", type="t\x1b]0;title\x07")
        assert len(terminal.lines()) == 1
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", terminal.getvalue().decode())
        assert "a\\x1b[2Jb\\x07\\x9bc ⏎ second line\\u2028third" in terminal.lines()[0]

    @pytest.mark.parametrize(
        ("milliseconds", "words"),
        [(0.5, "0.5 ms"), (999, "999 ms"), (1500, "1.5 s"), (61_000, "1 min 1 s"), (7_260_000, "2 h 1 min")],
    )
    def test_a_duration_is_told_in_its_unit(self, milliseconds: float, words: str) -> None:
        output = Output()
        logs.configure("INFO", "text", output)
        log.info("x", duration_ms=milliseconds)
        assert output.lines()[0].endswith(f"  {words}")

    def test_no_value_can_lose_a_line(self) -> None:
        class Hostile:
            def __str__(self) -> str:
                raise RuntimeError

        output = Output()
        logs.configure("INFO", "text", output)
        log.info("odd", value=Hostile(), other="\ud800")
        assert "value=<Hostile>" in output.lines()[0]

    def test_auto_is_text_on_a_real_terminal_and_json_in_a_pipe(self) -> None:
        program = (
            "from ropeway.observability import logs; logs.configure(); logs.logger('ropeway').info('job_dead')"
        )
        run: Callable[..., Any] = subprocess.run
        piped = run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60)
        assert json.loads(piped.stderr)["event"] == "job_dead"
        parent, child = pty.openpty()
        try:
            run([sys.executable, "-c", program], stderr=child, check=True, timeout=60)
            shown = os.read(parent, 1000).decode()
        finally:
            os.close(parent)
            os.close(child)
        assert "job dead" in shown


class TestLogging:
    """What is told to the standard library's logging."""

    def test_the_house_s_own_loggers_come_out_the_same_way(self, output: Output) -> None:
        logging.getLogger("ropeway.engines.sqlite").debug("took %d ms", 5)
        line = output.one()
        assert (line["event"], line["level"], line["logger"]) == ("took 5 ms", "debug", "ropeway.engines.sqlite")

    def test_the_level_holds_for_them_too(self) -> None:
        output = Output()
        logs.configure("WARNING", "json", output)
        logging.getLogger("ropeway.x").info("no")
        logging.getLogger("ropeway.x").error("yes")
        assert output.one()["event"] == "yes"

    def test_exceptions_keep_their_traceback(self, output: Output) -> None:
        try:
            raise KeyError("gone")  # noqa: TRY301
        except KeyError:
            logging.getLogger("ropeway.x").exception("it broke")
        assert "KeyError: 'gone'" in output.one()["exception"]

    # pytest's own handlers on the root stand in for a program's; only a new process has none.
    @pytest.mark.parametrize(
        ("setup", "expected"),
        [
            ("", ["careful"]),
            ("logging.basicConfig(level='INFO', format='own %(message)s')", ["own chat", "own careful"]),
        ],
    )
    def test_anybody_s_warnings_come_out_unless_the_program_has_handlers(
        self, setup: str, expected: list[str]
    ) -> None:
        program = f"""
import logging
from ropeway.observability import logs
logs.configure("DEBUG", "json")
{setup}
logging.getLogger("somebody.else").info("chat")
logging.getLogger("somebody.else").warning("careful")
"""
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
        )
        told = [json.loads(line)["event"] if line.startswith("{") else line for line in done.stderr.splitlines()]
        assert told == expected

    def test_without_configuration_lines_go_to_logging(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level("INFO", logger="ropeway.test"):
            log.debug("hidden")
            log.bind(worker_id="w1").warning(names.LEASE_LOST, job_id=JOB_ID, none=None)
        (record,) = caplog.records
        assert record.getMessage() == f"lease_lost worker_id=w1 job_id={JOB_ID}"
        assert (record.name, record.levelname, record.filename) == ("ropeway.test", "WARNING", "test_logs.py")

    def test_unconfigure_leaves_no_trace(self, caplog: pytest.LogCaptureFixture) -> None:
        before = logging.lastResort
        output = Output()
        logs.configure("INFO", "json", output)
        logs.configure("INFO", "json", output)
        assert len(logging.getLogger("ropeway").handlers) == 1
        logs.unconfigure()
        assert logging.lastResort is before
        assert logging.getLogger("ropeway").handlers == []
        log.warning("to logging")
        assert caplog.messages == ["to logging"]
        assert output.lines() == []


def test_a_logger_is_one_object_per_name() -> None:
    assert logs.logger("ropeway.test") is log


def test_a_text_stream_will_do() -> None:
    stream = io.StringIO()
    logs.configure("INFO", "json", stream)
    log.info("x")
    assert json.loads(stream.getvalue())["event"] == "x"


def test_the_promised_names_are_there() -> None:
    promised = """job_created lease_acquired handler_start job_succeeded job_failed job_dead sweep_complete
        worker_started worker_stopping worker_stopped child_started child_died child_recycled job_lost lease_lost
        engine_away engine_back loop_blocked job_timeout job_cancelled job_snoozed job_released schedule_fired"""
    assert set(promised.split()) <= names.ALL
