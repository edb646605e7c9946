"""The page, the terminal's table and the charts, from results made by hand."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest

from bench.peers import charts, report, svg
from bench.peers.columns import GROWTH
from bench.peers.results import FAILED, NEVER, UNSUPPORTED, Results
from tests.bench.results_kit import add_idle, add_pinned, know, made

HOSTILE = 'Queue <script>alert("1")</script> & | `co` \x07'


def a_run() -> Results:
    results = made(
        single={"ropeway-postgres": [500.0, 510.0], "pgqueuer": [100.0, 90.0]},
        bulk={"ropeway-postgres": [1000.0, 1100.0], "pgqueuer": [500.0, 520.0], "pgmq": [1700.0, 1800.0]},
        drain1={"ropeway-postgres": [300.0, 310.0], "pgqueuer": [100.0, 120.0], "celery": [12.0, 13.0]},
        recovery={"ropeway-postgres": 0.6, "pgqueuer": 56.0},
    )
    know(results, "saq-postgres")
    results.add_missing("bulk", "saq-postgres", 0, UNSUPPORTED, "it has no call for many jobs")
    results.add(
        "drain1", "saq-postgres", 0, 9.0, "jobs/s", extra={"ran_by_count": {"0": 1, "2": 2}, "rss_mib": 40.0}
    )
    results.add_missing("recovery", "celery", 0, NEVER, "not within 300 s", unit="s")
    results.peers["streaq"] = {"label": "streaq", "store": "redis", "absent": "pip found no version 99"}
    for peer, p50 in (("ropeway-postgres", 2.0), ("pgqueuer", 2.5)):
        add_idle(results, peer, p50, 2 * p50)
    add_pinned(results, "ropeway-postgres", [300.0, 290.0, 280.0, 280.0])
    add_pinned(results, "pgqueuer", [100.0, 70.0, 40.0, 40.0])
    results.add("steady", "pgqueuer", 0, 60.0, "jobs/s", extra={"p99": 90.0, "limited_by": "worker"})
    extra: dict[str, object] = {"full": "all 2 cores", "store_cores": 1.25}
    results.add("saturation", "pgqueuer", 0, 90.0, "jobs/s", extra=extra)
    for measure in GROWTH:
        for x in (0, 10, 1_000):
            extra = {"x": x, "postgres_us": 17.0 + x / 100, "python_us": 8.0}
            results.add(measure, "ropeway-postgres", 0, 50_000.0, "jobs/s", extra=extra)
    return results


def page(results: Results) -> str:
    return report.markdown(results, [chart.file for chart in charts.draw(results)])


def test_the_page_says_who_is_ahead() -> None:
    text = page(a_run())
    assert "**Ahead of Ropeway:** pgmq 1.2.3 (messages): 1,000 per call by 1.67×." in text
    assert "| pgmq 1.2.3 (messages) |  |  | 1,750 (1,700 to 1,800) | **0.60×** |" in text
    assert "Nobody here is ahead of Ropeway." in text


def test_the_page_says_who_did_not_run_and_what_went_wrong() -> None:
    text = page(a_run())
    assert "## Did not run\n\n- streaq: pip found no version 99" in text
    assert "1,000 per call: unsupported: it has no call for many jobs (SAQ 1.2.3)" in text
    assert "3 jobs did not run exactly once (SAQ 1.2.3)" in text


def test_the_page_says_which_repeats_failed_and_how_often_each_was_taken() -> None:
    results = a_run()
    results.add("drain1", "pgqueuer", 1, 100.0, "jobs/s")
    results.add_missing("drain1", "pgqueuer", 9, FAILED, "no job started")
    text = page(results)
    assert re.search(r"^- .*: 1 of \d repeats failed: no job started \(PgQueuer 1\.2\.3\)$", text, re.MULTILINE)
    assert "| repeats | 2, interleaved; " in text
    assert "; `drain1` only 1 to 2; " in text
    assert "; `idle` only 1; " in text


def test_the_page_says_what_the_limit_was() -> None:
    text = page(a_run())
    assert "| PgQueuer 1.2.3 | 60.0 |  | 90.0 |  | 1.25 |" in text
    assert "- p99 under 200 ms: more is too much for the worker (PgQueuer 1.2.3)" in text
    assert "- store saturated: what is full: all 2 cores (PgQueuer 1.2.3)" in text
    assert "There is nobody to compare with." in text


def test_the_page_has_machine_stores_settings_sources_and_targets() -> None:
    text = page(a_run())
    assert "| processor | a processor |" in text
    assert "`fsync = on`" in text
    assert "- throughput: `batch=500` (<https://example.org/docs>)" in text
    assert re.search(r"\| drain, 1 process \| PgQueuer 1\.2\.3 \| at least 2× \| 2\.79× .* \| met \|", text)
    assert "make bench-full" in text


def test_the_page_says_what_was_measured_elsewhere() -> None:
    results = made(drain1={"pgqueuer": 1.0}, single={"pgqueuer": 1.0})
    for sample in results.samples:
        del sample["on"]  # as samples were before they told
    assert "| processor | a processor |" in report.markdown(results, [])
    results.go_on({"processor": "another processor"})
    results.add("drain1", "pgqueuer", 0, 2.0, "jobs/s")
    assert "| processor | another processor; a processor (`single`) |" in report.markdown(results, [])


def test_peers_on_another_store_stand_beside_ropeway_and_it_says_so() -> None:
    text = page(a_run())
    redis = text[text.index("## Redis") : text.index("## A killed worker, on every store")]
    assert "**Ropeway on PostgreSQL**" in redis
    assert "| Celery 1.2.3 | 12.5 (12.0 to 13.0) | 24× |" in redis
    assert "| Celery 1.2.3 | not within 300 s | ahead |" in redis


def test_the_page_shows_every_chart_that_is_drawn(tmp_path: Path) -> None:
    a_run().save(tmp_path / "results.json")
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "of-an-earlier-run.svg").touch()
    written = report.write(tmp_path / "results.json", tmp_path)
    text = (tmp_path / "RESULTS.md").read_text()
    assert sorted(re.findall(r"\]\(charts/(.+)\)", text)) == sorted(
        held.name for held in (tmp_path / "charts").iterdir()
    )
    assert {path.name for path in written} == {
        "RESULTS.md", "drain-postgres.svg", "enqueue-postgres.svg", "costs-postgres.svg", "latency-postgres.svg",
        "pinned-postgres.svg", "drain-redis.svg", "costs-redis.svg", "recovery.svg", "growth.svg",
    }  # fmt: skip


def test_hostile_text_stays_text_on_the_page() -> None:
    results = a_run()
    results.peers["pgqueuer"]["label"] = HOSTILE
    results.add_missing("single", "saq-postgres", 0, FAILED, f"{HOSTILE}\n## Not a heading")
    text = page(results)
    assert "<script>" not in text
    assert "\n## Not a heading" not in text
    rows = [line for line in text.splitlines() if "alert" in line and line.startswith("|")]
    assert rows
    assert all(r"\| \`co\`" in row for row in rows)


def test_the_terminals_table() -> None:
    results = a_run()
    results.add_missing("half", "pgqueuer", 1, FAILED, "it broke")
    text = report.table(results)
    assert "failed: half #1, PgQueuer 1.2.3: it broke" in text
    assert re.search(r"^not measured: \d+ of \d+ targets$", text, re.MULTILINE)
    assert re.search(r"^pgmq 1\.2\.3 \(messages\) .* 1,750 +0\.60× <$", text, re.MULTILINE)
    assert re.search(r"^SAQ 1\.2\.3 .* none ", text, re.MULTILINE)
    assert "did not run: streaq: pip found no version 99" in text
    assert "\nmet: drain, 1 process, against PgQueuer 1.2.3: 2.79×" in text


def texts(drawn: str) -> list[str]:
    """What is written in a chart."""
    root = ElementTree.fromstring(drawn)
    return ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]


def test_charts_are_well_formed_and_name_everybody() -> None:
    drawn = {chart.file: texts(chart.svg) for chart in charts.draw(a_run())}
    assert {"Ropeway", "PgQueuer 1.2.3", "pgmq 1.2.3 (messages)", "SAQ 1.2.3", "1,750", "none"} <= set(
        drawn["enqueue-postgres.svg"]
    )
    assert {"Ropeway", "PgQueuer 1.2.3", "2.00", "4.00", "8.00"} <= set(drawn["latency-postgres.svg"])
    assert {"Ropeway", "PgQueuer", "rounds of 100k jobs"} <= set(drawn["pinned-postgres.svg"])
    assert {"Ropeway, PostgreSQL", "Celery, Redis", "not within 300 s", "0.60"} <= set(drawn["recovery.svg"])
    assert {grows for grows, _ in GROWTH.values()} <= set(drawn["growth.svg"])


def test_charts_survive_hostile_text() -> None:
    results = a_run()
    for peer in results.peers.values():
        peer["label"] = HOSTILE
    results.machine["processor"] = HOSTILE
    for chart in charts.draw(results):
        assert "<script" not in chart.svg
        assert any("<script>" in words for words in texts(chart.svg)), chart.file


def test_charts_are_for_light_and_dark_pages() -> None:
    for chart in charts.draw(a_run()):
        assert "@media (prefers-color-scheme: dark)" in chart.svg
        assert set(re.findall(r'class="([^"]+)"', chart.svg)) <= set(re.findall(r"\.([\w-]+)\{", chart.svg)) | {
            "ground frame"
        }


@pytest.mark.parametrize("light", [True, False])
def test_text_and_shapes_stand_out_from_their_ground(light: bool) -> None:
    colours = {name: (what, on_light if light else on_dark) for name, what, on_light, on_dark in svg._COLOURS}
    ground = colours["ground"][1]
    for name, (_, colour) in colours.items():
        if name in ("ground", "frame", "grid", "axis", "stem", "stem-ours", "bar-kin", "line-kin", "dot-kin"):
            continue  # what only helps the eye, or has its figure in words beside it
        wanted = 4.5 if name in ("ink", "quiet", "ours-ink") or name.startswith("name-") else 3.0
        assert contrast(colour, ground) >= wanted, name


def contrast(one: str, other: str) -> float:
    """As the accessibility guidelines of the web count it."""

    def brightness(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((brightness(one), brightness(other)))
    return (high + 0.05) / (low + 0.05)


def test_nothing_fails_on_empty_results(tmp_path: Path) -> None:
    assert list(charts.draw(Results())) == []
    assert "Nothing was measured." in report.table(Results())
    assert report.write(tmp_path / "none.json", tmp_path) == [tmp_path / "RESULTS.md"]
    assert "not measured" in (tmp_path / "RESULTS.md").read_text()


def test_nothing_fails_when_everybody_failed() -> None:
    results = Results()
    for measure in ("single", "bulk", "drain1", "drain2", "idle", "half", "pinned", "recovery", "spike", *GROWTH):
        for peer in ("ropeway-postgres", "pgqueuer"):
            know(results, peer)
            results.add_missing(measure, peer, 0, FAILED, "it broke", extra={"x": 1})
    assert "it broke" in page(results)
    assert "did not run: PgQueuer 1.2.3: it broke" in report.table(results)


def test_labels_keep_their_distance() -> None:
    places = svg.apart([10.0, 10.0, 11.0, 50.0, 99.0], 14, 0.0, 100.0)
    assert all(later - earlier >= 13.99 for earlier, later in pairwise(places))
    assert min(places) >= 0
    assert max(places) <= 100
    # In the order in which they were wanted, and closer together where there is no room.
    assert svg.apart([30.0, 20.0], 14, 0.0, 100.0)[0] > svg.apart([30.0, 20.0], 14, 0.0, 100.0)[1]
    assert len(svg.apart([5.0] * 30, 14, 0.0, 100.0)) == 30
    assert svg.apart([], 14, 0.0, 100.0) == []


@pytest.mark.parametrize(("low", "high"), [(0.8, 300.0), (2.0, 2.0), (0.001, 0.002), (1.0, 10.0)])
def test_a_logarithmic_scale_holds_what_it_must(low: float, high: float) -> None:
    steps = svg.log_steps(low, high)
    assert steps[0] <= low * 1.001
    assert steps[-1] >= high * 0.999
    assert len(steps) >= 2
    assert steps == sorted(steps)


def test_a_linear_scale_has_a_few_round_steps() -> None:
    assert svg.round_steps(50_000, 4) == [0, 20_000, 40_000]
    assert svg.round_steps(0) == [0.0]
    assert svg.round_steps(7.3, 4) == [0, 2, 4, 6]


def test_a_label_that_is_too_long_is_shortened() -> None:
    assert svg.shortened("short", 100) == "short"
    assert svg.shortened("x" * 100, 100).endswith("…")
    assert svg.width_of(svg.shortened("x" * 100, 100)) <= 100
