"""Search: the SubNet with the best predicted accuracy for every latency budget, per device."""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tasks.base.schemas.winners import FRONT_FILE, WHOLE_FRONT_FILE
    from tasks.search.settings import Settings
    from tasks.search.stage import SearchedSuperNet, SearchRequest, Target, read_front, run
else:
    __getattr__ = public_names(__name__, __file__)
