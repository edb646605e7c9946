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
    known regclass;
    made integer := 0;
BEGIN
    FOREACH parent IN ARRAY {schema}.partitioned() LOOP
        FOR day IN SELECT generate_series(first, last, interval '1 day')::date LOOP
            child := parent || to_char(day, '_YYYYMMDD');
            known := to_regclass(format('%I.%I', '{schema}', child));
            IF EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = known) THEN
                CONTINUE;
            END IF;
            BEGIN
                IF known IS NULL THEN  -- else it was detached: then it only has to be attached again
                    EXECUTE format(
                        'CREATE TABLE %I.%I (LIKE %I.%I INCLUDING ALL)', '{schema}', child, '{schema}', parent
                    );
                END IF;
                EXECUTE format(
                    'ALTER TABLE %I.%I ATTACH PARTITION %I.%I FOR VALUES FROM (%L) TO (%L)',
                    '{schema}', parent, '{schema}', child,
                    day::text || ' 00:00:00+00', (day + 1)::text || ' 00:00:00+00'
                );
                made := made + 1;
            EXCEPTION WHEN duplicate_table OR unique_violation OR wrong_object_type THEN
                NULL;  -- another process was faster
            END;
        END LOOP;
    END LOOP;
    RETURN made;
END $$;

-- The daily partitions of one parent that end at or before `edge`, oldest first, also those that were detached but
-- not dropped. One whose detach is pending comes first: it is in the way of all others.
CREATE FUNCTION {schema}.partitions_before(parent text, edge date) RETURNS SETOF text
LANGUAGE sql STABLE AS $$
    SELECT c.relname::text
    FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
    WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind = 'r'
      AND c.relname ~ ('^' || parent || '_[0-9]{8}$')
      AND to_date(right(c.relname, 8), 'YYYYMMDD') < edge
    ORDER BY coalesce(i.inhdetachpending, false) DESC, c.relname
$$;
