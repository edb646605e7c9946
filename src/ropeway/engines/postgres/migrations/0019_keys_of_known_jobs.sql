-- A job that one of its keys keeps out takes the other from nobody. Before, a free key was taken over when it was looked
-- at and removed when its new job was not stored after all: the job that had it was without it when it ran again.

-- As it was (migrations/0005), but free keys are taken over at the end, by those that no key keeps out.
CREATE OR REPLACE FUNCTION {schema}.take_keys(
    p_tenants text[], p_kinds text[], p_keys text[], p_job_ids uuid[], p_fingerprints bytea[],
    p_windows double precision[], p_states text[]
) RETURNS TABLE (job_id uuid, kind text, known_id uuid, known_state text, mismatch boolean)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := {now};
    v_tenant text := p_tenants[1];
    v_kind text := p_kinds[1];
    k record;
    held {schema}.keys;
    v_known uuid[] := '{}';
    v_taken boolean := false;
BEGIN
    -- Almost always every key is new: a plain insert costs 13.4 µs per job, one with ON CONFLICT 16.4.
    BEGIN
        INSERT INTO {schema}.keys (tenant, kind, key, job_id, fingerprint, enqueued_at, until)
        SELECT coalesce(n.tenant, v_tenant), coalesce(n.kind, v_kind), n.key, n.job_id, n.fingerprint, v_now,
               CASE WHEN coalesce(n.kind, v_kind) = 'idempotency' AND n.span = 0 THEN NULL
                    ELSE v_now + coalesce(n.span, 0) * interval '1 second' END
        FROM unnest(p_tenants, p_kinds, p_keys, p_job_ids, p_fingerprints, p_windows)
            AS n (tenant, kind, key, job_id, fingerprint, span)
        ORDER BY 1, 2, 3;
        RETURN;
    EXCEPTION WHEN unique_violation THEN
        NULL;
    END;
    -- Some were known: look at each key that is not ours, under its row lock.
    FOR k IN
        SELECT coalesce(n.tenant, v_tenant) AS tenant, coalesce(n.kind, v_kind) AS kind, n.key, n.job_id,
               n.fingerprint, n.span, n.states
        FROM unnest(p_tenants, p_kinds, p_keys, p_job_ids, p_fingerprints, p_windows, p_states)
            AS n (tenant, kind, key, job_id, fingerprint, span, states)
        ORDER BY 1, 2, 3
    LOOP
        LOOP
            SELECT * INTO held FROM {schema}.keys h
            WHERE h.tenant = k.tenant AND h.kind = k.kind AND h.key = k.key FOR UPDATE;
            EXIT WHEN FOUND;
            -- It is new, or the pruner took it between the two statements.
            INSERT INTO {schema}.keys (tenant, kind, key, job_id, fingerprint, enqueued_at, until)
            VALUES (k.tenant, k.kind, k.key, k.job_id, k.fingerprint, v_now,
                    CASE WHEN k.kind = 'idempotency' AND k.span = 0 THEN NULL
                         ELSE v_now + coalesce(k.span, 0) * interval '1 second' END)
            ON CONFLICT (tenant, kind, key) DO NOTHING;
        END LOOP;
        CONTINUE WHEN held.job_id = k.job_id;
        job_id := k.job_id;
        kind := k.kind;
        known_id := held.job_id;
        known_state := {schema}.job_state(k.tenant, held.job_id);
        mismatch := false;
        IF k.kind = 'idempotency' THEN
            IF held.until IS NULL OR held.until > v_now
               OR coalesce(known_state, '') IN ('scheduled', 'queued', 'running', 'retrying', 'waiting') THEN
                mismatch := held.fingerprint <> k.fingerprint;
                v_known := v_known || k.job_id;
                RETURN NEXT;
                CONTINUE;
            END IF;
        ELSIF known_state = ANY (string_to_array(k.states, ','))
              AND (k.span IS NULL OR v_now - held.enqueued_at < k.span * interval '1 second') THEN
            v_known := v_known || k.job_id;
            RETURN NEXT;
            CONTINUE;
        END IF;
        v_taken := true;
    END LOOP;
    IF v_taken THEN
        -- Free again, and locked above: taken over in place.
        UPDATE {schema}.keys h
        SET job_id = n.job_id, fingerprint = n.fingerprint, enqueued_at = v_now,
            until = CASE WHEN h.kind = 'idempotency' AND n.span = 0 THEN NULL
                         ELSE v_now + coalesce(n.span, 0) * interval '1 second' END
        FROM unnest(p_tenants, p_kinds, p_keys, p_job_ids, p_fingerprints, p_windows)
            AS n (tenant, kind, key, job_id, fingerprint, span)
        WHERE h.tenant = coalesce(n.tenant, v_tenant) AND h.kind = coalesce(n.kind, v_kind) AND h.key = n.key
          AND h.job_id <> n.job_id AND n.job_id <> ALL (v_known);
    END IF;
END $$;
