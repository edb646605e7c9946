"""The rules of jobs: pure, no I/O, no clock, no logging, no async."""
