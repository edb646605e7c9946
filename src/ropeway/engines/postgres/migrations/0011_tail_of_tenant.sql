-- The tail of one tenant. What others do is passed over where it is found: handing it out, to be thrown away by the
-- reader, lets one tenant's reads cost as much as all the others write.

-- As the function without p_tenant (migrations/0010), of one tenant's events only.
CREATE FUNCTION {schema}.tail_events(
    p_seen text, p_upto text, p_after bigint, p_last bigint, p_froms bigint[], p_tos bigint[], p_limit bigint,
    p_tenant text
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
        WHERE e.xid >= r.first AND e.xid <= r.last AND e.id > p_after AND e.id <= p_last AND e.tenant = p_tenant
          AND NOT pg_visible_in_snapshot(e.xid::text::xid8, v_seen)
          AND pg_visible_in_snapshot(e.xid::text::xid8, v_upto)
        ORDER BY e.id LIMIT p_limit
    ) x
    ORDER BY x.id LIMIT p_limit;
END $$;
