-- Which cluster wrote the transaction ids in `events`. In another one (a logical copy) they mean nothing: then events
-- up to `events_restored_through` are history, and no position of before can be read on from.
INSERT INTO {schema}.meta
SELECT 'cluster', system_identifier::text FROM pg_control_system()
UNION ALL VALUES ('events_restored_through', '0');
