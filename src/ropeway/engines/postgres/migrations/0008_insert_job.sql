-- One plain job: no key, no time, no rare option. It is what an idle queue is given most of the time, and there every
-- part of a statement is cold: the arrays, the settings and the join of `insert_jobs` cost as much as the rows.
-- Two appends of values have one possible plan each, so nothing has to be fixed here.
CREATE FUNCTION {schema}.insert_job(
    p_tenant text, p_id uuid, p_type text, p_queue text, p_priority smallint, p_max_attempts smallint, p_payload text
) RETURNS timestamptz
LANGUAGE plpgsql
AS $$
DECLARE
    v_now timestamptz := {now};
BEGIN
    INSERT INTO {schema}.jobs (
        tenant, id, queue, type, priority, max_attempts, run_at, created_at, updated_at, payload, unchecked
    ) VALUES (
        p_tenant, p_id, p_queue, p_type, p_priority, p_max_attempts, v_now, v_now, v_now, p_payload, false
    );
    INSERT INTO {schema}.events (xid, at, job_id, seq, attempt, event, priority, tenant, queue, type, run_at)
    VALUES (
        pg_current_xact_id()::text::bigint, v_now, p_id, 1, 0, 'job.enqueued', p_priority, p_tenant, p_queue, p_type,
        v_now
    );
    RETURN v_now;
END $$;
