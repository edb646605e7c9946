-- One plain job, and word of it right behind its commit: two transactions in one round trip. A worker with nothing else to
-- do hears of the job 0.3 ms earlier than from a NOTIFY that is sent when the insert has been answered.
-- The transaction that stores the job notifies nobody, so it holds no lock of the whole server while it is written to the
-- disk; the one that notifies writes nothing and waits for no disk.
-- Whoever else notifies while it waits for its disk or its standby holds that lock: this waits a fiftieth of a second for it.
-- What fails after the COMMIT does not undo it: whoever gets an error looks whether the job is there (`taken_at`).
CREATE PROCEDURE {schema}.insert_job_and_tell(
    p_tenant text, p_id uuid, p_type text, p_queue text, p_priority smallint, p_max_attempts smallint, p_payload text,
    p_channel text, p_message text, INOUT p_now timestamptz
)
LANGUAGE plpgsql AS $$
BEGIN
    p_now := {schema}.insert_job(p_tenant, p_id, p_type, p_queue, p_priority, p_max_attempts, p_payload);
    COMMIT;
    PERFORM set_config('lock_timeout', '20ms', true);
    PERFORM pg_notify(p_channel, p_message);
END $$;
