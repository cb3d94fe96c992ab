"""Use of an output folder: one run exclusively, or several workers with locks in a PostgreSQL database."""

from typing import TYPE_CHECKING

from importing.lazy import public_names

if TYPE_CHECKING:
    from flows.storage.sharing.locks import FolderLocks, RunLocks, StageElsewhere
    from flows.storage.sharing.opened import database_turn, run_locks
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = ["FolderLocks", "RunLocks", "StageElsewhere", "database_turn", "run_locks"]
