"""What the program has, the documents tell; what the documents name, the program has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from ropeway.cli.main import app
from ropeway.core.retry import PRESETS
from ropeway.core.states import DeadReason
from ropeway.observability import names
from ropeway.observability.metrics import CATALOGUE
from ropeway.settings import setting_names, variable_of
from tests.docs.pages import ROOT, blocks, commands

DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("*.md")])
WORKERS = (DOCS / "workers.md").read_text()


@pytest.mark.parametrize("event", sorted(names.ALL))
def test_every_log_event_is_documented(event: str) -> None:
    assert re.search(rf"^\| `{event}` \| (debug|info|warning|error) \| \S", WORKERS, re.MULTILINE)


def test_no_log_event_is_documented_that_does_not_exist() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:debug|info|warning|error) \|", WORKERS, re.MULTILINE)
    assert sorted(rows) == sorted(names.ALL)


@pytest.mark.parametrize("metric", sorted(CATALOGUE))
def test_every_metric_is_documented_as_it_is(metric: str) -> None:
    kind, labels, help = CATALOGUE[metric]
    shown = ", ".join(f"`{label}`" for label in labels) or "-"
    assert f"| `{metric}` | {kind} | {shown} | {help} |" in WORKERS


def test_no_metric_is_named_that_does_not_exist() -> None:
    for page in PAGES:
        for metric in re.findall(r"\bropeway_(?:http|jobs?|leases|queue|worker)_[a-z_]+", page.read_text()):
            assert metric in CATALOGUE, f"{page.name} names {metric}"


def test_no_setting_is_named_that_does_not_exist() -> None:
    # Fault points are switched by the environment alone: nothing that a file or a flag should be able to do.
    variables = {variable_of(name) for name in setting_names()} | {"ROPEWAY_FAULTS", "ROPEWAY_FAULTS_LOG"}
    for page in PAGES:
        for variable in re.findall(r"\bROPEWAY_[A-Z_]+[A-Z]\b(?!\*)", page.read_text()):
            known = variable in variables or variable.startswith(("ROPEWAY_TEST_", "ROPEWAY_DEBUG"))
            assert known or f"{variable}_*" in page.read_text(), f"{page.name} names {variable}"


def test_every_preset_and_every_reason_to_die_is_documented() -> None:
    page = (DOCS / "retries.md").read_text()
    for word in (*PRESETS, *DeadReason):
        assert f"\n| `{word}` |" in page


# ── Commands ──


def _commands(group: Any, path: tuple[str, ...] = ()) -> dict[str, set[str]]:
    """Every command by its whole name, and the options it takes."""
    found: dict[str, set[str]] = {}
    for name, command in getattr(group, "commands", {}).items():
        here = (*path, name)
        if hasattr(command, "commands"):
            found |= _commands(command, here)
        else:
            options = {word for option in command.params for word in (*option.opts, *option.secondary_opts)}
            found[" ".join(here)] = options | {"--help", "-h"}
    return found


COMMANDS = _commands(typer.main.get_command(app))


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_is_documented(command: str) -> None:
    page = (DOCS / "cli.md").read_text()
    group, _, verb = command.partition(" ")
    assert re.search(rf"\bropeway {group}\b", page), f"docs/cli.md does not name `ropeway {group}`"
    if verb:
        assert re.search(rf"\b{group} [\w|]*\b{verb}\b", page), f"docs/cli.md does not name `ropeway {command}`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_command_or_option_is_shown_that_does_not_exist(page: Path) -> None:
    shown = [line for block in blocks(page) if block.language == "sh" for _, line in commands(block)]
    shown += re.findall(r"`(ropeway [a-z][^`]*)`", page.read_text())
    for line in shown:
        words = re.sub(r"\s#.*", "", line).split()
        if words[0] != "ropeway" or len(words) < 2 or words[1].startswith("-") or words[1] == "...":
            continue
        _check(words[1:], f"{page.name}: {line}")


def _check(words: list[str], where: str) -> None:
    groups = {command.split()[0] for command in COMMANDS if " " in command}
    if words[0] in groups:
        verbs = words[1].split("|") if len(words) > 1 and not words[1].startswith("-") else []
        known = [COMMANDS.get(f"{words[0]} {verb}") for verb in verbs]
    else:
        known = [COMMANDS.get(words[0])]
    assert None not in known, where
    for option in (word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)):
        assert all(option in (options or ()) for options in known if known), f"{where}: no option {option}"


# ── Links ──


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in (*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"):
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name} links to {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
                assert anchor in {_anchor(heading) for heading in headings}, f"{page.name}: {target}#{anchor}"


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text()
    for page in DOCS.glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name
