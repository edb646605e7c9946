"""Pages that keep themselves true while somebody looks, and leave alone what that person has opened or picked."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from ropeway.core.job import NewJob, Progress
from ropeway.core.joblog import LogLine
from ropeway.core.outcome import Done
from ropeway.engines.protocol import Settlement
from tests.browser.conftest import Furnished, Tabs
from tests.browser.house import House, run_all

pytestmark = pytest.mark.slow

#: Counts the updates that a page has taken in since it was loaded, and marks the page: a reload loses the mark.
COUNT = """() => { window.updates = 0;
    document.addEventListener("htmx:afterSettle", () => { window.updates += 1; }); }"""

#: Waits until the server has told of four looks at the store: enough for a page to take in a slow update.
FOUR_LOOKS = """() => new Promise((done) => { let looks = 0;
    const stream = new EventSource(document.body.dataset.stream);
    stream.addEventListener("tick", () => { looks += 1; if (looks > 3) { stream.close(); done(); } }); })"""


def watched(page: Page) -> Page:
    page.evaluate(COUNT)
    return page


def expect_updated_in_place(page: Page) -> None:
    """What an update brings is visible before the update has settled, so the count is waited for; a page that
    was loaded again has none."""
    page.wait_for_function("() => window.updates === undefined || window.updates > 0")
    assert page.evaluate("window.updates") is not None, "the page was loaded again"


def wait_for_updates(page: Page, more: int) -> None:
    page.wait_for_function("(until) => window.updates >= until", arg=page.evaluate("window.updates") + more)


def test_a_new_job_shows_up_by_itself(shown: Furnished, tabs: Tabs) -> None:
    page = watched(tabs.open(shown.url))
    expect(page.locator("[data-pulse]")).to_have_text("live")
    shown.house.enqueue(NewJob("fresh.job", queue="fresh"))
    expect(page.get_by_role("link", name="fresh", exact=True)).to_be_visible()
    expect_updated_in_place(page)


def test_events_run_by_as_they_happen(shown: Furnished, tabs: Tabs) -> None:
    page = tabs.open(f"{shown.url}/ui/events")
    (id,) = shown.house.enqueue(NewJob("event.job", queue="quiet", delay=600))
    expect(page.locator(f"#event-{id}-1")).to_contain_text("event.job")


def test_without_a_stream_it_asks(house: House, tabs: Tabs) -> None:
    tabs.allowed.append("ERR_FAILED")
    page = tabs.new()
    page.route("**/ui/live", lambda route: route.abort())
    page.goto(house.url)
    watched(page)
    expect(page.locator("[data-pulse]")).to_have_text("asking")
    house.enqueue(NewJob("fresh.job", queue="fresh"))
    expect(page.get_by_role("link", name="fresh", exact=True)).to_be_visible()
    expect_updated_in_place(page)


def test_a_job_is_followed_to_its_end(filled: Furnished, tabs: Tabs) -> None:
    page = tabs.open(f"{filled.url}/ui/jobs/{filled.ids.queued[0]}")
    expect(page.locator(".headline .state")).to_have_text("queued")
    filled.house.on_engine(lambda engine: engine.cancel([filled.ids.queued[0]]))
    expect(page.locator(".headline .state")).to_have_text("cancelled")
    expect(page.locator(".headline").get_by_role("button", name="Retry")).to_be_visible()


#: Whether the log is scrolled to its end.
AT_ITS_END = """() => { const log = document.querySelector(".log");
    return log.scrollHeight > log.clientHeight && log.scrollHeight - log.scrollTop - log.clientHeight < 8; }"""


def test_the_log_of_a_running_job_is_followed(house: House, tabs: Tabs) -> None:
    (id,) = house.enqueue(NewJob("slow.job", queue="logged"))
    page = watched(tabs.open(f"{house.url}/ui/jobs/{id}"))
    (lease,) = house.on_engine(lambda engine: run_all(engine, "logged", None))
    expect(page.locator(".headline .state")).to_have_text("running")
    log = page.locator(".log")

    def say(*words: str) -> None:
        house.on_engine(lambda engine: engine.log([(lease, LogLine(text)) for text in words]))
        expect(log).to_contain_text(words[-1])

    say(*(f"line {number}" for number in range(200)))
    house.on_engine(lambda engine: engine.progress([(lease, Progress(1, 2, "half way"))]))
    expect(page.get_by_text("half way")).to_be_visible()
    page.wait_for_function(AT_ITS_END)
    say("one more")
    page.wait_for_function(AT_ITS_END)
    log.evaluate("(log) => { log.scrollTop = 0; }")
    wait_for_updates(page, 1)
    say("the last word")
    wait_for_updates(page, 1)
    assert log.evaluate("(log) => log.scrollTop") == 0, "who has scrolled away is left alone"
    expect_updated_in_place(page)
    house.on_engine(lambda engine: engine.settle([Settlement(lease, Done(b"1"))]))
    expect(page.locator(".headline .state")).to_have_text("succeeded")
    expect(log).to_contain_text("the last word")


def test_what_was_opened_stays_open_and_what_was_closed_stays_closed(filled: Furnished, tabs: Tabs) -> None:
    page = watched(tabs.open(f"{filled.url}/ui/jobs/{filled.ids.retrying}"))
    again, payload = page.get_by_text("Make such a job again"), page.get_by_text("2 bytes")
    again.click()
    payload.click()
    filled.house.on_engine(lambda engine: engine.reschedule(filled.ids.retrying, delay=1_200))
    expect(page.locator("#live")).to_contain_text("rescheduled")
    wait_for_updates(page, 1)
    expect(again.locator("xpath=..")).to_have_attribute("open", "")
    expect(payload.locator("xpath=..")).not_to_have_attribute("open", "")


def test_what_was_written_stays(filled: Furnished, tabs: Tabs) -> None:
    page = watched(tabs.open(f"{filled.url}/ui/jobs/{filled.ids.queued[0]}"))
    delay = page.get_by_label("Due in")
    delay.fill("90")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Reschedule")).to_be_focused()
    wait_for_updates(page, 2)
    expect(delay).to_have_value("90")


def test_picked_rows_stay_picked_and_unpicked_pages_go_on(filled: Furnished, tabs: Tabs) -> None:
    page = tabs.open(f"{filled.url}/ui/jobs?queue=images")
    boxes = [page.locator(f"#job-{id} [data-pick]") for id in filled.ids.queued[:2]]
    for box in boxes:
        box.check()
    expect(page.locator("[data-picked-count]")).to_have_text("2")
    (new,) = filled.house.enqueue(NewJob("image.late", queue="images"))
    page.evaluate(FOUR_LOOKS)
    for box in boxes:
        expect(box).to_be_checked()
    for box in boxes:
        box.uncheck()
    expect(page.locator(f"#job-{new}")).to_be_visible()


def test_nothing_jumps(filled: Furnished, tabs: Tabs) -> None:
    page = watched(tabs.open(f"{filled.url}/ui/queues"))
    still = [page.locator("h1"), page.locator("thead"), page.locator("thead th").nth(1), page.locator(".top nav")]
    before = [one.bounding_box() for one in still]
    for _ in range(3):
        filled.house.enqueue(NewJob("image.resize", queue="images"))
        wait_for_updates(page, 1)
        assert [one.bounding_box() for one in still] == before


@pytest.mark.parametrize("place", ["#main", "ui/dead#jobs"])
def test_an_anchor_in_the_address_does_not_pull_the_page_back(filled: Furnished, tabs: Tabs, place: str) -> None:
    page = watched(tabs.open(f"{filled.url}/{place}", phone=True))
    page.wait_for_function("scrollY > 0")
    page.evaluate("scrollTo(0, 0)")
    wait_for_updates(page, 1)
    assert page.evaluate("scrollY") == 0


def test_a_focused_button_stays_that_of_its_row(filled: Furnished, tabs: Tabs) -> None:
    page = tabs.open(f"{filled.url}/ui/queues")
    pause = page.get_by_role("row").filter(has_text="images").get_by_role("button", name="Pause")
    pause.focus()
    filled.house.enqueue(NewJob("early.job", queue="alpha"))
    expect(page.get_by_role("link", name="alpha", exact=True)).to_be_visible()
    expect(pause).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("The queue images is paused")


#: Counts how often an update has let somebody press what needs a picked row.
UNGUARDED = """() => { window.unguarded = 0;
    const buttons = document.querySelectorAll("[data-needs-pick]");
    const watch = new MutationObserver((seen) => {
        window.unguarded += seen.filter((one) => one.oldValue === null).length; });
    const what = { attributeFilter: ["disabled"], attributeOldValue: true };
    for (const button of buttons) watch.observe(button, what);
    return buttons.length; }"""


def rows(page: Page) -> list[str]:
    """The jobs that are listed."""
    return [row.get_attribute("id") or "" for row in page.locator("tbody tr").all()]


def test_older_goes_on_where_the_rows_end(house: House, tabs: Tabs) -> None:
    """Also when others have pushed them down since the page was loaded."""
    house.enqueue(*(NewJob("old.job", queue="many") for _ in range(60)))
    page = watched(tabs.open(f"{house.url}/ui/jobs?queue=many"))
    assert page.evaluate(UNGUARDED) == 2
    older = page.get_by_role("link", name="Older")
    older.focus()
    (*_, newest) = house.enqueue(*(NewJob("new.job", queue="many") for _ in range(5)))
    expect(page.locator(f"#job-{newest}")).to_be_visible()
    expect(older).to_be_focused()
    assert page.evaluate("window.unguarded") == 0
    first = rows(page)
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Newest")).to_be_visible()
    second = rows(page)
    assert (len(first), len(second), len({*first, *second})) == (50, 15, 65)
