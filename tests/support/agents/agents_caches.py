"""Cold caches are another metric than warm ones, and are really cold."""

import os

CORE = min(os.sched_getaffinity(0))


ROUNDS = 5
"""Of which the median counts: between a measurement and the one beside it, the machine may become slower or faster."""
