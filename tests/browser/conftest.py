"""The dashboard in a real browser.

    tabs       opens pages: tabs.open(address, dark=False, phone=False) → Playwright's page
    house      a server of this test's own on SQLite, its store empty
    filled     the same, with jobs in every state; `filled.ids`
    shown      as `filled`, shared by the tests that only look; once on SQLite and once on PostgreSQL

A test runs in the thread of the browser: Playwright's sync interface keeps an event loop running in its thread,
and other tests of this process run loops of their own. At the end of each test nothing may be wrong with the pages
it opened: no error on the console, nothing that the security policy stopped, no request to another host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from devtools.chromium import open_chromium
from devtools.private import NotAvailable
from tests.browser.house import PATIENCE, Filled, House, fill, opened, report
from tests.conftest import NOT_RUN
from tests.engines.pg_kit import migrated

#: Tells the console of what the security policy stops.
TELL = """document.addEventListener("securitypolicyviolation", (event) =>
    console.error(`stopped by the policy: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));"""

#: The pages are the same on both; the quick tests look at one.
ON_POSTGRES = pytest.param("postgres", marks=pytest.mark.slow)

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}


class Tabs:
    """Pages of one test, each in a context of its own, and what was wrong with them."""

    def __init__(self, browser: Browser, thread: ThreadPoolExecutor) -> None:
        self._browser = browser
        self.thread = thread
        self._contexts: list[BrowserContext] = []
        self.wrong: list[str] = []
        #: What the console may say in this test.
        self.allowed: list[str] = []

    def new(self, *, dark: bool = False, phone: bool = False, scripts: bool = True) -> Page:
        """An empty tab."""
        context = self._browser.new_context(
            color_scheme="dark" if dark else "light",
            viewport=PHONE if phone else DESK,
            java_script_enabled=scripts,
            reduced_motion="reduce",
        )
        self._contexts.append(context)
        context.set_default_timeout(PATIENCE * 1000)
        context.add_init_script(TELL)
        return self._watched(context.new_page())

    def beside(self, page: Page) -> Page:
        """Another empty tab of the same browser: they share its connections."""
        return self._watched(page.context.new_page())

    def _watched(self, page: Page) -> Page:
        page.on("console", lambda said: self._said(said.type, f"{page.url}: {said.text}"))
        page.on("pageerror", lambda error: self._note(f"{page.url}: {error}"))
        page.on("request", lambda request: self._asked(page.url, request.url))
        return page

    def open(self, address: str, *, dark: bool = False, phone: bool = False) -> Page:
        """A tab with this page in it."""
        page = self.new(dark=dark, phone=phone)
        page.goto(address)
        return page

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self._note(text)

    def _asked(self, page: str, address: str) -> None:
        if not address.startswith(("http://127.0.0.1:", "data:", "about:", "blob:")):
            self._note(f"{page} asked for {address}")

    def _note(self, text: str) -> None:
        if not any(part in text for part in self.allowed):
            self.wrong.append(text)

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture(scope="session")
def browser_thread(chromium: str) -> Iterator[tuple[ThreadPoolExecutor, Browser]]:
    """One browser for all tests of this process, and the one thread that may talk to it."""
    expect.set_options(timeout=PATIENCE * 1000)
    stack = ExitStack()
    with ThreadPoolExecutor(1, thread_name_prefix="browser") as thread:
        try:
            browser = thread.submit(lambda: stack.enter_context(open_chromium(chromium))).result()
        except NotAvailable as error:
            pytest.skip(f"{NOT_RUN}chromium: {error}")
        try:
            yield thread, browser
        finally:
            thread.submit(stack.close).result()


@pytest.fixture
def tabs(browser_thread: tuple[ThreadPoolExecutor, Browser]) -> Iterator[Tabs]:
    thread, browser = browser_thread
    made = Tabs(browser, thread)
    yield made
    thread.submit(made.close).result()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """The test, in the browser's thread."""
    if "tabs" not in pyfuncitem.fixturenames:
        return None
    tabs: Tabs = pyfuncitem.funcargs["tabs"]
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    tabs.thread.submit(pyfuncitem.obj, **arguments).result()
    assert tabs.wrong == []
    return True


# ── Servers ──


class Furnished(NamedTuple):
    """A server whose store has jobs in every state."""

    house: House
    ids: Filled

    @property
    def url(self) -> str:
        return self.house.url


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with opened(f"sqlite:///{tmp_path / 'store.db'}") as house:
        yield house


@pytest.fixture
def locked_house(tmp_path: Path) -> Iterator[House]:
    """A server that asks for a key."""
    with opened(f"sqlite:///{tmp_path / 'store.db'}", auth=True) as house:
        yield house


@pytest.fixture
def filled(house: House) -> Furnished:
    return Furnished(house, house.on_engine(fill))


@pytest.fixture(scope="session")
def sqlite_furnished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Furnished]:
    with opened(f"sqlite:///{tmp_path_factory.mktemp('shown') / 'store.db'}") as house:
        yield Furnished(house, house.on_engine(fill))


@pytest.fixture(scope="session")
def new_postgres_store(make_postgres_database: Any) -> Callable[[], str]:
    """Copies of one migrated database."""
    template = urlsplit(migrated(make_postgres_database())).path.lstrip("/")
    return lambda: make_postgres_database(template=template)


@pytest.fixture(scope="session")
def postgres_furnished(new_postgres_store: Callable[[], str]) -> Iterator[Furnished]:
    with opened(new_postgres_store()) as house:
        yield Furnished(house, house.on_engine(fill))


@pytest.fixture(params=["sqlite", ON_POSTGRES])
def shown(request: pytest.FixtureRequest) -> Furnished:
    """For tests that only look."""
    furnished: Furnished = request.getfixturevalue(f"{request.param}_furnished")
    furnished.house.on_engine(report)
    return furnished


@pytest.fixture
def shown_sqlite(sqlite_furnished: Furnished) -> Furnished:
    """The same, where one engine is enough."""
    sqlite_furnished.house.on_engine(report)
    return sqlite_furnished


@pytest.fixture(params=["sqlite", ON_POSTGRES])
def acted(request: pytest.FixtureRequest) -> Iterator[Furnished]:
    """For tests that act: a store of their own."""
    if request.param == "sqlite":
        yield request.getfixturevalue("filled")
        return
    with opened(request.getfixturevalue("new_postgres_store")()) as house:
        yield Furnished(house, house.on_engine(fill))
