"""The names of log events: the `event` of a line. They are promised; programs may search for them."""

from __future__ import annotations

# ── A job's way ──
JOB_CREATED = "job_created"
LEASE_ACQUIRED = "lease_acquired"
HANDLER_START = "handler_start"
JOB_SUCCEEDED = "job_succeeded"
JOB_FAILED = "job_failed"
JOB_DEAD = "job_dead"
JOB_SNOOZED = "job_snoozed"
JOB_RELEASED = "job_released"
JOB_CANCELLED = "job_cancelled"
JOB_TIMEOUT = "job_timeout"
JOB_LOST = "job_lost"
LEASE_LOST = "lease_lost"

# ── A worker's life ──
WORKER_STARTED = "worker_started"
WORKER_STOPPING = "worker_stopping"
WORKER_STOPPED = "worker_stopped"
WORKER_QUIET = "worker_quiet"
WORKER_RESUMED = "worker_resumed"
CHILD_STARTED = "child_started"
CHILD_DIED = "child_died"
CHILD_RECYCLED = "child_recycled"
CHILD_ORPHANED = "child_orphaned"
LOOP_BLOCKED = "loop_blocked"
RUNNING_NOW = "running_now"

# ── The engine and the loops round it ──
ENGINE_AWAY = "engine_away"
ENGINE_BACK = "engine_back"
LOOP_FAILED = "loop_failed"
SWEEP_COMPLETE = "sweep_complete"
SCHEDULE_FIRED = "schedule_fired"
SCHEDULES_REFUSED = "schedules_refused"
UPKEEP_STARTED = "upkeep_started"
UPKEEP_STOPPED = "upkeep_stopped"
HTTP_STARTED = "http_started"
HTTP_PORT_TAKEN = "http_port_taken"
HTTP_FAILED = "http_failed"
HTTP_REQUEST = "http_request"
SERVER_STARTED = "server_started"
SERVER_STOPPING = "server_stopping"
SERVER_STOPPED = "server_stopped"
AUDIT_UNWRITTEN = "audit_unwritten"
AUDIT_LOST = "audit_lost"

#: A dead job that retention removed, on the logger `ropeway.purged`: the only line that may hold a payload.
JOB_PURGED = "job_purged"

#: Every one of them.
ALL = frozenset(value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str))
