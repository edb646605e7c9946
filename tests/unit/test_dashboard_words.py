"""How the dashboard writes values, draws numbers and reads what people typed."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from ropeway.core.errors import FieldError, InputError
from ropeway.core.events import Event, rfc3339
from ropeway.core.job import Job
from ropeway.core.query import JobFilter
from ropeway.core.states import DeadReason, EventName, State
from ropeway.dashboard import drawing, words
from ropeway.dashboard.asking import FILTERS, Form, filter_of, query_of

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ID = UUID("0198c0de-4242-7000-8000-0123456789ab")


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


# ── Numbers and times ──


@pytest.mark.parametrize(
    ("value", "capped", "text"),
    [
        (None, False, "–"),
        (0, False, "0"),
        (0, True, "0"),
        (7, False, "7"),
        (7.0, False, "7"),
        (7.25, False, "7.2"),
        (0.5, False, "0.5"),
        (12.4, False, "12"),
        (1_234_567, False, "1,234,567"),
        (10_000, True, "10,000+"),
    ],
)
def test_numbers(value: float | None, capped: bool, text: str) -> None:
    assert words.number(value, capped=capped) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (-3.0, "0 ms"),
        (0.0, "0 ms"),
        (0.85, "850 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (3.21, "3.2 s"),
        (9.96, "10 s"),
        (59.0, "59 s"),
        (60.0, "1 min"),
        (250.0, "4 min 10 s"),
        (3_600.0, "1 h"),
        (7_500.0, "2 h 5 min"),
        (86_400.0, "1 d"),
        (273_700.0, "3 d 4 h"),
    ],
)
def test_lengths_of_time(value: float | None, text: str) -> None:
    assert words.seconds(value) == text


@pytest.mark.parametrize(
    ("away", "text"),
    [
        (0.0, "now"),
        (0.9, "now"),
        (-0.9, "now"),
        (5.0, "in 5 s"),
        (-5.0, "5 s ago"),
        (120.0, "in 2 min"),
        (-7_200.0, "2 h ago"),
        (864_000.0, "in 10 d"),
    ],
)
def test_times_from_now(away: float, text: str) -> None:
    assert words.relative(after(away), NOW) == text


def test_a_time_is_an_element_that_says_both() -> None:
    element = words.when(after(-5), NOW)
    assert isinstance(element, Markup)
    assert element == (
        '<time datetime="2026-01-01T11:59:55.000000Z" title="2026-01-01 11:59:55.000 UTC" '
        "data-relative>5 s ago</time>"
    )
    east = words.when(after(-5).astimezone(timezone(timedelta(hours=5))), NOW)
    assert east == element, "in whatever zone it was given"


def test_a_time_that_is_none_and_one_that_is_hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    assert words.when(None, NOW) == '<span class="none">–</span>'
    # Whatever a part of it would be: the element is ours, its values are text.
    monkeypatch.setattr(words, "relative", lambda *_: '"><script>')
    assert words.when(NOW, NOW).endswith("&#34;&gt;&lt;script&gt;</time>")


# ── Texts ──


def test_a_short_id_tells_jobs_that_were_made_together_apart() -> None:
    assert words.short_id(ID) == words.short_id(str(ID)) == "0198c0de…6789ab"


def test_long_text_is_clipped() -> None:
    assert words.clipped(None) == words.clipped("") == ""
    assert words.clipped("a" * 10, 10) == "a" * 10
    assert words.clipped("a" * 11, 10) == "a" * 10 + "…"
    assert len(words.clipped("a" * 9_999)) == words.MOST_TEXT + 1


def test_json_gets_a_line_for_each_member() -> None:
    assert words.pretty_json(None) == ""
    assert words.pretty_json(b'{"a":[1,2],"b":"\xc3\xa4<"}') == '{\n  "a": [\n    1,\n    2\n  ],\n  "b": "ä<"\n}'
    assert words.pretty_json(b"null") == "null"


@pytest.mark.parametrize("data", [b"not json", b'{"a":', b"\xff\xfe", b"[" * 50_000, b"", b'"\xff"'])
def test_what_is_no_json_is_shown_as_it_is(data: bytes) -> None:
    text = words.pretty_json(data)
    assert text.startswith(data[:100].decode(errors="replace"))


def test_very_long_json_is_cut_and_says_so() -> None:
    data = b'"' + b"a" * 100_000 + b'"'
    text = words.pretty_json(data)
    assert text.endswith("\n… (100,002 bytes in all)")
    assert len(text) < words.MOST_JSON + 100
    exact = b'"' + b"a" * (words.MOST_JSON - 2) + b'"'
    assert words.pretty_json(exact) == exact.decode()


@given(st.binary(max_size=200))
def test_no_bytes_break_the_page(data: bytes) -> None:
    assert isinstance(words.pretty_json(data), str)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (True, "on"),
        (False, "off"),
        (5, "5"),
        (5.0, "5"),
        (0.25, "0.25"),
        (1_234_567.0, "1234567"),
        ("text", "text"),
        (["a", 1], '["a",1]'),
        ({"a": None}, '{"a":null}'),
    ],
)
def test_values_in_one_line(value: Any, text: str) -> None:
    assert words.plain(value) == text


def test_megabytes() -> None:
    assert words.megabytes(None) == "–"
    assert words.megabytes(2**31) == "2,048 MiB"


# ── Pictures ──


def check_laid_out(pieces: list[drawing.Piece]) -> None:
    """Side by side, without gaps, from one end to the other."""
    x = 0.0
    for piece in pieces:
        assert piece.x == pytest.approx(x, abs=0.01 * (len(pieces) + 1))
        assert piece.width > 0
        x = piece.x + piece.width
    assert x == pytest.approx(drawing.WIDTH, abs=0.01 * (len(pieces) + 1))


def test_a_bar_is_to_scale() -> None:
    pieces = drawing.bar({State.QUEUED: 500, State.RUNNING: 250, State.DEAD: 250, State.SUCCEEDED: 9_999})
    assert [(piece.kind, piece.x, piece.width) for piece in pieces] == [
        ("running", 0.0, 250.0),
        ("queued", 250.0, 500.0),
        ("dead", 750.0, 250.0),
    ], "in a fixed order; jobs that ended well are nobody's concern"
    assert pieces[1].label == "500 queued"


def test_a_bar_of_nothing_is_empty() -> None:
    assert drawing.bar({}) == drawing.bar({State.SUCCEEDED: 5, State.QUEUED: 0}) == []


def test_a_single_job_among_very_many_is_to_be_seen() -> None:
    pieces = drawing.bar({State.QUEUED: 1_000_000, State.DEAD: 1, State.RUNNING: 1})
    check_laid_out(pieces)
    assert min(piece.width for piece in pieces) > drawing.THINNEST * 0.9


@given(st.dictionaries(st.sampled_from(list(State)), st.integers(0, 10**12)))
def test_every_bar_fills_its_width(counts: dict[State, int]) -> None:
    pieces = drawing.bar(counts)
    assert [piece.kind for piece in pieces] == [state.value for state in drawing.BAR if counts.get(state)]
    if pieces:
        check_laid_out(pieces)


def job(state: State, finished_at: datetime | None = None) -> Job:
    return Job(
        id=ID,
        tenant="default",
        type="work",
        queue="default",
        state=state,
        priority=5,
        payload=b"{}",
        attempt=1,
        attempts=1,
        max_attempts=5,
        run_at=NOW,
        created_at=NOW,
        updated_at=NOW,
        finished_at=finished_at,
    )


def event(name: EventName, state: State, at: float, **data: Any) -> Event:
    return Event(name, "default", ID, 1, after(at), "work", "default", state, 1, data=data)


def drawn(pieces: list[drawing.Piece]) -> list[tuple[str, float]]:
    return [(piece.kind, piece.width) for piece in pieces]


def test_a_life_is_to_scale() -> None:
    events = [
        event(EventName.ENQUEUED, State.QUEUED, 0),
        event(EventName.STARTED, State.RUNNING, 30),
        event(EventName.COMPLETED, State.SUCCEEDED, 100),
    ]
    pieces = drawing.timeline(job(State.SUCCEEDED, after(100)), events, after(9_999))
    assert drawn(pieces) == [("queued", 300.0), ("running", 700.0)]
    assert [piece.label for piece in pieces] == ["queued for 30 s", "running for 1 min 10 s"]


def test_a_life_that_goes_on_reaches_to_now() -> None:
    events = [event(EventName.ENQUEUED, State.QUEUED, 0), event(EventName.STARTED, State.RUNNING, 10)]
    assert drawn(drawing.timeline(job(State.RUNNING), events, after(20))) == [
        ("queued", 500.0),
        ("running", 500.0),
    ]


def test_a_wait_for_a_retry_is_split_where_the_job_becomes_due() -> None:
    """Becoming due is no event; after it the job stands in line."""
    events = [
        event(EventName.STARTED, State.RUNNING, 0),
        event(EventName.FAILED, State.RETRYING, 10, retry_in_ms=30_000),
        event(EventName.STARTED, State.RUNNING, 90),
    ]
    pieces = drawing.timeline(job(State.RUNNING), events, after(100))
    assert drawn(pieces) == [("running", 100.0), ("retrying", 300.0), ("queued", 500.0), ("running", 100.0)]


def test_a_job_that_was_scheduled_is_split_where_it_becomes_due() -> None:
    events = [
        event(EventName.ENQUEUED, State.SCHEDULED, 0, run_at=rfc3339(after(60))),
        event(EventName.STARTED, State.RUNNING, 80),
    ]
    pieces = drawing.timeline(job(State.RUNNING), events, after(100))
    assert drawn(pieces) == [("scheduled", 600.0), ("queued", 200.0), ("running", 200.0)]


def test_a_wait_that_is_not_over_is_not_split() -> None:
    waits = [event(EventName.FAILED, State.RETRYING, 0, retry_in_ms=30_000)]
    assert drawn(drawing.timeline(job(State.RETRYING), waits, after(10))) == [("retrying", 1_000.0)]


def test_a_short_run_in_a_long_life_is_to_be_seen() -> None:
    events = [
        event(EventName.ENQUEUED, State.QUEUED, 0),
        event(EventName.STARTED, State.RUNNING, 86_400),
        event(EventName.COMPLETED, State.SUCCEEDED, 86_400.001),
    ]
    pieces = drawing.timeline(job(State.SUCCEEDED, after(86_400.001)), events, after(90_000))
    check_laid_out(pieces)
    assert pieces[1].width > drawing.THINNEST * 0.9


def test_a_life_without_length_or_events_is_not_drawn() -> None:
    assert drawing.timeline(job(State.QUEUED), [], NOW) == []
    assert drawing.timeline(job(State.QUEUED), [event(EventName.ENQUEUED, State.QUEUED, 0)], NOW) == []


def test_time_between_a_death_and_a_replay_is_to_scale() -> None:
    events = [
        event(EventName.STARTED, State.RUNNING, 0),
        event(EventName.DLQ, State.DEAD, 10),
        event(EventName.RETRIED, State.QUEUED, 80),
        event(EventName.STARTED, State.RUNNING, 90),
    ]
    pieces = drawing.timeline(job(State.RUNNING), events, after(100))
    assert drawn(pieces) == [("running", 100.0), ("dead", 700.0), ("queued", 100.0), ("running", 100.0)]
    assert pieces[1].label == "dead for 1 min 10 s"


def test_a_life_ends_with_its_last_end() -> None:
    events = [
        event(EventName.ENQUEUED, State.QUEUED, 0),
        event(EventName.CANCELLED, State.CANCELLED, 10),
        event(EventName.RETRIED, State.QUEUED, 30),
        event(EventName.CANCELLED, State.CANCELLED, 40),
    ]
    pieces = drawing.timeline(job(State.CANCELLED, after(40)), events, after(9_999))
    assert drawn(pieces) == [("queued", 250.0), ("cancelled", 500.0), ("queued", 250.0)]


def test_a_month_among_the_dead_hides_nothing() -> None:
    events = [
        event(EventName.STARTED, State.RUNNING, 0),
        event(EventName.DLQ, State.DEAD, 10),
        event(EventName.RETRIED, State.QUEUED, 2_592_000),
    ]
    pieces = drawing.timeline(job(State.QUEUED), events, after(2_592_010))
    check_laid_out(pieces)
    assert min(piece.width for piece in pieces) > drawing.THINNEST * 0.9


# ── What people typed ──


def test_no_filter_is_all_jobs() -> None:
    assert filter_of({}) == JobFilter()
    assert filter_of(dict.fromkeys(FILTERS, "  ")) == JobFilter()
    assert filter_of({"nonsense": "x", "mark": "y"}) == JobFilter(), "other fields of the form are not ours"


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        ({"queue": " mails "}, JobFilter(queue="mails")),
        ({"type": "mail.send"}, JobFilter(type="mail.send")),
        ({"status": "dead"}, JobFilter(states=frozenset({State.DEAD}))),
        ({"status": "dead,queued"}, JobFilter(states=frozenset({State.DEAD, State.QUEUED}))),
        ({"status": "pending"}, JobFilter(states=frozenset({State.QUEUED}))),
        ({"key": "order 7"}, JobFilter(idempotency_key="order 7")),
        ({"tag": "red"}, JobFilter(tag="red")),
        ({"error": "line is busy"}, JobFilter(error="line is busy")),
        ({"worker": "w1"}, JobFilter(worker_id="w1")),
        ({"reason": "rejected"}, JobFilter(reason=DeadReason.REJECTED)),
        ({"after": "2026-01-01T12:00"}, JobFilter(created_after=NOW)),
        ({"before": "2026-01-01T13:00+01:00"}, JobFilter(created_before=NOW)),
    ],
)
def test_each_filter_is_understood(asked: dict[str, str], where: JobFilter) -> None:
    assert filter_of(asked) == where


@pytest.mark.parametrize(
    ("asked", "pointer"),
    [
        ({"queue": "a b"}, "/queue"),
        ({"type": "ä"}, "/type"),
        ({"status": "bogus"}, "/status"),
        ({"status": "dead,,queued"}, "/status"),
        ({"key": "\0"}, "/idempotency_key"),
        ({"tag": "t" * 1_000}, "/tag"),
        ({"error": "e" * 257}, "/error"),
        ({"worker": "w" * 129}, "/worker_id"),
        ({"reason": "boredom"}, "/reason"),
        ({"after": "soon"}, "/after"),
        ({"before": "2026-02-30T00:00"}, "/before"),
    ],
)
def test_a_bad_filter_names_the_field(asked: dict[str, str], pointer: str) -> None:
    with pytest.raises(FieldError) as caught:
        filter_of(asked)
    assert caught.value.pointer == pointer


@given(st.dictionaries(st.sampled_from(FILTERS), st.text(max_size=40)))
def test_whatever_is_typed_is_a_filter_or_told(asked: dict[str, str]) -> None:
    """Nothing else is raised: that would be an error of ours on the page."""
    with contextlib.suppress(InputError):
        assert isinstance(filter_of(asked), JobFilter)


def test_filters_become_the_query_of_an_address() -> None:
    asked = {"queue": "mails", "error": "a&b=c ä", "tag": "", "id": "x", "mark": "secret"}
    assert parse_qsl(query_of(asked)) == [("queue", "mails"), ("error", "a&b=c ä")], "nothing but filters"
    assert parse_qsl(query_of(asked, status="dead", error=None)) == [("queue", "mails"), ("status", "dead")]
    assert parse_qsl(query_of(asked, queue="other")) == [("queue", "other"), ("error", "a&b=c ä")]
    assert query_of({}) == ""


def test_a_form_may_name_a_field_twice() -> None:
    form = Form([("id", "1"), ("verb", "cancel"), ("id", "2")])
    assert (form.one("id"), form.all("id"), form.one("none"), form.all("none")) == ("2", ["1", "2"], "", [])
    assert form.mapping() == {"id": "2", "verb": "cancel"}
