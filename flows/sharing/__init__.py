"""Who works what in an output folder: one run alone, or several workers by locks in a PostgreSQL database."""

from flows.sharing.locks import FolderLocks, RunLocks, StageElsewhere
from flows.sharing.opened import database_turn, run_locks

__all__ = ["FolderLocks", "RunLocks", "StageElsewhere", "database_turn", "run_locks"]
