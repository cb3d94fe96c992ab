"""Use of an output folder: by one run exclusively, or by several workers with locks in a PostgreSQL database.

Complete stages are referred to by runs, which have a list in their folder, and by the latest nights:

    runs/KEY/stages.json      the stages of a run, as STAGE/KEY, with keys as their folders have them

A run adds to its list while it works, and reduces the list to its own stages at its end. Earlier stages, from other
code or inputs, are therefore referred to until the run is complete again. Stages of a night are referred to until the
next night of its network, which compares look-up tables with them.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pydantic import TypeAdapter, ValidationError

from flows.machine import in_turn
from flows.storage import NIGHTS_FOLDER, RUNS_FOLDER
from flows.storage.mirror import Mirror
from importing import public_names
from tasks.base.artifacts import write_json
from tasks.base.errors import UserError
from tasks.operations.nightly import History

if TYPE_CHECKING:
    from flows.storage.sharing.database import database_turn, run_locks
else:
    __getattr__ = public_names(__name__, __file__)


class StageElsewhere(Exception):
    """Another worker is at a stage, so this worker must not work it."""

    def __init__(self, stage: str, holder: str) -> None:
        super().__init__(f"{stage}: {holder} is at it")
        self.stage, self.holder = stage, holder


class RunLocks(Protocol):
    """The locks of a run. A lock ends with its block, or when the process that holds it ends for any reason."""

    @property
    def place(self) -> str:
        """A unique name of the output folder."""

    @property
    def have_others(self) -> bool:
        """Whether other workers may be in the folder."""

    @property
    def is_lost(self) -> bool:
        """Whether other workers may hold the locks by now: all work then stops at its next step."""

    def check(self) -> None:
        """Check that all locks are still held. UserError if they are not, or this cannot be determined."""

    def stage(self, title: str, key: str) -> AbstractContextManager[None]:
        """Lock a stage under a key until the block ends. StageElsewhere: another worker is at it."""

    def holder(self, title: str, key: str) -> str | None:
        """The worker that is at a stage under a key; None if there is no other."""

    def turn(self, what: str) -> AbstractContextManager[None]:
        """Exclusive use of a resource among all machines; waits for its turn."""

    def own_turn(self, what: str) -> AbstractContextManager[None]:
        """Exclusive use of a resource of this output folder; waits for its turn."""

    def others(self, run: str) -> int:
        """The number of other workers in a run (its key)."""


class FolderLocks:
    """Locks of a run with exclusive use of its output folder; it shares devices with other runs of this machine."""

    have_others = False
    is_lost = False

    def __init__(self, place: str) -> None:
        self.place = place

    def check(self) -> None:
        """No check is needed: the kernel holds the lock of the folder."""

    @contextmanager
    def stage(self, title: str, key: str) -> Iterator[None]:
        """Every stage belongs to this run."""
        yield

    def holder(self, title: str, key: str) -> str | None:
        """None, since there are no other workers."""
        return None

    def turn(self, what: str) -> AbstractContextManager[None]:
        """Exclusive use of a resource among the runs of this machine."""
        return in_turn(what)

    def own_turn(self, what: str) -> AbstractContextManager[None]:
        """No lock, since there are no other workers."""
        return nullcontext()

    def others(self, run: str) -> int:
        """Zero."""
        return 0


LIST_FILE = "stages.json"
_NAMES = TypeAdapter(list[str])


class StageList:
    """The list of a run, shared by the threads of a process. folder: the run's."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / LIST_FILE
        self._turn = threading.Lock()

    def add(self, *names: str) -> bool:
        """Add references to stages. False if the list already has them. UserError if it cannot be read."""
        with self._turn:
            known = _read(self.file.read_bytes(), self.file) if self.file.exists() else None
            if known is not None and known.issuperset(names):
                return False
            write_json(self.file, sorted({*(known or ()), *names}))
            return True

    def keep(self, names: Iterable[str]) -> None:
        """Refer to these stages only."""
        with self._turn:
            write_json(self.file, sorted(set(names)))


def referred_in(folder: Path) -> set[str]:
    """Stages that runs and nights in an output folder refer to. UserError if a run's list is missing or unreadable."""
    found = _of_nights(folder / NIGHTS_FOLDER)
    for run in sorted(path for path in (folder / RUNS_FOLDER).glob("*") if path.is_dir()):
        file = run / LIST_FILE
        found |= _read(file.read_bytes() if file.exists() else None, run)
    return found


def referred_at(mirror: Mirror) -> set[str]:
    """Stages that runs and nights at a URL refer to."""
    mirror.nights.fetch()
    found = _of_nights(mirror.folder / NIGHTS_FOLDER)
    names = mirror.objects.names(RUNS_FOLDER)
    for run in sorted({"/".join(name.split("/")[:2]) for name in names}):
        found |= _read(mirror.objects.read(f"{run}/{LIST_FILE}"), f"{mirror.objects.url}/{run}")
    return found


def _of_nights(folder: Path) -> set[str]:
    """Stages of each network's latest night. Unreadable records are ignored, as the next night does not use them."""
    latest = History(folder).latest(lambda line: None)
    return {f"{stage.stage}/{stage.key}" for night in latest for stage in night.stages}


def _read(content: bytes | None, where: Path | str) -> set[str]:
    if content is None:
        hint = "give its command again, or delete this folder if the run is of no use any more"
        raise UserError(f"run '{where}'", "does not tell its stages: an earlier version made it", next_step=hint)
    try:
        return set(_NAMES.validate_json(content))
    except ValidationError as error:
        hint = f"remove {LIST_FILE} there, and give the run's command again"
        raise UserError(f"'{where}'", "its list of stages cannot be read", next_step=hint) from error


__all__ = ["FolderLocks", "RunLocks", "StageElsewhere", "database_turn", "run_locks"]
