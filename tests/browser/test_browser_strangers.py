"""What comes from elsewhere: the keyboard instead of a mouse, hostile text in jobs, a proxy that adds a path."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Dialog, Page, expect

from ropeway.core.job import NewJob, Progress
from ropeway.core.joblog import LogLine
from ropeway.core.outcome import Done, Failed
from ropeway.core.payload import clean_error
from ropeway.engines.protocol import Engine, Settlement
from tests.browser.conftest import Furnished, Tabs
from tests.browser.house import House, run_all
from tests.browser.prefixed import below_a_path

pytestmark = pytest.mark.slow

# ── The keyboard ──


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent.trim()"))


def test_the_keyboard_is_enough(filled: Furnished, tabs: Tabs) -> None:
    page = tabs.open(filled.url)
    order = []
    for _ in range(4):
        page.keyboard.press("Tab")
        order.append(focused(page))
    assert order == ["Skip to the content", "Ropeway", "Overview", "Queues"]
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    box = page.locator("[data-pick]").first
    box.focus()
    page.keyboard.press("Space")
    expect(box).to_be_checked()
    expect(page.locator("[data-picked-count]")).to_have_text("1")
    page.keyboard.press("Space")
    expect(page.locator("[data-picked-count]")).to_have_text("none")


def test_the_skip_link_goes_to_the_content(shown_sqlite: Furnished, tabs: Tabs) -> None:
    page = tabs.open(f"{shown_sqlite.url}/ui/queues")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


# ── Hostile text ──

HOSTILE = [
    "<script>window.hacked = 1; alert(1)</script>",
    "<img src=x onerror='window.hacked = 2; alert(2)'>",
    '"><svg onload="window.hacked = 3"><a href=\'javascript:window.hacked=4\'>',
    "</code></pre></script><iframe srcdoc='<script>parent.hacked = 5</script>'></iframe>",
    "{{ 7 * 7 }} {% raw %} &lt;b&gt; \u202e\u2028 hx-on:click='window.hacked=6'",
]
ALL = " ".join(HOSTILE)


async def furnish(engine: Engine) -> list[Any]:
    """Hostile text wherever the store takes text."""
    payload = json.dumps({"text": HOSTILE, HOSTILE[0]: 1}).encode()
    tags = tuple(text[:60] for text in HOSTILE)
    job = NewJob("hostile.job", payload, "hostile", tags=tags, headers={"note": ALL}, idempotency_key=HOSTILE[1])
    (dead,) = await engine.enqueue([job])
    (lease,) = await run_all(engine, "hostile", None)
    await engine.progress([(lease, Progress(1, 2, ALL))])
    await engine.log([(lease, LogLine(text)) for text in HOSTILE])
    await engine.settle([Settlement(lease, Failed(clean_error(HOSTILE[1], ALL, ALL), retry=False))])
    (done,) = await engine.enqueue([NewJob("hostile.job", payload, "hostile")])
    await run_all(engine, "hostile", Done(payload))
    (running,) = await engine.enqueue([NewJob("hostile.job", payload, "hostile")])
    (lease,) = await run_all(engine, "hostile", None)
    await engine.progress([(lease, Progress(1, 2, ALL))])
    return [dead.id, done.id, running.id]


def test_hostile_text_is_text(house: House, tabs: Tabs) -> None:
    ids = house.on_engine(furnish)
    page = tabs.new()
    appeared: list[str] = []

    def note(dialog: Dialog) -> None:
        appeared.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", note)
    paths = ["", "ui/queues", "ui/jobs", "ui/dead", "ui/events", "ui/audit", *(f"ui/jobs/{id}" for id in ids)]
    for path in paths:
        page.goto(f"{house.url}/{path}")
        expect(page.locator("[data-pulse]")).to_have_text("live")
        assert page.evaluate("window.hacked") is None, path
        strange = "main script, main iframe, main img, main svg[onload], main a[href^='javascript']"
        expect(page.locator(strange)).to_have_count(0)
    assert appeared == []
    page.goto(f"{house.url}/ui/jobs/{ids[0]}")
    for text in HOSTILE[:4]:
        expect(page.locator(".log")).to_contain_text(text)
        expect(page.locator("p.error")).to_contain_text(text)
    expect(page.locator(".tag").first).to_have_text(HOSTILE[0][:60])
    page.goto(f"{house.url}/ui/jobs?error={HOSTILE[0]}&queue={HOSTILE[1]}")
    assert page.evaluate("window.hacked") is None


# ── A path before it ──


def test_it_works_below_a_path(filled: Furnished, tabs: Tabs) -> None:
    with below_a_path(filled.url) as address:
        page = tabs.open(f"{address}/")
        expect(page.locator("[data-pulse]")).to_have_text("live")
        page.get_by_role("navigation", name="Pages").get_by_role("link", name="Jobs").click()
        page.locator(f"#job-{filled.ids.dead[0]} a.id").click()
        expect(page).to_have_url(f"{address}/ui/jobs/{filled.ids.dead[0]}")
        expect(page.locator("[data-pulse]")).to_have_text("live")
        page.get_by_role("button", name="Retry").click()
        expect(page.get_by_role("status")).to_contain_text("The job runs again")
        expect(page).to_have_url(f"{address}/ui/jobs/{filled.ids.dead[0]}")
        page.get_by_role("link", name="Queues").click()
        page.get_by_role("row").filter(has_text="images").get_by_role("button", name="Pause").click()
        expect(page.get_by_role("status")).to_contain_text("The queue images is paused")
        expect(page).to_have_url(re.compile(f"^{re.escape(address)}/ui/queues$"))
        page.close()
