"""What a page offers to copy: with the keyboard too, with an answer, and where there is no clipboard."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Furnished, Tabs

pytestmark = pytest.mark.slow

#: Over plain HTTP browsers give scripts no clipboard. This host counts as safe, so it is taken away.
NO_CLIPBOARD = "Object.defineProperty(Navigator.prototype, 'clipboard', { get: () => undefined })"


def command_of(page: Page, shown: Furnished) -> Locator:
    """The command on the page of a job, in sight."""
    page.goto(f"{shown.url}/ui/jobs/{shown.ids.running}")
    page.get_by_text("Make such a job again").click()
    return page.locator("#curl")


def press(page: Page, name: str) -> None:
    button = page.get_by_role("button", name=name)
    button.focus()
    page.keyboard.press("Enter")


def test_a_command_is_copied_and_the_page_says_so(shown_sqlite: Furnished, tabs: Tabs) -> None:
    page = tabs.new()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    command = command_of(page, shown_sqlite)
    press(page, "Copy the command")
    expect(page.get_by_text("Copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == command.text_content()
    press(page, "Copy the id")
    expect(page.get_by_text("Copied.")).to_have_count(2)
    assert page.evaluate("navigator.clipboard.readText()") == str(shown_sqlite.ids.running)


def test_without_a_clipboard_the_text_is_selected(shown_sqlite: Furnished, tabs: Tabs) -> None:
    page = tabs.new()
    page.add_init_script(NO_CLIPBOARD)
    command = command_of(page, shown_sqlite)
    press(page, "Copy the command")
    expect(page.get_by_text("Selected")).to_be_visible()
    assert page.evaluate("getSelection().toString()") == command.text_content()


def test_without_scripts_there_is_nothing_to_press(shown_sqlite: Furnished, tabs: Tabs) -> None:
    page = tabs.new(scripts=False)
    expect(command_of(page, shown_sqlite)).to_be_visible()
    expect(page.get_by_role("button", name="Copy")).to_have_count(0)
