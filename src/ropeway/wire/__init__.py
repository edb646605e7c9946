"""What crosses to programs: the names and shapes of docs/cli.md's `--json`, the same as HTTP's."""
