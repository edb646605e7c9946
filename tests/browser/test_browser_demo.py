"""`ropeway demo` as a person meets it: start it, open the address that it prints, look round."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from devtools.waiting import wait_until
from tests.browser.conftest import Tabs


@pytest.fixture
def demo_address(tmp_path: Path) -> Iterator[str]:
    """Where the dashboard of a running demo is, as the demo says it."""
    said = tmp_path / "said.txt"
    with said.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "ropeway", "demo", "--port", "0"], cwd=tmp_path, stdout=file, stderr=file
        )
    try:

        def address() -> re.Match[str] | None:
            assert process.poll() is None, said.read_text()
            return re.search(r"The dashboard: (http://\S+)", said.read_text())

        yield wait_until(address, within=45, what="the demo says where its dashboard is")[1]
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_the_demo_can_be_looked_at(demo_address: str, tabs: Tabs) -> None:
    page = tabs.open(demo_address)
    expect(page.locator("[data-pulse]")).to_have_text("live")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    expect(page.locator(".tile.dead .value")).not_to_have_text("0")
    expect(page.locator(".tile.succeeded .value")).not_to_have_text("0")
    for name in ("Queues", "Jobs", "Dead letters", "Schedules", "Workers", "Events", "Settings"):
        page.get_by_role("navigation", name="Pages").get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(name)
        expect(page.locator("main table").first).to_be_visible()
    page.goto(f"{demo_address}ui/jobs?status=dead")
    page.locator("tbody a.id").first.click()
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("status")).to_contain_text("The job runs again")
