"""Databases into a backup and back, each by what its makers give for it, while others use it.

SQLite: its online backup. PostgreSQL: pg_dump and psql, in one transaction. Passwords come from PGPASSFILE, or from the address
by the programs' environment, never by their command lines.
"""

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Protocol

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from tasks.base.errors import UserError, shortened
from tasks.operations.backup.manifest import PartKind

ADDRESSES = "sqlite:///FILE or postgresql://USER@HOST/DATABASE"
DEBIAN = Path("/usr/lib/postgresql")
WAIT_S = 60.0
BESIDE = ("", "-wal", "-shm", "-journal")
"""Files of a SQLite database: what is written and not yet in the first one is in the others."""
COUNT_TABLES = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
EMPTY = "DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public;"


class Database(Protocol):
    """A database that a backup knows."""

    kind: PartKind

    @property
    def where(self) -> str:
        """Its address for people, without a password."""

    def exists(self) -> bool:
        """Whether something is in it. UserError: it cannot be reached."""

    def dump(self, target: Path) -> None:
        """Write all of it, as it is at one moment. UserError: it cannot be read."""


class SqliteDatabase:
    """A file."""

    kind: PartKind = "sqlite"

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def where(self) -> str:
        """Its address."""
        return f"sqlite:///{self.file}"

    def exists(self) -> bool:
        """Whether the file is there."""
        return self.file.exists()

    def dump(self, target: Path) -> None:
        """By SQLite's online backup, then checked."""
        try:
            with (
                closing(sqlite3.connect(f"{self.file.resolve().as_uri()}?mode=ro", timeout=WAIT_S, uri=True)) as source,
                closing(sqlite3.connect(target)) as copy,
            ):
                source.backup(copy)
                (state,) = copy.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as error:
            raise UserError(f"database '{self.file}'", f"cannot be read ({error})", next_step=_BEFORE) from error
        if state != "ok":
            raise UserError(f"database '{self.file}'", f"is damaged ({state})", next_step=_BEFORE)

    def files(self) -> list[Path]:
        """Those that are there, with what is written and not yet in the first one."""
        beside = (self.file.with_name(self.file.name + end) for end in BESIDE)
        return [file for file in beside if file.exists()]


_BEFORE = "backups that were made before are as they were"


class PostgresDatabase:
    """A database of a server."""

    kind: PartKind = "postgresql"

    def __init__(self, url: URL) -> None:
        self._url = url

    @property
    def where(self) -> str:
        """Its address without a password."""
        return plain_address(self._url)

    def exists(self) -> bool:
        """Whether it has tables."""
        return int(self._ask(self._psql("--tuples-only", "--no-align", f"--command={COUNT_TABLES}"))) > 0

    def dump(self, target: Path) -> None:
        """By pg_dump, in its own format, without owners: another user may restore it."""
        self._ask(
            [_program("pg_dump"), "--format=custom", "--no-owner", "--no-privileges", f"--file={target}", *self._to()]
        )

    def load(self, dump: Path, script: Path) -> None:
        """Put a dump in the place of all that is there: whole, or not at all. script: a file that is made meanwhile.

        The dump becomes SQL before the database is asked for anything, so that half a dump changes nothing.
        """
        words = ["--no-owner", "--no-privileges", f"--file={script}", str(dump)]
        self._ask([_program("pg_restore"), *words])
        text = ["--single-transaction", "--set=ON_ERROR_STOP=1", "--output=/dev/null", f"--command={EMPTY}"]
        self._ask(self._psql(*text, f"--file={script}"))

    def _psql(self, *words: str) -> list[str]:
        return [_program("psql"), "--no-psqlrc", "--quiet", *words, *self._to()]

    def _to(self) -> list[str]:
        """Words that name it: asked for a password, the programs fail instead of waiting."""
        return ["--no-password", f"--dbname={plain_address(self._url)}"]

    def _ask(self, words: list[str]) -> str:
        """The output of a program. UserError: it failed, with its last line."""
        password = {} if self._url.password is None else {"PGPASSWORD": str(self._url.password)}
        environment = os.environ | {"PGCONNECT_TIMEOUT": "20", "LC_ALL": "C.UTF-8"} | password
        done = subprocess.run(words, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"code {done.returncode}"]
            told = next((line for line in lines if "ERROR" in line or "FATAL" in line), lines[0])
            raise UserError(f"database '{self.where}'", f"{Path(words[0]).name} failed ({told.strip()})")
        return done.stdout


def plain_address(url: URL) -> str:
    """Of a PostgreSQL database, as its own programs take it, without a password. (`URL.set` takes none away.)"""
    query = dict(url.query)
    return URL.create("postgresql", url.username, None, url.host, url.port, url.database, query).render_as_string()


def database_at(address: str, where: str) -> SqliteDatabase | PostgresDatabase:
    """A database by its address, as SQLAlchemy takes it. where: the option. UserError: it is none of the two kinds."""
    try:
        url = make_url(address)
    except ArgumentError as error:
        raise UserError(where, "is no address", allowed=ADDRESSES) from error
    kind = url.get_backend_name()
    if kind == "sqlite" and url.database and url.database != ":memory:":
        return SqliteDatabase(Path(url.database))
    if kind in ("postgresql", "postgres") and url.database:
        return PostgresDatabase(url)
    raise UserError(where, f"got '{shortened(Exception(url.render_as_string(hide_password=True)))}'", allowed=ADDRESSES)


def _program(name: str) -> str:
    """Of PostgreSQL's client, the newest that is installed: an older one refuses a newer server. UserError: none is."""
    known = sorted(DEBIAN.glob(f"*/bin/{name}"), key=lambda path: float(path.parent.parent.name))
    found = str(known[-1]) if known else shutil.which(name)
    if found is None:
        raise UserError(f"program '{name}'", "is missing", next_step="apt install postgresql-client")
    return found
