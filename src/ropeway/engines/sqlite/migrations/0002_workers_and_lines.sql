-- Which workers are there, and what handlers say while they run.

-- A worker's newest report. `queues` and `types` are JSON arrays.
CREATE TABLE workers (
    tenant          TEXT    NOT NULL,
    id              TEXT    NOT NULL,
    host            TEXT    NOT NULL,
    pid             INTEGER NOT NULL,
    version         TEXT    NOT NULL,
    queues          TEXT    NOT NULL,
    types           TEXT    NOT NULL,
    slots           INTEGER NOT NULL,
    running         INTEGER NOT NULL,
    rss_bytes       INTEGER,
    state           TEXT    NOT NULL CHECK (state = 'running' OR state = 'quiet' OR state = 'draining'),
    started_at      INTEGER NOT NULL,
    seen_at         INTEGER NOT NULL,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;

-- Lines of jobs' logs. They hang on the body, which keeps its number when a job is redriven. The lines of one job lie
-- together, so that they are read and removed with it in one range.
CREATE TABLE lines (
    body            INTEGER NOT NULL,
    n               INTEGER NOT NULL,
    at              INTEGER NOT NULL,
    attempt         INTEGER NOT NULL,
    level           TEXT    NOT NULL,
    message         TEXT    NOT NULL,
    PRIMARY KEY (body, n)
) WITHOUT ROWID;
