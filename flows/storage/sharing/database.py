"""Locks of a PostgreSQL session (advisory locks). The server releases them when the session ends for any reason.

A killed process loses its connection at once. TCP detects a machine that is gone or cut off: its own side gives up after
`SILENT_S`, before the server gives up after `SERVER_SILENT_S` and grants its locks to others.

Opens the locks of a run: for exclusive use of a folder, or shared with other workers by a database.
"""

import hashlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Engine, bindparam, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from flows.machine import POLL_SECONDS, in_turn, only_run
from flows.storage.sharing import FolderLocks, RunLocks, StageElsewhere
from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError, shortened

DRIVER = "postgresql+psycopg"
INSTALL = "in the clone: pip install -e '.[postgres]'"
BEAT_S = 5.0
CONNECT_S = 10
IDLE_S = 5
SILENT_S = 15
SERVER_IDLE_S, SERVER_INTERVAL_S, SERVER_PROBES = 20, 5, 4
SERVER_SILENT_S = SERVER_IDLE_S + SERVER_INTERVAL_S * SERVER_PROBES
NAME = "autotailor"
LONGEST_NAME = 63
"""PostgreSQL truncates application names to this length."""
TAKE = text("SELECT pg_try_advisory_lock(:number)").bindparams(bindparam("number", type_=BigInteger))
JOIN = text("SELECT pg_advisory_lock_shared(:number)").bindparams(bindparam("number", type_=BigInteger))
RELEASE = text("SELECT pg_advisory_unlock(:number)").bindparams(bindparam("number", type_=BigInteger))
HOLDERS = text("""
    SELECT coalesce(activity.application_name, '')
    FROM pg_locks JOIN pg_stat_activity AS activity USING (pid)
    WHERE pg_locks.locktype = 'advisory' AND pg_locks.granted AND pg_locks.objsubid = 1
        AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND pg_locks.classid::bigint = :upper AND pg_locks.objid::bigint = :lower
        AND pid <> pg_backend_pid()
""").bindparams(bindparam("upper", type_=BigInteger), bindparam("lower", type_=BigInteger))


class LockSession:
    """One connection and its locks, shared by the threads of a process. Use as a context.

    No other thread requests a lock that this session already holds: `flows.machine` and the walk ensure this.
    """

    def __init__(self, url: str, where: str) -> None:
        """url: of a PostgreSQL database. where: the setting that names it, for messages. UserError if it cannot be used."""
        self._where = where
        self._connection = _connected(url, where)
        self._one_at_a_time = threading.Lock()
        self._ended = threading.Event()
        self._loss: str | None = None
        self._beat = threading.Thread(target=self._watch, name="locks", daemon=True)

    def __enter__(self) -> "LockSession":
        self._beat.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._beat.join()
        if self._loss is None:
            self._connection.close()

    @property
    def is_lost(self) -> bool:
        """Whether the session has ended unexpectedly; others may hold its locks then."""
        return self._loss is not None

    def check(self) -> None:
        """Query the server. UserError if the session is lost."""
        self._ask(text("SELECT 1"))

    def take(self, name: str) -> bool:
        """Lock a name, unless another session has it. Does not wait."""
        return bool(self._ask(TAKE, number=number_of(name))[0])

    def join(self, name: str) -> None:
        """Lock a name in shared mode until this session ends."""
        self._ask(JOIN, number=number_of(name))

    def release(self, name: str) -> None:
        """Unlock a name; no effect if the session is lost, which unlocked it."""
        if not self.is_lost:
            self._ask(RELEASE, number=number_of(name))

    def holders(self, name: str) -> list[str]:
        """The other sessions that have locked a name, exclusively or shared, as HOST:PROCESS."""
        upper, lower = divmod(number_of(name) % 2**64, 2**32)
        found = self._ask(HOLDERS, upper=upper, lower=lower)
        return [str(holder).removeprefix(NAME).strip() or "another worker" for holder in found]

    def _ask(self, statement: Any, **values: int) -> list[Any]:
        """First column of the answer. After a failure nothing is queried again: a new session would not have the locks."""
        with self._one_at_a_time:
            if self._loss is not None:
                raise self._lost()
            try:
                return list(self._connection.execute(statement, values).scalars())
            except SQLAlchemyError as error:
                self._loss = shortened(_reason(error))
                raise self._lost() from error

    def _lost(self) -> UserError:
        got = f"the connection was lost ({self._loss}); another worker may go on with what this one was at"
        return UserError(self._where, got, next_step="the same command goes on")

    def _watch(self) -> None:
        """Detect the loss of the session while stages work, and keep it from appearing idle."""
        while not self._ended.wait(BEAT_S) and not self.is_lost:
            with suppress(UserError):  # it is stored, and raised in the thread that needs a lock
                self.check()


def number_of(name: str) -> int:
    """The number of a lock: a signed 64-bit integer, as PostgreSQL requires."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)


def own_name() -> str:
    """This process as HOST:PROCESS."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _connected(url: str, where: str) -> Any:
    """A connection that runs every statement in its own transaction."""
    try:
        return _engine(url).connect()
    except ImportError as error:
        raise UserError(where, f"PostgreSQL's driver is missing ({shortened(error)})", next_step=INSTALL) from error
    except (SQLAlchemyError, OSError) as error:
        hint = "start that server, or name another; a password goes into the file of PGPASSFILE"
        raise UserError(where, f"PostgreSQL cannot be used ({shortened(_reason(error))})", next_step=hint) from error


def _engine(url: str) -> Engine:
    options = {
        "application_name": f"{NAME} {own_name()}"[:LONGEST_NAME],
        "connect_timeout": CONNECT_S,
        "keepalives_idle": IDLE_S,
        "tcp_user_timeout": 1000 * SILENT_S,
        "options": f"-c tcp_keepalives_idle={SERVER_IDLE_S} -c tcp_keepalives_interval={SERVER_INTERVAL_S} "
        f"-c tcp_keepalives_count={SERVER_PROBES}",
    }
    address = make_url(url).set(drivername=DRIVER)
    return create_engine(address, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=options)


def _reason(error: Exception) -> BaseException:
    """The driver's error, without the statement and the link that SQLAlchemy adds."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


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
