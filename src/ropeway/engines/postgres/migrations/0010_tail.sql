-- The tail of the event log, read by many and often. Block ranges find it, but only those that are summarised: the
-- others are read whole, and autovacuum may take minutes to come round. So who reads the tail sees to that as well.

-- Events that the snapshot p_seen did not see and p_upto sees, with ids after p_after and up to p_last. Those can only
-- be of transactions that p_seen names as open and of those from its xmax on; p_froms and p_tos are ranges that hold
-- them all. Ids say nothing: xmax is one more than the newest transaction that had *ended*, so one beyond it may have
-- drawn its ids before p_seen was taken.
-- A partition of today has no statistics yet, and is then scanned from its start unless that is switched off.
CREATE FUNCTION {schema}.tail_events(
    p_seen text, p_upto text, p_after bigint, p_last bigint, p_froms bigint[], p_tos bigint[], p_limit bigint
) RETURNS SETOF {schema}.events
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_seen pg_snapshot := p_seen;
    v_upto pg_snapshot := p_upto;
BEGIN
    RETURN QUERY
    SELECT x.* FROM unnest(p_froms, p_tos) AS r (first, last)
    CROSS JOIN LATERAL (
        SELECT e.* FROM {schema}.events e
        WHERE e.xid >= r.first AND e.xid <= r.last AND e.id > p_after AND e.id <= p_last
          AND NOT pg_visible_in_snapshot(e.xid::text::xid8, v_seen)
          AND pg_visible_in_snapshot(e.xid::text::xid8, v_upto)
        ORDER BY e.id LIMIT p_limit
    ) x
    ORDER BY x.id LIMIT p_limit;
END $$;

-- Summarise what was appended to today's partition since page p_from, but for its last pages: an insert into a range
-- that is summarised has to widen its summary, one after the other. With p_from 0 also what earlier days left over.
-- Answers the page to go on from. Whoever holds a table (a vacuum, another caller) is not waited for.
CREATE FUNCTION {schema}.summarise_events(p_from bigint) RETURNS bigint
LANGUAGE plpgsql
SET lock_timeout = '100ms'
AS $$
DECLARE
    v_today text := 'events' || to_char({now} AT TIME ZONE 'UTC', '_YYYYMMDD');
    v_next bigint := p_from;
    part record;
BEGIN
    FOR part IN
        SELECT t.relname AS name, t.oid::regclass AS heap, x.oid::regclass AS index
        FROM pg_inherits h
        JOIN pg_class t ON t.oid = h.inhrelid
        JOIN pg_index i ON i.indrelid = t.oid
        JOIN pg_class x ON x.oid = i.indexrelid
        JOIN pg_am a ON a.oid = x.relam AND a.amname = 'brin'
        WHERE h.inhparent = '{schema}.events'::regclass AND NOT h.inhdetachpending
          AND (t.relname = v_today OR (p_from = 0 AND t.relname < v_today))
        ORDER BY t.relname DESC
    LOOP
        BEGIN
            IF part.name < v_today THEN
                PERFORM brin_summarize_new_values(part.index);
                CONTINUE;
            END IF;
            WHILE v_next + 48 <= pg_relation_size(part.heap) / current_setting('block_size')::integer LOOP
                PERFORM brin_summarize_range(part.index, v_next);
                v_next := v_next + 16;
            END LOOP;
        EXCEPTION WHEN lock_not_available OR undefined_table THEN
            NULL;
        END;
    END LOOP;
    RETURN v_next;
END $$;
