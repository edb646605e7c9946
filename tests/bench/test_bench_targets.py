"""Every target: met, missed, or not measured, from results made by hand."""

from __future__ import annotations

import pytest

from bench.peers.results import FAILED, NEVER, UNSUPPORTED, Results
from bench.peers.targets import TARGETS, Judged, Verdict, misses, verdicts
from tests.bench.results_kit import add_idle, add_pinned, know, made

MET, MISSED, NOT_MEASURED = Verdict.MET, Verdict.MISSED, Verdict.NOT_MEASURED


def judged(results: Results, words: str) -> list[Judged]:
    """The verdicts of the targets that are called so."""
    return [each for each in verdicts(results) if words in each.target.against]


def of(results: Results, words: str) -> list[Verdict]:
    return [each.verdict for each in judged(results, words)]


def test_the_table_of_targets_is_complete() -> None:
    assert [(target.against, target.at_least, target.choose) for target in TARGETS] == [
        ("PgQueuer", 2.0, "each"),
        ("graphile-worker (it keeps no history), events on", 0.85, "each"),
        ("graphile-worker (it keeps no history), events off", 1.1, "each"),
        ("best Python peer on PostgreSQL", 5.0, "best"),
        ("best job queue on PostgreSQL of any language", 1.2, "best"),
        ("every PostgreSQL peer", 1.0, "all"),
        ("Ropeway's own start", 0.8, "nobody"),
        ("awa-pg", 4.0, "each"),
        ("every peer", 1.0, "all"),
        ("huey and taskito on SQLite", 5.0, "each"),
    ]


def test_nothing_is_missed_when_nothing_was_measured() -> None:
    assert {each.verdict for each in verdicts(Results())} == {NOT_MEASURED}
    assert misses(Results()) == []


def test_a_peer_without_ropeway_beside_it_is_not_measured_against() -> None:
    results = made(drain1={"pgqueuer": 10.0})
    assert of(results, "PgQueuer") == [NOT_MEASURED, NOT_MEASURED]
    assert judged(results, "PgQueuer")[0].found == "ropeway-postgres was not measured"


@pytest.mark.parametrize(("ours", "verdict"), [(200.0, MET), (199.0, MISSED)])
def test_drain_against_pgqueuer(ours: float, verdict: Verdict) -> None:
    results = made(drain1={"ropeway-postgres": ours, "pgqueuer": 100.0})
    assert of(results, "PgQueuer") == [verdict, NOT_MEASURED]


def test_drain_against_graphile_worker_with_events_and_without() -> None:
    drains = {"ropeway-postgres": 86.0, "ropeway-postgres-noevents": 109.0, "graphile-worker": 100.0}
    results = made(drain1=drains, drain2=drains)
    assert of(results, "events on") == [MET, MET]
    assert of(results, "events off") == [MISSED, MISSED]
    [first, _] = misses(results)
    assert first == (
        "missed: drain, 1 process, against graphile-worker 1.2.3 (Node) with Ropeway's events off: "
        "1.09×: 109 against 100 jobs/s, wanted at least 1.1×"
    )


def test_single_enqueue_is_measured_against_the_best_python_job_queue() -> None:
    singles = {
        "ropeway-postgres": 500.0,
        "pgqueuer": 90.0,
        "saq-postgres": 99.0,
        "graphile-worker": 400.0,
        "pgmq": 400.0,
    }
    [one] = judged(made(single=singles), "best Python peer")
    assert (one.peer, one.verdict) == ("saq-postgres", MET)
    [one] = judged(made(single={**singles, "saq-postgres": 101.0}), "best Python peer")
    assert (one.peer, one.verdict) == ("saq-postgres", MISSED)


def test_bulk_enqueue_is_measured_against_any_language_but_no_message_queue() -> None:
    bulk = {"ropeway-postgres": 120.0, "graphile-worker": 100.0, "pgqueuer": 50.0, "pgmq": 900.0}
    results = made(bulk=bulk)
    results.add_missing("bulk", "saq-postgres", 0, UNSUPPORTED, "no such call")
    know(results, "saq-postgres")
    [one] = judged(results, "best job queue")
    assert (one.peer, one.verdict) == ("graphile-worker", MET)


def test_idle_latency_is_lower_than_everybodys() -> None:
    results = Results()
    add_idle(results, "ropeway-postgres", 2.0, 4.0)
    add_idle(results, "pgqueuer", 2.5, 4.5)
    add_idle(results, "pgmq", 6.0, 9.0)
    found = judged(results, "every PostgreSQL peer")
    assert [(each.peer, each.verdict) for each in found] == [("pgqueuer", MET), ("pgqueuer", MET)]
    add_idle(results, "saq-postgres", 2.2, 4.0)  # as low as ours is not lower
    add_idle(results, "celery", 0.1, 0.1)  # not on PostgreSQL
    assert of(results, "every PostgreSQL peer") == [MET, MISSED, MET]
    assert len(misses(results)) == 1


@pytest.mark.parametrize(("last", "verdict"), [(80.0, MET), (79.0, MISSED)])
def test_what_a_pinned_xmin_leaves(last: float, verdict: Verdict) -> None:
    results = Results()
    add_pinned(results, "ropeway-postgres", [100.0, 95.0, last, 10.0, 90.0])
    assert of(results, "own start") == [verdict]
    assert judged(results, "own start")[0].found == f"{last:.1f} % after 500,000 jobs"


@pytest.mark.parametrize(("theirs", "verdict"), [(20.0, MET), (21.0, MISSED)])
def test_speed_under_a_pinned_xmin_against_awa(theirs: float, verdict: Verdict) -> None:
    results = Results()
    add_pinned(results, "ropeway-postgres", [100.0, 80.0, 80.0, 80.0])
    add_pinned(results, "awa-pg", [theirs, theirs])
    assert of(results, "awa-pg") == [verdict]


def test_recovery_is_the_shortest_of_all_on_any_store() -> None:
    results = made(recovery={"ropeway-postgres": 0.6, "pgqueuer": 56.0})
    know(results, "celery")
    results.add_missing("recovery", "celery", 0, NEVER, "lost")
    assert of(results, "every peer") == [MET]
    assert judged(results, "every peer")[0].found == "93×: 0.60 against 56.0 s"
    know(results, "huey-sqlite")
    results.add("recovery", "huey-sqlite", 0, 0.5, "s")
    [missed] = misses(results)
    assert missed.startswith("missed: recovery with defaults, process killed, against huey 1.2.3 on SQLite: 0.83×")


def test_a_job_of_ours_that_never_runs_again_is_a_miss() -> None:
    results = made(recovery={"pgqueuer": 56.0})
    know(results, "ropeway-postgres")
    results.add_missing("recovery", "ropeway-postgres", 0, NEVER, "not within 300 s")
    assert of(results, "every peer") == [MISSED]


def test_peers_that_all_failed_are_not_measured_against() -> None:
    results = made(recovery={"ropeway-postgres": 0.6})
    know(results, "pgqueuer")
    results.add_missing("recovery", "pgqueuer", 0, FAILED, "it broke")
    assert of(results, "every peer") == [NOT_MEASURED]


@pytest.mark.parametrize(("ours", "verdict"), [(500.0, MET), (499.0, MISSED)])
def test_drain_against_huey_on_sqlite(ours: float, verdict: Verdict) -> None:
    results = made(drain1={"ropeway-sqlite": ours, "huey-sqlite": 100.0, "ropeway-postgres": 1.0})
    assert of(results, "huey and taskito") == [verdict, NOT_MEASURED]
