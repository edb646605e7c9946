-- How it was: one row for each queue and step of time (core/history.py). Histograms are JSON arrays.
CREATE TABLE history (
    tenant          TEXT    NOT NULL,
    step            INTEGER NOT NULL,
    at              INTEGER NOT NULL,
    queue           TEXT    NOT NULL,
    enqueued        REAL    NOT NULL,
    succeeded       REAL    NOT NULL,
    failed          REAL    NOT NULL,
    dead            REAL    NOT NULL,
    cancelled       REAL    NOT NULL,
    waiting         INTEGER NOT NULL,
    running         INTEGER NOT NULL,
    oldest          REAL,
    waits           TEXT    NOT NULL,
    runs            TEXT    NOT NULL,
    PRIMARY KEY (tenant, step, at, queue)
) WITHOUT ROWID;
