"""Every page of the dashboard: it opens, fits on a phone, can be read by everybody, and looks as it should."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from ropeway.core.job import NewJob
from tests.browser.conftest import Furnished, Tabs

#: Where each page is, and its heading. Of jobs there is one page for each state.
PAGES = {
    "overview": ("", "Overview"),
    "queues": ("ui/queues", "Queues"),
    "jobs": ("ui/jobs", "Jobs"),
    "dead": ("ui/dead", "Dead letters"),
    "schedules": ("ui/schedules", "Schedules"),
    "workers": ("ui/workers", "Workers"),
    "events": ("ui/events", "Events"),
    "audit": ("ui/audit", "Audit log"),
    "settings": ("ui/settings", "Settings"),
    "login": ("ui/login", "Sign in to Ropeway"),
}
#: A folder to leave pictures of all pages in; without it they go to pytest's own.
SHOTS = "ROPEWAY_TEST_SHOTS"


def addresses(shown: Furnished) -> dict[str, str]:
    """All pages."""
    found = {name: f"{shown.url}/{path}" for name, (path, _) in PAGES.items()}
    return found | {f"job-{state}": f"{shown.url}/ui/jobs/{id}" for state, id in shown.ids.one_of_each().items()}


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["light", "dark"])
def test_every_page_opens(shown: Furnished, tabs: Tabs, dark: bool) -> None:
    page = tabs.new(dark=dark)
    for name, address in addresses(shown).items():
        answer = page.goto(address)
        assert answer is not None
        assert answer.status == 200, name
        if name in PAGES:
            expect(page.get_by_role("heading", level=1)).to_have_text(PAGES[name][1])
        else:
            expect(page.locator(".headline .state")).to_have_text(name.removeprefix("job-"))
        if name != "login":
            expect(page.locator("[data-pulse]")).to_have_text("live")
    scheme = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert scheme is dark


def test_an_address_that_is_no_page_says_so(shown_sqlite: Furnished, tabs: Tabs) -> None:
    tabs.allowed.append("404")
    page = tabs.open(f"{shown_sqlite.url}/ui/nowhere")
    expect(page.get_by_role("alert")).to_have_text("there is no such page")
    page.get_by_role("link", name="To the overview").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


def test_a_phone_needs_no_scrolling_to_the_side(shown: Furnished, tabs: Tabs) -> None:
    page = tabs.new(phone=True)
    for name, address in addresses(shown).items():
        page.goto(address)
        width = page.evaluate("document.scrollingElement.scrollWidth")
        assert width <= page.evaluate("innerWidth"), f"{name} is {width} wide: {too_wide(page)}"
    page.goto(f"{shown.url}/ui/jobs")
    box = page.locator(".scroll").first
    wider = box.evaluate("(box) => box.scrollWidth > box.clientWidth")
    assert wider, "the table scrolls in its own box"


def too_wide(page: Page) -> list[str]:
    """The elements that stick out, for the message of a failure."""
    found: list[str] = page.evaluate(
        """[...document.querySelectorAll("body *")]
            .filter((one) => one.getBoundingClientRect().right > innerWidth && !one.closest(".scroll, nav"))
            .map((one) => one.outerHTML.slice(0, 120))"""
    )
    return found[:5]


#: Asks axe, which is in the page, for what is wrong with its colours.
COLOURS = "async () => (await axe.run({runOnly: ['color-contrast']})).violations"


def unreadable(page: Page, name: str, *, whole: bool) -> dict[str, list[str]]:
    """What is wrong with the page that is open, in light and in dark. Not `whole`: in dark only its colours are
    looked at, all else is most likely the same."""
    page.emulate_media(color_scheme="light")
    light = Axe().run(page).response["violations"]
    page.emulate_media(color_scheme="dark")
    dark = Axe().run(page).response["violations"] if whole else page.evaluate(COLOURS)
    found = {}
    for look, violations in (("light", light), ("dark", dark)):
        for wrong in violations:
            if wrong["impact"] in ("serious", "critical"):
                where = [f"{one['html'][:150]} {one['failureSummary'][:300]}" for one in wrong["nodes"][:3]]
                found[f"{name} in {look}: {wrong['id']}"] = where
    return found


@pytest.mark.slow
@pytest.mark.parametrize("phone", [False, True], ids=["desk", "phone"])
def test_everybody_can_read_it(shown_sqlite: Furnished, tabs: Tabs, phone: bool) -> None:
    page = tabs.new(phone=phone)
    skipped = {"job-queued", "job-scheduled", "job-cancelled", "job-retrying"}  # they have no parts of their own
    found = {}
    for name, address in addresses(shown_sqlite).items():
        if name not in skipped:
            page.goto(address)
            found |= unreadable(page, name, whole=phone)
    assert found == {}


@pytest.mark.slow
@pytest.mark.parametrize("phone", [False, True], ids=["desk", "phone"])
def test_everybody_can_read_what_comes_after_a_click(filled: Furnished, tabs: Tabs, phone: bool) -> None:
    """The pages that ask, those that refuse, what is opened, and events as they run by."""
    tabs.allowed += ["404", "422"]
    page = tabs.new(phone=phone)
    found = {}

    page.goto(f"{filled.url}/ui/jobs/{filled.ids.queued[0]}")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel this job?")
    found |= unreadable(page, "cancel a job", whole=True)

    page.goto(f"{filled.url}/ui/jobs?queue=images")
    page.get_by_text("Columns", exact=True).click()
    page.get_by_text("More", exact=True).click()
    found |= unreadable(page, "what can be chosen", whole=True)
    page.get_by_role("button", name="Cancel all found").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 4 jobs?")
    found |= unreadable(page, "cancel all found", whole=True)

    page.goto(f"{filled.url}/ui/jobs?queue=images")
    page.locator("[data-pick]").first.check()
    page.locator(".under").get_by_role("button", name="Retry …", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Retry 1 job?")
    found |= unreadable(page, "retry the picked", whole=True)

    page.goto(f"{filled.url}/ui/dead")
    page.locator("tr[id^=group-]").first.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Replay 3 dead jobs?")
    found |= unreadable(page, "replay a group", whole=True)

    page.goto(f"{filled.url}/ui/jobs?columns=nonsense")
    expect(page.get_by_role("alert")).to_contain_text("there is no column")
    found |= unreadable(page, "refused", whole=True)

    page.goto(f"{filled.url}/ui/events")
    expect(page.locator("[data-pulse]")).to_have_text("live")
    (id,) = filled.house.enqueue(NewJob("event.job", queue="quiet", delay=600))
    filled.house.on_engine(lambda engine: engine.cancel([id]))
    expect(page.locator("tr[id^=event-]").filter(has=page.locator(f'a[href$="/{id}"]'))).to_have_count(2)
    found |= unreadable(page, "events", whole=True)
    assert found == {}


@pytest.mark.slow
@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_pictures(shown_sqlite: Furnished, tabs: Tabs, tmp_path: Path, look: str) -> None:
    """Full-page pictures of every page, for people to look at."""
    folder = Path(os.environ.get(SHOTS) or tmp_path)
    page = tabs.new(dark=look == "dark", phone=look == "phone")
    for name, address in addresses(shown_sqlite).items():
        page.goto(address)
        if name != "login":
            expect(page.locator("[data-pulse]")).to_have_text("live")
        page.screenshot(path=folder / f"{name}-{look}.png", full_page=True)
        assert (folder / f"{name}-{look}.png").stat().st_size > 1_000
