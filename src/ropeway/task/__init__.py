"""Tasks: a function becomes a name, defaults, and a typed way between Python arguments and JSON."""
