"""How much is asked of whom, in which order, and what is left out when a run goes on."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from peer_kit import TINY, fake

from bench.peers.catalogue import Peer, chosen, everyone
from bench.peers.environments import name_of
from bench.peers.measures import MEASURES, in_quick_run, named
from bench.peers.measures_endurance import bears_rounds
from bench.peers.measures_latency import seconds_until_back
from bench.peers.measuring import latencies_ms, percentile
from bench.peers.results import FAILED, NEVER, UNSUPPORTED, Results
from bench.peers.runner import plan
from bench.peers.sizing import FULL, Stage, drain_jobs, jobs_for, known_rate, pauses_when_idle, steady_load

A, B = fake(name="a"), fake(name="b")


def order(results: Results, *, by_repeat: bool = False) -> list[tuple[str, int, str]]:
    steps = plan(named(["single", "drain1"]), [A, B], 2, results=results, by_repeat=by_repeat)
    return [(step.measure.name, step.repeat, peer.name) for step in steps for peer in step.peers]


def test_peers_take_turns_within_each_repeat_and_in_who_is_first() -> None:
    assert order(Results())[:4] == [("drain1", 1, "a"), ("drain1", 1, "b"), ("drain1", 2, "b"), ("drain1", 2, "a")]


def test_a_quick_run_takes_everything_once_first() -> None:
    repeats = [repeat for _, repeat, _ in order(Results(), by_repeat=True)]
    assert repeats == [1, 1, 1, 1, 2, 2, 2, 2]


def test_a_quick_run_asks_less_and_waits_once() -> None:
    everything = plan(MEASURES, [A], 2, results=Results(), by_repeat=True, wanted=in_quick_run)
    assert [(step.measure.name, step.repeat) for step in everything] == [
        ("recovery", 1),
        ("drain1", 1),
        ("drain2", 1),
        ("drain1", 2),
        ("drain2", 2),
    ]


def test_a_quick_run_takes_what_is_long_of_those_that_its_targets_are_about() -> None:
    peers = [replace(A, name=name, store="postgres") for name in ("ropeway-postgres", "awa-pg", "pgqueuer")]
    steps = plan(named(["pinned"]), peers, 2, results=Results(), wanted=in_quick_run)
    assert [(step.repeat, step.peers[0].name) for step in steps] == [(1, "ropeway-postgres"), (1, "awa-pg")]


def test_a_quick_run_that_is_cut_short_lacks_redis_first() -> None:
    redis = replace(B, store="redis")
    steps = plan(named(["drain1", "drain2"]), [redis, A], 1, results=Results(), by_repeat=True)
    assert [step.peers[0].name for step in steps] == ["a", "a", "b", "b"]


def test_what_is_there_is_left_out_but_failures_are_tried_again() -> None:
    results = Results()
    results.add("drain1", "a", 1, 100.0, "jobs/s")
    results.add_missing("drain1", "b", 1, FAILED, "the network was away")
    results.add_missing("single", "a", 2, UNSUPPORTED, "no such call")
    results.add_missing("single", "b", 2, NEVER, "not within 300 s")
    assert order(results) == [
        ("drain1", 1, "b"),
        ("drain1", 2, "b"),
        ("drain1", 2, "a"),
        ("single", 1, "a"),
        ("single", 1, "b"),
    ]


def test_what_is_taken_together_is_one_step_of_those_that_are_missing() -> None:
    results = Results()
    results.add("recovery", "a", 1, 0.5, "s")
    steps = plan(named(["recovery"]), [A, B], 2, results=results)
    assert [(step.repeat, [peer.name for peer in step.peers]) for step in steps] == [(1, ["b"]), (2, ["a", "b"])]


def test_a_measure_is_not_asked_of_a_store_that_has_no_such_thing() -> None:
    assert plan(named(["pinned"]), [A], 1, results=Results()) == []


def test_wrong_names_are_named() -> None:
    with pytest.raises(ValueError, match="drainn"):
        named(["drainn"])
    with pytest.raises(ValueError, match="selery"):
        chosen(["selery"], [])


def test_every_measure_can_say_how_long_it_takes() -> None:
    for measure in MEASURES:
        assert measure.seconds(replace(A, bulk_rate=10_000), FULL) >= 0


def test_sizes_follow_the_rates() -> None:
    assert jobs_for(1_000, 3.5) == 3_500
    assert jobs_for(3, 3.5) == 200
    assert jobs_for(100, 1, multiple=1_000) == 1_000
    assert drain_jobs(A, 2, 2.0) == 1.5 * drain_jobs(A, 1, 2.0)


def test_whoever_is_too_slow_for_a_million_jobs_is_not_asked_for_them() -> None:
    (pinned,) = named(["pinned"])
    slow, quick = replace(A, rate=4_900), replace(A, rate=5_000)
    assert not bears_rounds(slow, FULL)
    assert pinned.seconds(slow, FULL) == 0
    assert bears_rounds(quick, FULL)
    assert pinned.seconds(quick, FULL) > 200


def test_what_was_measured_is_known_better_than_what_was_expected() -> None:
    results = Results()
    assert known_rate(results, "drain1", A) == A.rate
    for repeat, rate in enumerate((10.0, 30.0, 20.0)):
        results.add("drain1", "a", repeat, rate, "jobs/s")
    assert known_rate(results, "drain1", A) == 20.0
    assert known_rate(results, "single", A) == A.enqueue_rate


def test_pauses_are_the_same_for_everybody() -> None:
    assert pauses_when_idle(50) == pauses_when_idle(50)
    assert all(0.02 <= pause <= 0.06 for pause in pauses_when_idle(50))
    assert TINY.seconds < 1


def test_a_load_of_few_jobs_lasts_until_there_are_twenty() -> None:
    assert steady_load(200, 2) == (200, 2)
    assert steady_load(200, 2).jobs == 400
    assert steady_load(2, 2) == (2, 10)
    assert Stage(0.1, 1).jobs == 1


def test_percentiles_and_latencies() -> None:
    assert percentile([1.0], 0.99) == 1.0
    assert percentile(list(range(1, 101)), 0.99) == 99
    assert percentile(list(range(1, 101)), 0.50) == 50
    assert latencies_ms(array("d", [1.0, 2.0]), array("d", [1.5, 2.25])) == [250.0, 500.0]


def test_a_spike_is_over_when_no_later_second_is_slow() -> None:
    sent = array("d", [0.0, 0.5, 1.0, 1.5, 2.0, 2.5])
    fast, slow = 0.005, 0.5
    late = [slow, fast, fast, slow, fast, fast]
    starts = array("d", [at + wait for at, wait in zip(sent, late, strict=True)])
    assert seconds_until_back(sent, starts, since=sent[0], normal_ms=5.0) == 2.0
    assert seconds_until_back(sent, starts, since=sent[0] - 3.0, normal_ms=5.0) == 5.0, "whose producer hung"
    assert seconds_until_back(sent[4:], starts[4:], since=sent[4], normal_ms=5.0) == 0.0


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("celery[redis]==5.7.0", "celery"),
        ("pg-boss@12.38.0", "pg-boss"),
        ("@scope/it@1.0", "@scope/it"),
        ("x", "x"),
    ],
)
def test_a_pin_has_a_name(package: str, name: str) -> None:
    assert name_of(package) == name


def test_the_catalogue_is_complete() -> None:
    """Every entry has a program, a rate, and a page for each setting; a Python peer is pinned."""
    peers = everyone()
    assert {"ropeway-postgres", "ropeway-sqlite", "ropeway-http"} <= {peer.name for peer in peers}
    for peer in peers:
        assert peer.rate > 0, peer.name
        assert peer.enqueue_rate > 0, peer.name
        assert all(setting.source for setting in peer.settings), peer.name
        assert peer.ours or all("==" in package or "@" in package for package in peer.packages), peer.name


def test_ropeway_is_chosen_by_one_word() -> None:
    names = [peer.name for peer in chosen(["ropeway"], ["sqlite"])]
    assert names == ["ropeway-sqlite"]
    assert isinstance(chosen([], ["postgres"])[0], Peer)
