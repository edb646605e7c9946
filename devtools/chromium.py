"""Debian's Chromium for tests, driven by Playwright, which downloads no browser of its own.

    with open_chromium(obtain_program("chromium")) as browser:
        page = browser.new_page()

Playwright's sync interface leaves an event loop running in the thread that uses it: give it a thread of its own
where other tests of the same process run loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from devtools.private import NotAvailable

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: No sandbox: tests also run as root and in containers, where it cannot be had. The rest keeps it to itself.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)


@contextmanager
def open_chromium(program: str) -> Iterator[Browser]:
    """A headless browser while the block lasts; NotAvailable, with the reason, when it does not start."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        raise NotAvailable(f"playwright is not installed: {error}") from error
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        except Error as error:
            raise NotAvailable(f"{program} does not start: {error.message.splitlines()[0]}") from error
        try:
            yield browser
        finally:
            browser.close()
