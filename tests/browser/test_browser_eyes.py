"""The tests' own tools: what is wrong with a page is seen, and the browser is in nobody's way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from devtools.chromium import open_chromium
from devtools.private import NotAvailable
from tests.browser.conftest import Furnished, Tabs


def test_what_is_wrong_with_a_page_is_seen(shown_sqlite: Furnished, tabs: Tabs) -> None:
    page = tabs.open(f"{shown_sqlite.url}/ui/settings")
    with page.expect_console_message(lambda said: "stopped by the policy" in said.text):
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">')")
    assert any("style-src" in text for text in tabs.wrong)
    tabs.wrong.clear()
    with page.expect_event("pageerror"):
        page.evaluate("() => { setTimeout(() => { throw new Error('oh') }) }")
    assert any("oh" in text for text in tabs.wrong)
    tabs.wrong.clear()
    tabs.allowed.append("elsewhere.invalid")
    with page.expect_request("http://elsewhere.invalid/"):
        page.evaluate("() => { location = 'http://elsewhere.invalid/' }")


def test_other_tests_can_run_loops(browser_thread: Any) -> None:
    asyncio.run(asyncio.sleep(0))


def test_a_browser_that_does_not_start_is_not_available(chromium: str) -> None:
    with pytest.raises(NotAvailable, match="does not start"), open_chromium("/bin/false"):
        pass
