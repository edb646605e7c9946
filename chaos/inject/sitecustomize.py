"""Read by every Python process of a run, as this folder is on its path: engines write down what they are asked.

Nothing of Ropeway is changed for it: the function that makes engines is replaced by one that wraps what it makes.
"""

from __future__ import annotations

import os

if "CHAOS_HISTORY" in os.environ:
    from chaos.taking_part import take_part

    take_part()
