"""Search: the SubNet with the best predicted accuracy for every latency budget, per device."""

from tasks.schemas.front import FRONT_FILE
from tasks.search.results import WHOLE_FRONT_FILE, read_front
from tasks.search.settings import Settings
from tasks.search.stage import Target, run

__all__ = ["FRONT_FILE", "WHOLE_FRONT_FILE", "Settings", "Target", "read_front", "run"]
