"""Opens the locks of a run: for exclusive use of a folder, or shared with other workers by a database."""

import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.machine.locks import POLL_SECONDS, in_turn, only_run
from flows.storage.sharing.locks import FolderLocks, RunLocks, StageElsewhere
from flows.storage.sharing.session import LockSession
from tasks.base.artifacts import write_bytes

IDENTITY_FILE = ".identity"
"""File in a shared output folder, by which machines with different paths to it know that it is the same folder."""
SETTING = "locks"


class SharedLocks:
    """Locks of a run that shares its output folder with other workers. A database session locks stages one by one."""

    have_others = True

    def __init__(self, session: LockSession, place: str) -> None:
        self._session = session
        self.place = place

    @property
    def is_lost(self) -> bool:
        """Whether the session has ended unexpectedly."""
        return self._session.is_lost

    def check(self) -> None:
        """Query the database."""
        self._session.check()

    @contextmanager
    def stage(self, title: str, key: str) -> Iterator[None]:
        """Lock a stage under a key, or raise StageElsewhere."""
        name = self._stage(title, key)
        if not self._session.take(name):
            raise StageElsewhere(title, next(iter(self._session.holders(name)), "another worker"))
        try:
            yield
        finally:
            self._session.release(name)

    def holder(self, title: str, key: str) -> str | None:
        """The worker at a stage under a key."""
        return next(iter(self._session.holders(self._stage(title, key))), None)

    @contextmanager
    def turn(self, what: str) -> Iterator[None]:
        """Exclusive use among the runs of this machine first, then among machines."""
        with in_turn(what), _turn(self._session, what):
            yield

    @contextmanager
    def own_turn(self, what: str) -> Iterator[None]:
        """Like `turn`, but among the workers on this folder."""
        with self.turn(f"{self.place} {what}"):
            yield

    def join(self, run: str) -> None:
        """Become one of the workers of a run (its key) until the session ends."""
        self._session.join(self._run(run))

    def others(self, run: str) -> int:
        """The number of other workers in a run."""
        return len(self._session.holders(self._run(run)))

    def _stage(self, title: str, key: str) -> str:
        return f"{self.place} stage {title}/{key}"

    def _run(self, run: str) -> str:
        return f"{self.place} run {run}"


@contextmanager
def run_locks(database: str | None, output: Path, run: str) -> Iterator[RunLocks]:
    """The locks of a run (its key) in an output folder. database: address of PostgreSQL; None: exclusive use of the folder.

    UserError: the folder is in use by runs that do not share it with this one, or it or the database cannot be used.
    """
    with only_run(output, shared=database is not None):
        if database is None:
            yield FolderLocks(f"{socket.gethostname()}:{output.resolve()}")
            return
        with LockSession(database, SETTING) as session:
            with in_turn(SETTING), _turn(session, IDENTITY_FILE):
                place = _identity(output)
            locks = SharedLocks(session, place)
            locks.join(run)
            yield locks


@contextmanager
def database_turn(database: str, where: str, what: str) -> Iterator[None]:
    """Exclusive use of a resource among all clients of a PostgreSQL database; waits for its turn.

    where: the setting that names the database, for messages. UserError if it cannot be used.
    """
    with LockSession(database, where) as session, _turn(session, what):
        yield


@contextmanager
def _turn(session: LockSession, what: str) -> Iterator[None]:
    while not session.take(what):
        time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        session.release(what)


def _identity(output: Path) -> str:
    """The name of a shared folder, created if missing. Only one worker at a time calls this."""
    file = output / IDENTITY_FILE
    if not file.exists():
        write_bytes(file, f"{secrets.token_hex(16)}\n".encode())
    return file.read_text(encoding="ascii").strip()
