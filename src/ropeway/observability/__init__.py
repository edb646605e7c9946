"""What Ropeway tells about itself: log lines, metrics and traces. Names and formats, nothing else."""
