"""The worker: a parent that keeps leases alive and children that run handlers.

supervisor (parent) ── starts children, extends their grants from outside the interpreter that runs handlers
  └─ worker (child) ── fetcher → runner (buffer, slots) → executor → completer
       └─ isolated  ── one job in a process of its own: CPU-bound handlers, and suspects of a crash
"""
