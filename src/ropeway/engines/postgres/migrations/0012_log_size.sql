-- A job's log has a size as well as a number of lines: the oldest lines go when the messages of all are more than
-- 64 KiB together. A thousand lines of the longest would be 16 MiB.
CREATE OR REPLACE FUNCTION {schema}.append_lines(
    p_tenant text, p_ids uuid[], p_attempts integer[], p_tokens uuid[], p_levels text[], p_messages text[],
    p_keep integer
) RETURNS SETOF integer
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    i integer;
    v_now timestamptz := {now};
    v_id uuid;
    v_last integer;
    v_long uuid[] := '{}';
BEGIN
    FOR i IN SELECT s FROM generate_subscripts(p_ids, 1) s ORDER BY p_ids[s], s LOOP
        PERFORM FROM {schema}.jobs j
        WHERE j.tenant = p_tenant AND j.id = p_ids[i] AND j.lease_token = p_tokens[i] AND j.attempt = p_attempts[i]
        FOR NO KEY UPDATE;
        CONTINUE WHEN NOT FOUND;
        IF v_id IS DISTINCT FROM p_ids[i] THEN
            v_id := p_ids[i];
            SELECT l.n INTO v_last FROM {schema}.lines l
            WHERE l.tenant = p_tenant AND l.job_id = v_id ORDER BY l.n DESC LIMIT 1;
        END IF;
        v_last := coalesce(v_last, 0) + 1;
        INSERT INTO {schema}.lines (tenant, job_id, n, attempt, at, level, message)
        VALUES (p_tenant, v_id, v_last, p_attempts[i], v_now, p_levels[i], p_messages[i]);
        -- Four lines are never too large together: a message has at most 4,096 characters of four bytes.
        IF v_last > 4 AND v_long[1] IS DISTINCT FROM v_id THEN
            v_long := v_id || v_long;
        END IF;
        RETURN NEXT i;
    END LOOP;
    FOREACH v_id IN ARRAY v_long LOOP
        DELETE FROM {schema}.lines l
        WHERE l.tenant = p_tenant AND l.job_id = v_id AND l.n <= (
            SELECT max(k.n) FROM (
                SELECT x.n, sum(octet_length(x.message)) OVER newest AS size, row_number() OVER newest AS place
                FROM {schema}.lines x WHERE x.tenant = p_tenant AND x.job_id = v_id
                WINDOW newest AS (ORDER BY x.n DESC)
            ) k
            WHERE k.size > 65536 OR k.place > p_keep
        );
    END LOOP;
END $$;
