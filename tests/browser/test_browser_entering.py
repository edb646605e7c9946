"""Coming in from elsewhere: a link to a job, sent by somebody, opens the job."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from ropeway.core.access import Scope
from ropeway.core.job import NewJob
from tests.browser.conftest import Tabs
from tests.browser.house import House

pytestmark = pytest.mark.slow


def follow_from_elsewhere(page: Page, address: str) -> None:
    """Click a link on a page that is not of our site."""
    page.goto("data:text/html," + quote(f'<a href="{address}">see this</a>'))
    page.get_by_role("link", name="see this").click()


def test_a_link_from_elsewhere_opens_the_job_before_and_after_signing_in(locked_house: House, tabs: Tabs) -> None:
    (id,) = locked_house.enqueue(NewJob("mail.send", queue="mails"))
    address = f"{locked_house.url}/ui/jobs/{id}"
    page = tabs.new()
    follow_from_elsewhere(page, address)
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to Ropeway")
    page.get_by_label("API key").fill(locked_house.key(Scope.READ))
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(address)
    expect(page.get_by_role("heading", level=1)).to_have_text("mail.send")
    follow_from_elsewhere(page, address)
    expect(page).to_have_url(address)
    expect(page.get_by_role("heading", level=1)).to_have_text("mail.send")
    links = page.get_by_role("navigation", name="Pages").get_by_role("link")
    expect(links.filter(has_text="Jobs")).to_have_count(1)
    expect(links.filter(has_text="Audit")).to_have_count(0)
    expect(links.filter(has_text="Settings")).to_have_count(0)
