"""Where things are, for both ends: templates as the route table has them, functions for who calls them."""

from __future__ import annotations

from typing import Final, Literal
from urllib.parse import quote
from uuid import UUID

TokenVerb = Literal["ack", "nack", "heartbeat", "snooze", "release", "progress", "lose"]
TOKEN_VERBS: tuple[TokenVerb, ...] = ("ack", "nack", "heartbeat", "snooze", "release", "progress", "lose")

#: In the scope of a request that came below the path of `path_prefix`: that path, which was taken off.
BELOW: Final = "ropeway.below"

JOBS = "/v1/jobs"
JOBS_BATCH = "/v1/jobs/batch"
JOBS_LOOKUP = "/v1/jobs/lookup"
JOBS_COUNT = "/v1/jobs/count"
JOBS_CANCEL = "/v1/jobs/cancel"
JOBS_RETRY = "/v1/jobs/retry"
JOBS_DELETE = "/v1/jobs/delete"
JOBS_RETRY_WHERE = "/v1/jobs/retry-where"
JOB = "/v1/jobs/{id}"
LEASE = "/v1/lease"
QUEUE_LEASE = "/v1/queues/{queue}/lease"
LEASES = "/v1/leases/{verb}"
OWNER_HEARTBEAT = "/v1/owners/heartbeat"
OWNER_OTHER_GRANTS = "/v1/owners/other-grants"
OWNER_END = "/v1/owners/end"
WAIT = "/v1/wait"
WORKERS = "/v1/workers"
WORKER = "/v1/workers/{worker_id}"
QUEUES = "/v1/queues"
QUEUE = "/v1/queues/{queue}"
DASHBOARD_QUEUES = "/v1/dashboard/queues"
STATS = "/v1/stats"
SCALING = "/v1/scaling/{queue}"
DLQ = "/v1/dlq"
DLQ_GROUPS = "/v1/dlq/groups"
DLQ_RETRY = "/v1/dlq/retry"
SCHEDULES = "/v1/schedules"
SCHEDULE = "/v1/schedules/{name}"
AUDIT = "/v1/audit"
KEYS = "/v1/keys"
KEY = "/v1/keys/{key_id}"
TENANTS = "/v1/tenants"
TENANT = "/v1/tenants/{tenant_id}"
EVENTS = "/v1/events"
RUN_STREAM = "/v1/runs/{id}/stream"
TICKET = "/v1/streams/ticket"
TIME = "/v1/time"

JobPart = Literal["detail", "explain", "events", "logs", "stream", "cancel", "retry", "reschedule", "place"]


def job(id: UUID | str, part: JobPart | TokenVerb | None = None) -> str:
    return f"/v1/jobs/{id}" if part is None else f"/v1/jobs/{id}/{part}"


def leases(verb: TokenVerb) -> str:
    """The batch form of a verb that needs a lease."""
    return f"/v1/leases/{verb}"


def queue(name: str, part: Literal["lease", "pause", "resume"] | None = None) -> str:
    path = f"/v1/queues/{_part(name)}"
    return path if part is None else f"{path}/{part}"


def scaling(queue: str) -> str:
    return f"/v1/scaling/{_part(queue)}"


def schedule(name: str, part: Literal["pause", "resume", "run"] | None = None) -> str:
    path = f"/v1/schedules/{_part(name)}"
    return path if part is None else f"{path}/{part}"


def worker(worker_id: str) -> str:
    return f"/v1/workers/{_part(worker_id)}"


def key(key_id: str, part: Literal["rotate"] | None = None) -> str:
    path = f"/v1/keys/{_part(key_id)}"
    return path if part is None else f"{path}/{part}"


def tenant(tenant_id: str) -> str:
    return f"/v1/tenants/{_part(tenant_id)}"


def _part(text: str) -> str:
    return quote(text, safe=":")
