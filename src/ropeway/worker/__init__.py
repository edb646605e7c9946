"""The worker: a parent that keeps leases alive and children that run handlers.

supervisor (parent) ── nursery (starts and replaces children), keeper (extends their grants from outside the
  │                    interpreter that runs handlers), aftermath (ends the grants of the dead)
  └─ worker (child) ── fetcher → runner (buffer, slots) → executor → completer
       └─ stem      ── forks, and does nothing else
            └─ isolated ── one job in a process of its own: CPU-bound handlers, and suspects of a crash
"""
