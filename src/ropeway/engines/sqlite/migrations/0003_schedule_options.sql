-- What a schedule's jobs are like beyond queue, priority and attempts (timeout, retry policy, unique rule, tags and so
-- on), as a JSON object. What it does not say is as usual.
ALTER TABLE schedules ADD COLUMN options TEXT NOT NULL DEFAULT '{}';
