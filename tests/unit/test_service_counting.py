"""What a server stored, as its metrics tell it."""

from __future__ import annotations

import pytest

from ropeway.core.job import NewJob
from ropeway.core.states import State
from ropeway.engines.protocol import Enqueued
from ropeway.observability import metrics
from ropeway.observability.tally import Counted, Produced
from ropeway.runtime.ids import uuid7
from ropeway.service.counting import count_stored


@pytest.fixture
def produced(monkeypatch: pytest.MonkeyPatch) -> Produced:
    counts = Produced()
    monkeypatch.setattr(metrics, "produced", counts)
    return counts


def answers(*deduplicated: bool) -> list[Enqueued]:
    return [Enqueued(uuid7(), State.QUEUED, again) for again in deduplicated]


def test_new_jobs_and_those_that_were_there_are_counted_apart(produced: Produced) -> None:
    mail, report = NewJob("send", queue="mail"), NewJob("report")
    count_stored("default", [mail], answers(False))
    count_stored("default", [mail], answers(True))
    count_stored("default", [mail, report, report, mail], answers(False, False, True, False))
    enqueued, deduplicated = produced.all()
    assert enqueued == [Counted("mail", "send", 3), Counted("default", "report", 1)]
    assert deduplicated == [Counted("mail", "send", 1), Counted("default", "report", 1)]


def test_what_other_tenants_call_their_queues_and_types_is_on_no_page(produced: Produced) -> None:
    secret = NewJob("merger-with-acme", queue="lawyers")
    count_stored("rival", [secret], answers(False))
    count_stored("rival", [secret, secret], answers(False, True))
    enqueued, deduplicated = produced.all()
    assert enqueued == [Counted("other", "other", 2)]
    assert deduplicated == [Counted("other", "other", 1)]
