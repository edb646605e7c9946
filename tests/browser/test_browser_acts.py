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
    page.locator(".under").get_by_role("button", name="Retry …", exact=True).click()
    page.get_by_role("button", name="Retry 1 job").click()
    expect_notice(page, "1 job run")


def test_a_cancel_is_asked_for_without_scripts_too(filled: Furnished, tabs: Tabs) -> None:
    page = tabs.new(scripts=False)
    page.goto(f"{filled.url}/ui/jobs/{filled.ids.queued[0]}")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel this job?")
    assert filled.house.state_of(filled.ids.queued[0]) == "queued"
    page.get_by_role("button", name="Cancel the job").click()
    expect_notice(page, "The job is cancelled")


@pytest.mark.slow
def test_columns_are_chosen_without_scripts_too(filled: Furnished, tabs: Tabs) -> None:
    page = tabs.new(scripts=False)
    page.goto(f"{filled.url}/ui/jobs?queue=reports")
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Tags").check()
    page.get_by_label("Last error").uncheck()
    page.get_by_role("button", name="Find").click()
    expect(page.locator("thead")).to_contain_text("Tags")
    expect(page.locator("thead")).not_to_contain_text("Last error")
    expect(page.locator(f"#job-{filled.ids.running}")).to_contain_text("big")
    expect(page.locator(".filters input[name=queue]")).to_have_value("reports")


@pytest.mark.slow
def test_picked_dead_jobs_are_retried(acted: Furnished, tabs: Tabs) -> None:
    page = tabs.open(f"{acted.url}/ui/jobs?status=dead")
    retry = page.locator(".under").get_by_role("button", name="Retry …", exact=True)
    expect(retry).to_be_disabled()
    for id in acted.ids.dead[:2]:
        page.locator(f"#job-{id} [data-pick]").check()
    retry.click()
    page.get_by_role("button", name="Retry 2 jobs").click()
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
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel this job?")
    page.get_by_role("link", name="Leave everything as it is").click()
    expect(page.locator(".headline .state")).to_have_text("queued")
    assert acted.house.state_of(acted.ids.dead[0]) == "queued"
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
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
    page.locator("tr[id^=group-]").filter(has_text="ConnectionRefusedError").get_by_role(
        "button", name="Replay"
    ).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Replay 3 dead jobs?")
    page.get_by_role("button", name="Replay 3 jobs").click()
    expect_notice(page, "3 jobs run again")
    expect(page.locator("tr[id^=group-]")).to_have_count(1)
    assert [acted.house.state_of(id) for id in acted.ids.dead] == ["queued", "queued", "queued", "dead"]


@pytest.mark.slow
def test_picked_groups_are_replayed(filled: Furnished, tabs: Tabs) -> None:
    page = tabs.open(f"{filled.url}/ui/dead")
    page.get_by_label("Pick all groups").check()
    page.get_by_role("button", name="Replay the picked groups").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Replay 4 dead jobs?")
    page.get_by_role("link", name="Leave everything as it is").click()
    expect(page.locator("tr[id^=group-]")).to_have_count(2)


@pytest.mark.slow
def test_one_dead_job_and_picked_ones_are_replayed(acted: Furnished, tabs: Tabs) -> None:
    first, second, third, other = acted.ids.dead
    page = tabs.open(f"{acted.url}/ui/dead")
    page.locator(f"#job-{first}").get_by_role("button", name="Replay").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Replay 1 dead job?")
    page.get_by_role("button", name="Replay 1 job").click()
    expect_notice(page, "1 job run again")
    expect(page.locator("tr[id^=job-]")).to_have_count(3)

    jobs = page.get_by_role("button", name="Replay the picked jobs")
    groups = page.get_by_role("button", name="Replay the picked groups")
    expect(jobs).to_be_disabled()
    for id in (second, other):
        page.locator(f"#job-{id} [data-pick]").check()
    expect(page.locator("[data-picked-count=replay-jobs]")).to_have_text("2")
    expect(page.locator("[data-picked-count=replay-groups]")).to_have_text("none")
    expect(groups).to_be_disabled()
    jobs.click()
    page.get_by_role("button", name="Replay 2 jobs").click()
    expect_notice(page, "2 jobs run again")
    states = [acted.house.state_of(id) for id in (first, second, third, other)]
    assert states == ["queued", "queued", "dead", "queued"]


@pytest.mark.slow
def test_the_jobs_of_one_group_are_shown_alone(filled: Furnished, tabs: Tabs) -> None:
    page = tabs.open(f"{filled.url}/ui/dead")
    expect(page.locator("tr[id^=job-]")).to_have_count(4)
    page.locator("tr[id^=group-]").filter(has_text="CardDeclined").get_by_role("link", name="Its jobs").click()
    expect(page.locator("tr[id^=job-]")).to_have_count(1)
    page.get_by_role("link", name="of all groups").click()
    expect(page.locator("tr[id^=job-]")).to_have_count(4)


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
