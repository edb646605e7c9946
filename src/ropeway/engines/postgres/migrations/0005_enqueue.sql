-- Keys, and the one function through which any language, any driver or a trigger enqueues.

-- Take the keys of new jobs, in key order so that two callers cannot deadlock. One row per key that was not new:
-- its job is answered by `known_id` (state NULL: pruned), or `mismatch` refuses it.
-- One tenant or kind stands for all. A `window` of 0 is for ever. For unique keys `window` is `within` (NULL: no limit) and `states` what blocks.
CREATE FUNCTION {schema}.take_keys(
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
    v_until timestamptz;
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
        v_until := CASE WHEN k.kind = 'idempotency' AND k.span = 0 THEN NULL
                        ELSE v_now + coalesce(k.span, 0) * interval '1 second' END;
        LOOP
            SELECT * INTO held FROM {schema}.keys h
            WHERE h.tenant = k.tenant AND h.kind = k.kind AND h.key = k.key FOR UPDATE;
            EXIT WHEN FOUND;
            -- The pruner took it between the two statements.
            INSERT INTO {schema}.keys (tenant, kind, key, job_id, fingerprint, enqueued_at, until)
            VALUES (k.tenant, k.kind, k.key, k.job_id, k.fingerprint, v_now, v_until)
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
                RETURN NEXT;
                CONTINUE;
            END IF;
        ELSIF known_state = ANY (string_to_array(k.states, ','))
              AND (k.span IS NULL OR v_now - held.enqueued_at < k.span * interval '1 second') THEN
            RETURN NEXT;
            CONTINUE;
        END IF;
        -- Free again: take it over in place.
        UPDATE {schema}.keys h
        SET job_id = k.job_id, fingerprint = k.fingerprint, enqueued_at = v_now, until = v_until
        WHERE h.tenant = k.tenant AND h.kind = k.kind AND h.key = k.key;
    END LOOP;
END $$;

-- Enqueue jobs with keys in one transaction: keys first, then the jobs that no key keeps out. With `p_all_or_none`
-- a mismatch undoes everything (SQLSTATE RW422, the job's id as detail). One row per job that was not stored.
-- `p_lock_timeout` (NULL: the session's) bounds, for the rest of the transaction, the wait for a held key.
CREATE FUNCTION {schema}.insert_keyed_jobs(
    p_tenants text[], p_ids uuid[], p_types text[], p_queues text[], p_priorities smallint[],
    p_max_attempts smallint[], p_payloads text[], p_run_at timestamptz[], p_delays double precision[],
    p_idempotency_keys text[], p_options jsonb[], p_unchecked boolean,
    k_tenants text[], k_kinds text[], k_keys text[], k_job_ids uuid[], k_fingerprints bytea[],
    k_windows double precision[], k_states text[], p_all_or_none boolean, p_lock_timeout text
) RETURNS TABLE (at timestamptz, job_id uuid, known_id uuid, known_state text, mismatch boolean)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    known uuid[];
    answer record;
    keep integer[];
BEGIN
    IF p_lock_timeout IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_timeout, true);
    END IF;
    FOR answer IN
        -- One answer per job: an idempotency key goes before a unique one.
        SELECT DISTINCT ON (t.job_id) t.*
        FROM {schema}.take_keys(k_tenants, k_kinds, k_keys, k_job_ids, k_fingerprints, k_windows, k_states) t
        ORDER BY t.job_id, t.kind
    LOOP
        IF answer.mismatch AND p_all_or_none THEN
            RAISE EXCEPTION 'this idempotency key was used before with another body'
                USING ERRCODE = 'RW422', DETAIL = answer.job_id::text;
        END IF;
        known := known || answer.job_id;
        job_id := answer.job_id; known_id := answer.known_id; known_state := answer.known_state;
        mismatch := answer.mismatch;
        RETURN NEXT;
    END LOOP;
    IF known IS NULL THEN
        at := {schema}.insert_jobs(p_tenants, p_ids, p_types, p_queues, p_priorities, p_max_attempts,
                                   p_payloads, p_run_at, p_delays, p_idempotency_keys, p_options, p_unchecked);
        job_id := NULL; known_id := NULL; known_state := NULL; mismatch := NULL;
        RETURN NEXT;
        RETURN;
    END IF;
    -- A job that another key keeps out leaves no key of its own behind.
    DELETE FROM {schema}.keys k
    USING unnest(k_tenants, k_kinds, k_keys, k_job_ids) AS n (tenant, kind, key, job_id)
    WHERE n.job_id = ANY (known) AND k.tenant = coalesce(n.tenant, k_tenants[1])
      AND k.kind = coalesce(n.kind, k_kinds[1]) AND k.key = n.key AND k.job_id = n.job_id;
    SELECT array_agg(i) INTO keep FROM generate_series(1, cardinality(p_ids)) i WHERE p_ids[i] <> ALL (known);
    IF keep IS NOT NULL THEN
        SELECT {schema}.insert_jobs(
            array_agg(coalesce(p_tenants[i], p_tenants[1])), array_agg(p_ids[i]),
            array_agg(coalesce(p_types[i], p_types[1])), array_agg(coalesce(p_queues[i], p_queues[1])),
            array_agg(coalesce(p_priorities[i], p_priorities[1])),
            array_agg(coalesce(p_max_attempts[i], p_max_attempts[1])), array_agg(p_payloads[i]),
            array_agg(p_run_at[i]), array_agg(p_delays[i]), array_agg(p_idempotency_keys[i]),
            array_agg(p_options[i]), p_unchecked)
        INTO at
        FROM unnest(keep) i;
        job_id := NULL; known_id := NULL; known_state := NULL; mismatch := NULL;
        RETURN NEXT;
    END IF;
END $$;

-- A new job id: UUIDv7, 48 bits of milliseconds and 74 random bits.
CREATE FUNCTION {schema}.new_job_id() RETURNS uuid
LANGUAGE sql VOLATILE AS $$
    SELECT encode(
        set_byte(set_byte(
            overlay(uuid_send(gen_random_uuid())
                    PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                    FROM 1 FOR 6),
            6, (get_byte(uuid_send(gen_random_uuid()), 0) & 15) | 112),
            8, (get_byte(uuid_send(gen_random_uuid()), 1) & 63) | 128),
        'hex')::uuid
$$;

-- Enqueue one job from SQL, inside whatever transaction is open: it commits or vanishes with it. Answers the job's
-- id, or the id of the earlier job that its key stands for. The signature is promised for ever; new things become
-- new options. No wake-up is sent unless the option `wake` is true: NOTIFY serialises commits.
CREATE FUNCTION {schema}.enqueue(type text, payload text, options jsonb DEFAULT '{}') RETURNS uuid
LANGUAGE plpgsql
AS $$
DECLARE
    known_options constant text[] := ARRAY[
        'tenant', 'queue', 'priority', 'max_attempts', 'run_at', 'delay', 'idempotency_key', 'key_window',
        'fingerprint', 'unique', 'retry', 'timeout', 'expires_at', 'expires_in', 'tags', 'headers', 'wake'];
    v_unknown text;
    v_id uuid := {schema}.new_job_id();
    v_tenant text := coalesce(options ->> 'tenant', 'default');
    v_queue text := coalesce(options ->> 'queue', 'default');
    v_priority smallint;
    v_max_attempts smallint;
    v_run_at timestamptz;
    v_delay double precision;
    v_expires_at timestamptz;
    v_unique jsonb := options -> 'unique';
    v_kinds text[] := '{}'; v_keys text[] := '{}'; v_prints bytea[] := '{}';
    v_windows double precision[] := '{}'; v_states text[] := '{}';
    v_kept jsonb;
    a record;
BEGIN
    IF jsonb_typeof(options) <> 'object' THEN
        RAISE EXCEPTION 'options must be a JSON object' USING ERRCODE = 'RW400';
    END IF;
    SELECT k INTO v_unknown FROM jsonb_object_keys(options) k WHERE k <> ALL (known_options) LIMIT 1;
    IF v_unknown IS NOT NULL THEN
        RAISE EXCEPTION 'unknown option %', quote_literal(left(v_unknown, 64))
            USING ERRCODE = 'RW400', HINT = 'known options: ' || array_to_string(known_options, ', ');
    END IF;
    IF type !~ '^[A-Za-z0-9._:-]{1,128}$' OR v_queue !~ '^[A-Za-z0-9._:-]{1,128}$'
       OR v_tenant !~ '^[A-Za-z0-9._:-]{1,128}$' THEN
        RAISE EXCEPTION 'type, queue and tenant must be 1 to 128 of A-Z a-z 0-9 . _ : -' USING ERRCODE = 'RW400';
    END IF;
    BEGIN
        -- How large a payload may be is a setting that the lease checks; here is only the bound that no setting passes.
        IF payload IS NULL OR octet_length(payload) > 16777216 THEN
            RAISE EXCEPTION 'payload must be JSON of at most 16 MiB' USING ERRCODE = 'RW400';
        END IF;
        PERFORM payload::json;
        v_priority := coalesce(CASE options ->> 'priority'
            WHEN 'critical' THEN 1 WHEN 'high' THEN 3 WHEN 'default' THEN 5 WHEN 'low' THEN 7 WHEN 'bulk' THEN 9
            ELSE (options ->> 'priority')::smallint END, 5);
        v_max_attempts := coalesce((options ->> 'max_attempts')::smallint, 5);
        IF v_priority NOT BETWEEN 1 AND 9 OR v_max_attempts NOT BETWEEN 1 AND 25 THEN
            RAISE EXCEPTION 'priority must be 1 to 9 and max_attempts 1 to 25' USING ERRCODE = 'RW400';
        END IF;
        IF options ? 'run_at' AND options ? 'delay' THEN
            RAISE EXCEPTION 'give run_at or delay, not both' USING ERRCODE = 'RW400';
        END IF;
        v_run_at := (options ->> 'run_at')::timestamptz;
        v_delay := (options ->> 'delay')::double precision;
        IF NOT isfinite(v_run_at) OR v_run_at > {now} + interval '3653 days' OR NOT v_delay BETWEEN 0 AND 315619200 THEN
            RAISE EXCEPTION 'run_at and delay must be at most 10 years ahead' USING ERRCODE = 'RW400';
        END IF;
        IF (options ->> 'timeout')::double precision <> 0 AND NOT (options ->> 'timeout')::double precision BETWEEN 1 AND 86400
           OR NOT (options ->> 'expires_in')::double precision BETWEEN 0.001 AND 315619200 THEN
            RAISE EXCEPTION 'timeout must be 0 or 1 to 86400 seconds, expires_in more than 0' USING ERRCODE = 'RW400';
        END IF;
        v_expires_at := (options ->> 'expires_at')::timestamptz;
        IF NOT isfinite(v_expires_at)
           OR NOT v_expires_at BETWEEN '1970-01-01 00:00:00+00' AND {now} + interval '3653 days' THEN
            RAISE EXCEPTION 'expires_at must be a time, at most 10 years ahead' USING ERRCODE = 'RW400';
        END IF;
        IF NOT (options ->> 'key_window')::double precision BETWEEN 0 AND 315619200
           OR NOT octet_length(options ->> 'idempotency_key') BETWEEN 1 AND 512 THEN
            RAISE EXCEPTION 'idempotency_key must be 1 to 512 bytes, key_window 0 or more seconds'
                USING ERRCODE = 'RW400';
        END IF;
        IF jsonb_typeof(options -> 'headers') <> 'object' OR jsonb_typeof(options -> 'tags') <> 'array'
           OR jsonb_path_exists(options, '$.headers.* ? (@.type() != "string")')
           OR jsonb_path_exists(options, '$.tags[*] ? (@.type() != "string")') THEN
            RAISE EXCEPTION 'headers must be an object of texts, tags an array of texts' USING ERRCODE = 'RW400';
        END IF;
        IF options ? 'idempotency_key' THEN
            v_kinds := v_kinds || 'idempotency'::text;
            v_keys := v_keys || (options ->> 'idempotency_key');
            -- Callers in other languages need no fingerprint: theirs is made from what they sent.
            v_prints := v_prints || coalesce(decode(options ->> 'fingerprint', 'hex'),
                sha256(convert_to(type || chr(10) || payload || chr(10) || (options - 'idempotency_key')::text, 'UTF8')));
            v_windows := v_windows || coalesce((options ->> 'key_window')::double precision, 86400);
            v_states := v_states || ''::text;
        END IF;
        IF v_unique IS NOT NULL THEN
            v_kinds := v_kinds || 'unique'::text;
            v_keys := v_keys || (v_unique ->> 'key');
            v_prints := v_prints || ''::bytea;
            v_windows := v_windows || (v_unique ->> 'within')::double precision;
            v_states := v_states || coalesce(v_unique ->> 'states', 'scheduled,queued,running,retrying,waiting');
            IF v_unique ->> 'key' IS NULL OR NOT octet_length(v_unique ->> 'key') BETWEEN 1 AND 1024
               OR NOT string_to_array(v_unique ->> 'states', ',') <@ ARRAY[
                   'scheduled', 'queued', 'running', 'retrying', 'waiting', 'succeeded', 'dead', 'cancelled'] THEN
                RAISE EXCEPTION 'unique needs a key of 1 to 1024 bytes and states that exist' USING ERRCODE = 'RW400';
            END IF;
        END IF;
    EXCEPTION WHEN data_exception THEN
        RAISE EXCEPTION 'the payload or an option cannot be read: %', SQLERRM USING ERRCODE = 'RW400';
    END;
    v_kept := jsonb_strip_nulls(jsonb_build_object(
        'timeout', options -> 'timeout', 'retry', options -> 'retry', 'expires_at', options -> 'expires_at',
        'expires_in', options -> 'expires_in', 'tags', options -> 'tags', 'headers', options -> 'headers'));
    FOR a IN SELECT * FROM {schema}.insert_keyed_jobs(
        ARRAY[v_tenant], ARRAY[v_id], ARRAY[type], ARRAY[v_queue], ARRAY[v_priority], ARRAY[v_max_attempts],
        ARRAY[payload], ARRAY[v_run_at], ARRAY[v_delay], ARRAY[options ->> 'idempotency_key'], ARRAY[v_kept], true,
        array_fill(v_tenant, ARRAY[cardinality(v_keys)]), v_kinds, v_keys,
        array_fill(v_id, ARRAY[cardinality(v_keys)]), v_prints, v_windows, v_states, true, NULL) x
        WHERE x.known_id IS NOT NULL
    LOOP
        RETURN a.known_id;
    END LOOP;
    IF (options ->> 'wake')::boolean THEN
        PERFORM pg_notify('{schema}', json_build_array(json_build_array(v_tenant, v_queue))::text);
    END IF;
    RETURN v_id;
END $$;
