"""Everything that needs a lease, in batches with an answer per item."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ropeway.core import fields
from ropeway.core.errors import InputError, RopewayError
from ropeway.core.job import DEFAULT_TENANT, Progress
from ropeway.core.joblog import LogLine
from ropeway.core.lease import Lease
from ropeway.core.states import Verb
from ropeway.engines import settling
from ropeway.engines.protocol import Beat, Settled, Settlement
from ropeway.engines.remote import items
from ropeway.engines.remote.claiming import RemoteClaiming
from ropeway.engines.remote.connection import reader
from ropeway.engines.remote.items import Item
from ropeway.wire import paths

_VERBS: dict[Verb, paths.TokenVerb] = {
    Verb.ACK: "ack",
    Verb.NACK: "nack",
    Verb.SNOOZE: "snooze",
    Verb.RELEASE: "release",
    Verb.LOSE: "lose",
}


class RemoteLeasing(RemoteClaiming):
    async def settle(
        self, settlements: Sequence[Settlement], *, tenant: str = DEFAULT_TENANT
    ) -> list[Settled | RopewayError]:
        answers: dict[int, Settled | RopewayError] = {}
        for verb, sent in _by_verb(settlements, answers):
            # The same ticket again is answered alike, so a lost reply is simply asked for again.
            for place, reply in await self._batch(_VERBS[verb], sent, tenant, repeatable=True):
                answers[place] = reply if isinstance(reply, RopewayError) else reply.settled()
        for place, settlement in enumerate(settlements):
            # An outcome that was refused for what it says is no answer: the job still runs under its grant.
            if not isinstance(answers[place], InputError):
                self._holding.answered(settlement.lease)
        return [answers[place] for place in range(len(settlements))]

    async def progress(
        self, updates: Sequence[tuple[Lease, Progress]], *, tenant: str = DEFAULT_TENANT
    ) -> list[RopewayError | None]:
        sent = [
            Item(place, lease, items.progress_item(lease, note)) for place, (lease, note) in enumerate(updates)
        ]
        replies = dict(await self._batch("progress", sent, tenant, repeatable=True))
        return [refusal_of(replies[place]) for place in range(len(updates))]

    async def log(
        self, lines: Sequence[tuple[Lease, LogLine]], *, tenant: str = DEFAULT_TENANT
    ) -> list[RopewayError | None]:
        """Lines of one lease that follow each other go together. Not repeated: they would be there twice."""
        answers: list[RopewayError | None] = [None] * len(lines)
        runs = [[place for place, _ in run] for _, run in groupby(enumerate(lines), key=lambda each: each[1][0])]
        chunks = [
            run[start : start + items.MAX_LINES] for run in runs for start in range(0, len(run), items.MAX_LINES)
        ]
        sent = [
            Item(number, lines[chunk[0]][0], items.log_item(lines[chunk[0]][0], [lines[n][1] for n in chunk]))
            for number, chunk in enumerate(chunks)
        ]
        for number, reply in await self._batch("progress", sent, tenant, repeatable=False):
            for place in chunks[number]:
                answers[place] = refusal_of(reply)
        return answers

    # ── heartbeats ──

    async def heartbeat(
        self,
        leases: Sequence[Lease],
        *,
        lease_seconds: float | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Beat | RopewayError]:
        if lease_seconds is not None:
            fields.check_seconds(lease_seconds, "lease_seconds", 1, fields.MAX_LEASE_SECONDS)
        sent = [
            Item(place, lease, items.heartbeat_item(lease, lease_seconds)) for place, lease in enumerate(leases)
        ]
        replies = dict(await self._batch("heartbeat", sent, tenant, repeatable=True))
        return [
            reply if isinstance(reply := replies[place], RopewayError) else reply.beat()
            for place in range(len(leases))
        ]

    # ── batches ──

    async def _batch(
        self, verb: paths.TokenVerb, sent: Sequence[Item], tenant: str, *, repeatable: bool
    ) -> list[tuple[int, items.ItemReply | RopewayError]]:
        """Send items in as many requests as they need; each one's reply with its place."""
        answers: list[tuple[int, items.ItemReply | RopewayError]] = []
        for some in items.requests_of(sent):
            body = b'{"items":[' + b",".join(item.body for item in some) + b"]}"
            reply = await self.tell(
                "POST",
                paths.leases(verb),
                reader(items.BatchReply),
                body,
                tenant=tenant,
                repeatable=repeatable,
            )
            answers += [
                (item.place, one if one.ok else one.refusal())
                for item, one in zip(some, reply.results, strict=True)
            ]
        return answers


def _by_verb(
    settlements: Sequence[Settlement], answers: dict[int, Settled | RopewayError]
) -> list[tuple[Verb, list[Item]]]:
    """Outcomes by verb, because each verb is a call of its own; an outcome that cannot be sent is answered here.

    A job that is named twice is settled in the order of the batch: then only neighbours go together.
    """
    ready: list[tuple[Verb, Item]] = []
    for place, settlement in enumerate(settlements):
        lease, outcome = settlement.lease, settlement.outcome
        try:
            ready.append((outcome.verb, Item(place, lease, items.settle_item(lease, settling.clean(outcome)))))
        except InputError as unfit:
            answers[place] = unfit
    if len({item.lease.job_id for _, item in ready}) == len(ready):
        ready.sort(key=lambda each: each[0])
    return [(verb, [item for _, item in some]) for verb, some in groupby(ready, key=lambda each: each[0])]


def refusal_of(reply: items.ItemReply | RopewayError) -> RopewayError | None:
    return reply if isinstance(reply, RopewayError) else None
