"""How it was, drawn: rates, depth, waits and runs over time."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.conftest import Furnished, Tabs
from tests.browser.house import House

CHARTS = ("flow", "depth", "waits", "runs")

#: Whether a drawing has anything on it but its background.
PAINTED = """(canvas) => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height)
    .data.some((value) => value !== 0)"""


def drawings(page: Page) -> list[bool]:
    """Of each chart, whether something is drawn."""
    for name in CHARTS:
        expect(page.locator(f"[data-chart={name}] canvas")).to_be_visible()
    return [page.locator(f"[data-chart={name}] canvas").evaluate(PAINTED) for name in CHARTS]


def test_what_the_store_remembers_is_drawn(shown: Furnished, tabs: Tabs) -> None:
    page = tabs.open(shown.url)
    assert drawings(page) == [True] * len(CHARTS)
    for name in CHARTS:
        expect(page.locator(f"[data-chart={name}] [data-none]")).to_be_hidden()
    expect(page.locator("[data-chart=flow] .u-legend")).to_contain_text("succeeded")


def test_another_stretch_of_time_can_be_chosen(shown: Furnished, tabs: Tabs) -> None:
    page = tabs.open(shown.url)
    drawings(page)
    hour = page.get_by_role("button", name="1 hour")
    with page.expect_response(re.compile(r"/ui/history\?range=1h$")):
        hour.click()
    expect(hour).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("button", name="15 minutes")).to_have_attribute("aria-pressed", "false")
    assert drawings(page) == [True] * len(CHARTS)


def test_a_store_that_remembers_nothing_says_so(house: House, tabs: Tabs) -> None:
    page = tabs.open(house.url)
    for name in CHARTS:
        expect(page.locator(f"[data-chart={name}] [data-none]")).to_be_visible()
        expect(page.locator(f"[data-chart={name}] canvas")).to_have_count(0)


def test_charts_stay_while_the_page_updates(shown: Furnished, tabs: Tabs) -> None:
    page = tabs.open(shown.url)
    drawings(page)
    page.evaluate("document.querySelector('[data-chart=flow] canvas').dataset.mine = 'yes'")
    with page.expect_event("requestfinished", lambda request: request.headers.get("hx-request") == "true"):
        pass
    expect(page.locator("[data-chart=flow] canvas[data-mine=yes]")).to_be_visible()
