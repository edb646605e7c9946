"""What a program that enqueues holds: engines by event loop, tasks it can call, handles on their jobs."""
