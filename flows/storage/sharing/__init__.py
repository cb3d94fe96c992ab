"""Use of an output folder: by one run exclusively, or by several workers with locks in a PostgreSQL database.

Complete stages are referred to by runs, which have a list in their folder, and by the latest nights:

    runs/KEY/stages.json      the stages of a run, as STAGE/KEY, with keys as their folders have them

A run adds to its list while it works, and reduces the list to its own stages at its end. Earlier stages, from other
code or inputs, are therefore referred to until the run is complete again. Stages of a night are referred to until the
next night of its network, which compares look-up tables with them.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from flows.machine import in_turn, only_run
from flows.storage import NIGHTS_FOLDER, RUNS_FOLDER
from flows.storage.mirror import Mirror
from importing import later_names
from tasks.base.artifacts import write_bytes, write_json
from tasks.base.errors import UserError
from tasks.operations.nightly.records import History

if TYPE_CHECKING:
    from flows.storage.sharing.database import LockSession
else:
    globals().update(later_names(__file__))

IDENTITY_FILE = ".identity"
"""File in a shared output folder, by which machines with different paths to it know that it is the same folder."""
SETTING = "locks"


class StageElsewhere(Exception):
    """Another worker is at a stage, so this worker must not work it."""

    def __init__(self, stage: str, holder: str) -> None:
        super().__init__(f"{stage}: {holder} is at it")


class RunLocks:
    """The locks of a run. A lock ends with its block, or when the process that holds it ends for any reason.

    Without a session the run has exclusive use of its output folder, and shares devices with the runs of this machine.
    With a session of a database, several workers share the folder, and lock its stages one by one.
    """

    def __init__(self, place: str, session: LockSession | None = None) -> None:
        """place: a unique name of the output folder."""
        self.place = place
        self._session = session

    @property
    def have_others(self) -> bool:
        """Whether other workers may be in the folder."""
        return self._session is not None

    @property
    def is_lost(self) -> bool:
        """Whether other workers may hold the locks by now: all work then stops at its next step."""
        return self._session is not None and self._session.is_lost

    def check(self) -> None:
        """Check that all locks are still held. UserError if they are not, or this cannot be determined."""
        if self._session is not None:
            self._session.check()

    @contextmanager
    def stage(self, title: str, key: str) -> Iterator[None]:
        """Lock a stage under a key until the block ends. StageElsewhere: another worker is at it."""
        name = f"{self.place} stage {title}/{key}"
        if self._session is not None and not self._session.take(name):
            raise StageElsewhere(title, self.holder(title, key) or "another worker")
        try:
            yield
        finally:
            if self._session is not None:
                self._session.release(name)

    def holder(self, title: str, key: str) -> str | None:
        """The other worker that is at a stage under a key, if any."""
        return next(iter(self._holders(f"stage {title}/{key}")), None)

    @contextmanager
    def turn(self, what: str) -> Iterator[None]:
        """Exclusive use of a resource among the runs of this machine first, then among all machines; waits for its turn."""
        with in_turn(what):
            if self._session is None:
                yield
                return
            with self._session.held(what):
                yield

    @contextmanager
    def own_turn(self, what: str) -> Iterator[None]:
        """Exclusive use of a resource of this output folder; waits for its turn."""
        if self._session is None:
            yield
            return
        with self.turn(f"{self.place} {what}"):
            yield

    def others(self, run: str) -> int:
        """The number of other workers in a run (its key)."""
        return len(self._holders(f"run {run}"))

    def _holders(self, what: str) -> list[str]:
        return [] if self._session is None else self._session.holders(f"{self.place} {what}")


@contextmanager
def run_locks(database: str | None, output: Path, run: str) -> Iterator[RunLocks]:
    """The locks of a run (its key) in an output folder. database: address of PostgreSQL; None: exclusive use of the folder.

    UserError: the folder is in use by runs that do not share it with this one, or it or the database cannot be used.
    """
    with only_run(output, shared=database is not None):
        if database is None:
            yield RunLocks(f"{socket.gethostname()}:{output.resolve()}")
            return
        with LockSession(database, SETTING) as session:
            with in_turn(SETTING), session.held(IDENTITY_FILE):
                file = output / IDENTITY_FILE
                if not file.exists():
                    write_bytes(file, f"{secrets.token_hex(16)}\n".encode())
                place = file.read_text(encoding="ascii").strip()
            session.join(f"{place} run {run}")
            yield RunLocks(place, session)


@contextmanager
def database_turn(database: str, where: str, what: str) -> Iterator[None]:
    """Exclusive use of a resource among all clients of a PostgreSQL database; waits for its turn.

    where: the setting that names the database, for messages. UserError if it cannot be used.
    """
    with LockSession(database, where) as session, session.held(what):
        yield


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
