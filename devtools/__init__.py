"""Private servers for tests and benchmarks: started when asked for, gone when the asker is gone.

postgres.py, pgbouncer.py and redis.py are what callers use; shared.py lets many test processes use one server;
private.py and guard.py make sure that nothing stays behind; waiting.py waits on facts.
Nothing in `src/` imports this folder.
"""
