"""What operators do by clicking: the thing is done, and the next page says so."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from ropeway.core.access import Scope
from tests.browser.conftest import Furnished, Tabs
from tests.browser.house import House, fill


def expect_notice(page: Page, words: str) -> None:
    expect(page.get_by_role("status")).to_contain_text(words)


def test_a_queue_is_paused_and_resumed(acted: Furnished, tabs: Tabs) -> None:
    page = tabs.open(f"{acted.url}/ui/queues")
    row = page.get_by_role("row").filter(has_text="images")
    row.get_by_role("button", name="Pause").click()
    expect_notice(page, "The queue images is paused")
    expect(row).to_contain_text("paused")
    row.get_by_role("button", name="Resume").click()
    expect_notice(page, "The queue images goes on")
    expect(row).not_to_contain_text("paused")
    page.reload()
    expect(page.get_by_role("status")).to_have_count(0)
    page.get_by_role("link", name="Audit").click()
    expect(page.get_by_role("row").nth(1)).to_contain_text("queue.resume")
    expect(page.get_by_role("row").nth(2)).to_contain_text("queue.pause")


def test_it_works_without_scripts(filled: Furnished, tabs: Tabs) -> None:
    page = tabs.new(scripts=False)
    page.goto(f"{filled.url}/ui/queues")
    page.get_by_role("row").filter(has_text="images").get_by_role("button", name="Pause").click()
    expect_notice(page, "The queue images is paused")
    page.goto(f"{filled.url}/ui/jobs?status=dead")
    page.locator("[data-pick]").first.check()
    page.locator(".under").get_by_role("button", name="Retry", exact=True).click()
    expect_notice(page, "1 job run")


@pytest.mark.slow
def test_picked_dead_jobs_are_retried(acted: Furnished, tabs: Tabs) -> None:
    page = tabs.open(f"{acted.url}/ui/jobs?status=dead")
    retry = page.locator(".under").get_by_role("button", name="Retry", exact=True)
    expect(retry).to_be_disabled()
    for id in acted.ids.dead[:2]:
        page.locator(f"#job-{id} [data-pick]").check()
    retry.click()
    expect_notice(page, "2 jobs run again")
    expect(page).to_have_url(re.compile(r"/ui/jobs\?.*status=dead"))
    expect(page.locator("tbody tr")).to_have_count(len(acted.ids.dead) - 2)
    assert [acted.house.state_of(id) for id in acted.ids.dead[:3]] == ["queued", "queued", "dead"]


@pytest.mark.slow
def test_all_found_are_cancelled_after_a_second_yes(acted: Furnished, tabs: Tabs) -> None:
    page = tabs.open(f"{acted.url}/ui/jobs?queue=images&status=queued")
    page.get_by_role("button", name="Cancel all found").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 4 jobs?")
    expect(page.locator(".confirm")).to_contain_text("images")
    assert acted.house.state_of(acted.ids.queued[0]) == "queued"
    page.get_by_role("button", name="Cancel 4 jobs").click()
    expect_notice(page, "4 jobs cancelled")
    expect(page).to_have_url(re.compile(r"queue=images"))
    assert {acted.house.state_of(id) for id in acted.ids.queued} == {"cancelled"}
    assert acted.house.state_of(acted.ids.scheduled) == "scheduled"


@pytest.mark.slow
def test_a_job_is_retried_and_cancelled_on_its_page(acted: Furnished, tabs: Tabs) -> None:
    page = tabs.open(f"{acted.url}/ui/jobs/{acted.ids.dead[0]}")
    page.get_by_role("button", name="Retry").click()
    expect_notice(page, "The job runs again")
    expect(page.locator(".headline .state")).to_have_text("queued")
    expect(page.locator("[data-pulse]")).to_have_text("live")  # from then on the page asks before it cancels
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Cancel").click()
    assert acted.house.state_of(acted.ids.dead[0]) == "queued"
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    expect_notice(page, "The job is cancelled")
    expect(page.locator(".headline .state")).to_have_text("cancelled")


@pytest.mark.slow
def test_a_job_is_put_off(filled: Furnished, tabs: Tabs) -> None:
    page = tabs.open(f"{filled.url}/ui/jobs/{filled.ids.queued[0]}")
    page.get_by_label("Due in").fill("90")
    page.get_by_role("button", name="Reschedule").click()
    expect_notice(page, "The job is due in 90 seconds")
    expect(page.locator(".headline .state")).to_have_text("scheduled")


@pytest.mark.slow
def test_a_group_of_dead_jobs_is_replayed(acted: Furnished, tabs: Tabs) -> None:
    page = tabs.open(f"{acted.url}/ui/dead")
    page.get_by_role("row").filter(has_text="ConnectionRefusedError").get_by_role("button", name="Replay").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Replay 3 dead jobs?")
    page.get_by_role("button", name="Replay 3 jobs").click()
    expect_notice(page, "3 jobs run again")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert [acted.house.state_of(id) for id in acted.ids.dead] == ["queued", "queued", "queued", "dead"]


@pytest.mark.slow
def test_picked_groups_are_replayed(filled: Furnished, tabs: Tabs) -> None:
    page = tabs.open(f"{filled.url}/ui/dead")
    page.get_by_label("Pick all groups").check()
    page.get_by_role("button", name="Replay the picked").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Replay 4 dead jobs?")
    page.get_by_role("link", name="Leave them").click()
    expect(page.locator("tbody tr")).to_have_count(2)


@pytest.mark.slow
def test_a_schedule_runs_now(acted: Furnished, tabs: Tabs) -> None:
    page = tabs.open(f"{acted.url}/ui/schedules")
    row = page.get_by_role("row").filter(has_text="nightly-report")
    row.get_by_role("button", name="Run now").click()
    expect_notice(page, "The schedule nightly-report made the job")
    page.goto(f"{acted.url}/ui/jobs?type=report.build&status=queued")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_signing_in_and_out(locked_house: House, tabs: Tabs) -> None:
    page = tabs.open(locked_house.url)
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to Ropeway")
    page.get_by_label("API key").fill(locked_house.key(Scope.READ, Scope.ADMIN))
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    expect(page.locator(".role")).to_have_text("operator")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to Ropeway")
    page.goto(f"{locked_house.url}/ui/jobs")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to Ropeway")


@pytest.mark.slow
def test_who_may_only_look_has_no_buttons(locked_house: House, tabs: Tabs) -> None:
    ids = locked_house.on_engine(fill)
    page = tabs.open(locked_house.url)
    page.get_by_label("API key").fill(locked_house.key(Scope.READ))
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".role")).to_have_text("read-only")
    for path in ("ui/queues", "ui/dead", "ui/schedules", f"ui/jobs/{ids.dead[0]}"):
        page.goto(f"{locked_house.url}/{path}")
        expect(page.locator("#live")).to_be_visible()
        expect(page.locator("#live button, [data-pick]")).to_have_count(0)
    expect(page.get_by_text("Hidden: your key lacks the scope read:payload").first).to_be_visible()
