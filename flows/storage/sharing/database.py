"""Locks of a PostgreSQL session (advisory locks). The server releases them when the session ends for any reason.

A killed process loses its connection at once. TCP detects a machine that is gone or cut off: its own side gives up after
`SILENT_S`, before the server gives up after `SERVER_SILENT_S` and grants its locks to others.
"""

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import BigInteger, bindparam, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from flows.machine import POLL_SECONDS, Locks
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
TAKE, JOIN, RELEASE = (
    text(f"SELECT {function}(:number)").bindparams(bindparam("number", type_=BigInteger))
    for function in ("pg_try_advisory_lock", "pg_advisory_lock_shared", "pg_advisory_unlock")
)
HOLDERS = text("""
    SELECT coalesce(activity.application_name, '')
    FROM pg_locks JOIN pg_stat_activity AS activity USING (pid)
    WHERE pg_locks.locktype = 'advisory' AND pg_locks.granted AND pg_locks.objsubid = 1
        AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND pg_locks.classid::bigint = :upper AND pg_locks.objid::bigint = :lower
        AND pid <> pg_backend_pid()
""").bindparams(bindparam("upper", type_=BigInteger), bindparam("lower", type_=BigInteger))


class LockSession(Locks):
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

    @contextmanager
    def held(self, name: str, say: Callable[[str], None] = print) -> Iterator[int]:
        """Hold a lock until the block ends; waits while another session has it."""
        while not self.take(name):
            time.sleep(POLL_SECONDS)
        try:
            yield 0
        finally:
            self.release(name)

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


def _connected(url: str, where: str) -> Any:
    """A connection that runs every statement in its own transaction."""
    options = {
        "application_name": f"{NAME} {socket.gethostname()}:{os.getpid()}"[:LONGEST_NAME],
        "connect_timeout": CONNECT_S,
        "keepalives_idle": IDLE_S,
        "tcp_user_timeout": 1000 * SILENT_S,
        "options": f"-c tcp_keepalives_idle={SERVER_IDLE_S} -c tcp_keepalives_interval={SERVER_INTERVAL_S} "
        f"-c tcp_keepalives_count={SERVER_PROBES}",
    }
    try:
        address = make_url(url).set(drivername=DRIVER)
        engine = create_engine(address, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=options)
        return engine.connect()
    except ImportError as error:
        raise UserError(where, f"PostgreSQL's driver is missing ({shortened(error)})", next_step=INSTALL) from error
    except (SQLAlchemyError, OSError) as error:
        hint = "start that server, or name another; a password goes into the file of PGPASSFILE"
        raise UserError(where, f"PostgreSQL cannot be used ({shortened(_reason(error))})", next_step=hint) from error


def _reason(error: Exception) -> BaseException:
    """The driver's error, without the statement and the link that SQLAlchemy adds."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
