"""How pages hear of news: by a stream, by asking where it is held back, and not at all while nobody sees them."""

from __future__ import annotations

import threading

import pytest
from playwright.sync_api import Locator, Page, Request, expect

from ropeway.core.job import NewJob
from tests.browser.conftest import Tabs
from tests.browser.house import House
from tests.browser.prefixed import below_a_path

pytestmark = pytest.mark.slow

#: Milliseconds after which a page gives a silent stream up.
SILENT = 12_000

#: Whether somebody sees a tab: a browser without windows shows all of them.
SEEN = """(seen) => { Object.defineProperty(document, "hidden", { get: () => !seen, configurable: true });
    document.dispatchEvent(new Event("visibilitychange")); }"""


def pulse(page: Page) -> Locator:
    return page.locator("[data-pulse]")


def news(page: Page) -> Locator:
    """What `tell` makes."""
    return page.get_by_role("link", name="fresh", exact=True)


def tell(house: House) -> None:
    house.enqueue(NewJob("fresh.job", queue="fresh"))


def is_stream(request: Request) -> bool:
    return request.url.endswith("/ui/live")


def test_where_a_proxy_holds_the_stream_back_the_page_asks(house: House, tabs: Tabs) -> None:
    held = threading.Event()
    held.set()
    with below_a_path(house.url, held=held) as address:
        page = tabs.new()
        page.clock.install()
        page.goto(f"{address}/")
        expect(pulse(page)).to_have_text("asking")
        tell(house)
        expect(news(page)).to_be_visible()
        held.clear()
        page.clock.fast_forward(SILENT)
        expect(pulse(page)).to_have_text("live")
        page.close()


def test_a_stream_that_falls_silent_is_opened_again(house: House, tabs: Tabs) -> None:
    held = threading.Event()
    with below_a_path(house.url, held=held) as address:
        page = tabs.new()
        page.clock.install()
        page.goto(f"{address}/")
        expect(pulse(page)).to_have_text("live")
        held.set()
        page.clock.fast_forward(SILENT)
        expect(pulse(page)).to_have_text("asking")
        tell(house)
        expect(news(page)).to_be_visible()
        held.clear()
        page.clock.fast_forward(SILENT)
        expect(pulse(page)).to_have_text("live")
        page.close()


def test_lists_are_asked_for_where_streams_are_held_back(house: House, tabs: Tabs) -> None:
    held = threading.Event()
    held.set()
    with below_a_path(house.url, held=held) as address:
        page = tabs.open(f"{address}/ui/jobs")
        (id,) = house.enqueue(NewJob("fresh.job", queue="fresh"))
        expect(page.locator(f"#job-{id}")).to_be_visible()
        page.close()


def test_any_number_of_tabs_can_be_open(house: House, tabs: Tabs) -> None:
    """A browser holds six connections to a host, and a stream takes one for as long as it is open."""
    page = tabs.open(house.url)
    for _ in range(7):
        expect(pulse(page)).to_have_text("live")
        page.evaluate(SEEN, False)
        page = tabs.beside(page)
        page.goto(house.url)
    expect(pulse(page)).to_have_text("live")


def test_a_tab_that_is_seen_again_tells_the_news(house: House, tabs: Tabs) -> None:
    page = tabs.open(house.url)
    expect(pulse(page)).to_have_text("live")
    with page.expect_event("requestfailed", is_stream):
        page.evaluate(SEEN, False)
    tell(house)
    with page.expect_request(is_stream):
        page.evaluate(SEEN, True)
    expect(news(page)).to_be_visible()
