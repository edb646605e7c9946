"""What the servers of a run say that they have stored, by their own metrics (C16)."""

from __future__ import annotations

import asyncio
import re
from urllib.request import Request, urlopen

from chaos.stage import Stage

#: By the name that the checker has for it.
COUNTERS = {"enqueued": "ropeway_jobs_enqueued_total", "deduplicated": "ropeway_jobs_deduplicated_total"}


def lives(stage: Stage) -> list[int]:
    """How often each server has been started by now."""
    return [server.starts for server in stage.servers]


async def served(stage: Stage, before: list[int]) -> dict[str, int] | None:
    """The sums over all servers; `before` are their lives when nothing had been asked for yet.

    None: there is none, or one has been started again since, and has forgotten what it counted.
    """
    if not before or lives(stage) != before or not all(server.running for server in stage.servers):
        return None
    pages = [await asyncio.to_thread(_page, url, stage.token) for url in stage.addresses]
    return {name: sum(total(page, counter) for page in pages) for name, counter in COUNTERS.items()}


def total(page: str, counter: str) -> int:
    """The sum of a counter over all its labels."""
    numbers = re.findall(rf"^{counter}(?:{{.*}})? (\S+)$", page, re.MULTILINE)
    return int(sum(map(float, numbers)))


def _page(url: str, token: str) -> str:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urlopen(Request(f"{url}/metrics", headers=headers), timeout=10) as answer:
        return bytes(answer.read()).decode()
