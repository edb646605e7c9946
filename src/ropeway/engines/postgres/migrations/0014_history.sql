-- How it was: one row for each queue and step of time (core/history.py). Histograms are arrays.
CREATE TABLE {schema}.history (
    tenant text COLLATE "C" NOT NULL,
    step integer NOT NULL,
    at timestamptz NOT NULL,
    queue text COLLATE "C" NOT NULL,
    enqueued double precision NOT NULL,
    succeeded double precision NOT NULL,
    failed double precision NOT NULL,
    dead double precision NOT NULL,
    cancelled double precision NOT NULL,
    waiting bigint NOT NULL,
    running bigint NOT NULL,
    oldest double precision,
    waits integer[] NOT NULL,
    runs integer[] NOT NULL,
    PRIMARY KEY (tenant, step, at, queue)
);
CREATE INDEX history_at ON {schema}.history USING brin (at) WITH (pages_per_range = 16, autosummarize = on);

-- The newest events within a time, of all tenants, from the last p_pages pages of the log. `reach` is how far back
-- that goes, if the time begins earlier. When hardly any of the time is within reach, all that is takes its place.
CREATE FUNCTION {schema}.events_between(p_since timestamptz, p_until timestamptz, p_pages bigint)
RETURNS TABLE (tenant text, queue text, event {schema}.event, at timestamptz, job_id uuid, reach timestamptz)
LANGUAGE plpgsql
SET enable_sort = off SET max_parallel_workers_per_gather = 0 SET jit = off
AS $$
DECLARE
    v_since timestamptz := p_since;
    v_until timestamptz := p_until;
    v_first timestamptz;
    v_days date[] := ARRAY[((p_until - interval '1 microsecond') AT TIME ZONE 'UTC')::date];
    v_day date;
    v_part regclass;
    v_parts regclass[] := '{}';
    v_page bigint;
    v_starts tid[] := '{}';
BEGIN
    IF (p_since AT TIME ZONE 'UTC')::date < v_days[1] THEN
        v_days := v_days || (v_days[1] - 1);
    END IF;
    FOREACH v_day IN ARRAY v_days LOOP
        v_part := to_regclass(format('%I.%I', '{schema}', 'events' || to_char(v_day, '_YYYYMMDD')));
        CONTINUE WHEN v_part IS NULL;
        v_page := greatest(0, pg_relation_size(v_part) / current_setting('block_size')::integer - p_pages);
        v_parts := v_parts || v_part;
        v_starts := v_starts || format('(%s,0)', v_page)::tid;
        IF v_page > 0 THEN
            EXECUTE format('SELECT min(at) FROM %s WHERE ctid >= %L AND ctid < %L', v_part,
                           format('(%s,0)', v_page), format('(%s,0)', v_page + 16))
            INTO v_first;
            IF v_first > v_since THEN
                v_since := v_first;
                EXIT;
            END IF;
        END IF;
    END LOOP;
    IF v_since > p_since AND v_since > p_until - interval '1 second' THEN
        v_until := 'infinity';
    END IF;
    FOR i IN 1 .. cardinality(v_parts) LOOP
        RETURN QUERY EXECUTE format($q$
            SELECT e.tenant, e.queue, e.event, e.at, e.job_id, $1
            FROM %s e WHERE e.ctid >= %L AND e.at >= $1 AND e.at < $2
            $q$, v_parts[i], v_starts[i])
        USING v_since, v_until;
    END LOOP;
END $$;
