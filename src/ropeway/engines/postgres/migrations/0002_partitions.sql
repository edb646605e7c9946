-- Daily partitions: made ahead, dropped when their time is over. A partition is made as a table of its own and
-- attached: that takes a lock that neither readers nor writers of the parent wait for.

CREATE FUNCTION {schema}.partitioned() RETURNS text[]
LANGUAGE sql IMMUTABLE AS $$ SELECT ARRAY['archive_succeeded', 'archive_dead', 'archive_cancelled', 'events'] $$;

-- Attach every missing daily partition from `first` to `last`. Safe when many run at once.
CREATE FUNCTION {schema}.ensure_partitions(first date, last date) RETURNS integer
LANGUAGE plpgsql
SET lock_timeout = '2s'
AS $$
DECLARE
    parent text;
    day date;
    child text;
    made integer := 0;
BEGIN
    FOREACH parent IN ARRAY {schema}.partitioned() LOOP
        FOR day IN SELECT generate_series(first, last, interval '1 day')::date LOOP
            child := parent || to_char(day, '_YYYYMMDD');
            IF to_regclass(format('%I.%I', '{schema}', child)) IS NOT NULL THEN
                CONTINUE;
            END IF;
            BEGIN
                EXECUTE format('CREATE TABLE %I.%I (LIKE %I.%I INCLUDING ALL)', '{schema}', child, '{schema}', parent);
                EXECUTE format(
                    'ALTER TABLE %I.%I ATTACH PARTITION %I.%I FOR VALUES FROM (%L) TO (%L)',
                    '{schema}', parent, '{schema}', child,
                    day::text || ' 00:00:00+00', (day + 1)::text || ' 00:00:00+00'
                );
                made := made + 1;
            EXCEPTION WHEN duplicate_table OR unique_violation THEN
                NULL;  -- another process was faster
            END;
        END LOOP;
    END LOOP;
    RETURN made;
END $$;

-- The daily partitions of one parent that end at or before `edge`, oldest first.
CREATE FUNCTION {schema}.partitions_before(parent text, edge date) RETURNS SETOF text
LANGUAGE sql STABLE AS $$
    SELECT c.relname::text
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = to_regclass(format('%I.%I', '{schema}', parent))
      AND to_date(right(c.relname, 8), 'YYYYMMDD') < edge
    ORDER BY c.relname
$$;
