"""The command line: one file per group of commands. A face parses, calls one thing, renders."""
