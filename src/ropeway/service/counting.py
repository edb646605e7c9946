"""Jobs that were stored, as the metrics count them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.engines.protocol import Enqueued
from ropeway.observability import metrics
from ropeway.observability.tally import OTHER


def count_stored(tenant: str, jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> None:
    """Count what an enqueue came to, by queue and type.

    The page is read by whoever runs the server, and figures are kept for ever, so the names that other tenants
    choose are not on it: their jobs are counted as `other`.
    """
    if tenant != DEFAULT_TENANT:
        again = sum(answer.deduplicated for answer in answers)
        _count(OTHER, OTHER, False, len(answers) - again)
        _count(OTHER, OTHER, True, again)
    elif len(jobs) == 1:
        _count(jobs[0].queue, jobs[0].type, answers[0].deduplicated, 1)
    else:
        kinds = Counter(
            (job.queue, job.type, answer.deduplicated) for job, answer in zip(jobs, answers, strict=True)
        )
        for (queue, type, deduplicated), number in kinds.items():
            _count(queue, type, deduplicated, number)


def _count(queue: str, type: str, deduplicated: bool, number: int) -> None:
    if number:
        (metrics.deduplicated if deduplicated else metrics.enqueued)(queue, type, number)
