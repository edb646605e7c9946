-- The samples of one queue, or of all together, without those of the others in between.
CREATE INDEX history_of_queue ON history (tenant, step, queue, at);
