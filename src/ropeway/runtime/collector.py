"""How often Python looks for cycles among new objects, in processes that do one kind of work for long."""

from __future__ import annotations

import gc

#: New objects before the collector looks at them; 700 by default. A batch of jobs or of requests has more, and
#: they are gone with it: looked at every 700, they took an eighth of a worker's time (by a profile).
YOUNG_OBJECTS = 20_000

_AS_IT_COMES = gc.get_threshold()


def look_rarely() -> None:
    """Everything that is there stays, and need not be looked at again (forks share its pages); what is new seldom.
    Who has chosen a threshold of their own keeps it."""
    gc.freeze()
    if gc.get_threshold() == _AS_IT_COMES:
        gc.set_threshold(YOUNG_OBJECTS, *_AS_IT_COMES[1:])
