"""The address of MLflow's runs: a server, a PostgreSQL database, or an SQLite database with artifacts in its folder.

Without a setting, runs of all output folders are kept together in `mlflow.db` of the working folder, where MLflow's own
commands look for it.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from adaptive_runtime.base.errors import without_passwords
from flows.machine import in_turn, refuse_dead
from tasks.base.errors import UserError

ENVIRONMENT = "MLFLOW_TRACKING_URI"
SQLITE = "sqlite:///"
POSTGRES = ("postgresql", "postgres")
PSYCOPG = "postgresql+psycopg"
"""Scheme with the driver that the extra `postgres` installs."""
SETTING = "tracking.uri"
TABLES = "MLflow's tables"
DATABASE = "mlflow.db"
ARTIFACTS = "mlartifacts"
SQLITE_BEGINS = b"SQLite format 3\0"
ADDRESSES = (
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""Columns of MLflow's database that hold artifact addresses."""
CHOOSE = f"set tracking.uri={SQLITE}FILE or a server"
DEAD = f"start that server, or {CHOOSE}"


@dataclass(frozen=True, slots=True)
class TrackingAddress:
    """A tracking address. `artifacts`: the folder for new artifacts; None if a server decides."""

    uri: str = field(repr=False)
    artifacts: Path | None

    def __str__(self) -> str:
        """The address without passwords."""
        return without_passwords(self.uri)

    @property
    def is_postgres(self) -> bool:
        """Whether it is a PostgreSQL database, which several machines can use without an MLflow server."""
        return urlsplit(self.uri).scheme == PSYCOPG


def address_of(uri: str | None) -> TrackingAddress:
    """A setting as an address; None: the address in the environment, or the database in the working folder."""
    chosen = uri or os.environ.get(ENVIRONMENT) or f"{SQLITE}{DATABASE}"
    file = database_of(chosen)
    if file is not None:
        return TrackingAddress(f"{SQLITE}{file}", file.parent / ARTIFACTS)
    scheme, mark, rest = chosen.partition("://")
    if mark and scheme in (*POSTGRES, PSYCOPG):
        return TrackingAddress(f"{PSYCOPG}://{rest}", Path(ARTIFACTS).resolve())
    return TrackingAddress(chosen, None)


def database_of(uri: str) -> Path | None:
    """The resolved file of an SQLite address; None for other addresses."""
    path = uri.removeprefix(SQLITE).partition("?")[0] if uri.startswith(SQLITE) else ""
    return Path(unquote(path)).resolve() if path and not path.startswith(":") else None


@contextmanager
def alone_at(address: TrackingAddress) -> Iterator[None]:
    """Hold a usable address for one command at a time; the first one makes the database and the experiment.

    UserError in one line: a damaged database, a missing folder, or a server that does not answer.
    """
    from flows.storage.sharing import database_turn  # here: few addresses need what it loads

    with ExitStack() as stack:
        stack.enter_context(in_turn(address.uri))
        file = database_of(address.uri)
        if address.is_postgres:
            stack.enter_context(database_turn(address.uri, SETTING, TABLES))
        elif file is not None:
            _check_folder(file)
            if file.exists():
                with _opened(file) as database:
                    (state,) = database.execute("PRAGMA quick_check(1)").fetchone()
                if state != "ok":
                    raise _unusable(file, state)
        else:
            refuse_dead(SETTING, address.uri, DEAD)
        yield


def check_usable(address: TrackingAddress) -> None:
    """UserError if a quick check shows that runs cannot be kept there. Nothing is made or locked."""
    file = database_of(address.uri)
    if file is None:
        if not address.is_postgres:
            refuse_dead(SETTING, address.uri, DEAD)
        return
    _check_folder(file)
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise _unusable(file, "it cannot be written")
    if file.exists():
        with file.open("rb") as stream:
            begins = stream.read(len(SQLITE_BEGINS))
        if begins and begins != SQLITE_BEGINS:
            raise _unusable(file, "file is not a database")


def _check_folder(file: Path) -> None:
    if not file.parent.is_dir():
        where = f"MLflow's database '{file}'"
        raise UserError(where, "its folder does not exist", next_step=f"make it, or {CHOOSE}")


def follow(address: TrackingAddress) -> None:
    """Update the addresses in a moved or copied database, so that its artifacts lie beside it."""
    file = database_of(address.uri)
    if file is None or address.artifacts is None or not file.exists():
        return
    here = address.artifacts.as_uri()
    with _opened(file) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'experiments'").fetchone():
            return
        known = database.execute("SELECT DISTINCT artifact_location FROM experiments").fetchall()
        for (there,) in known:
            if there and there.endswith(f"/{ARTIFACTS}") and there.startswith("file:") and there != here:
                update = "UPDATE experiments SET artifact_location = ? WHERE artifact_location = ?"
                database.execute(update, (here, there))
                _readdress(database, there, here)


def _readdress(database: sqlite3.Connection, there: str, here: str) -> None:
    """Set new addresses for artifacts that moved along; the others keep their old ones."""
    for table, column in ADDRESSES:
        rows = database.execute(f"SELECT DISTINCT {column} FROM {table} WHERE {column} LIKE ? || '/%'", (there,))
        for (old,) in rows.fetchall():
            new = here + old.removeprefix(there)
            if path_of(new).exists():
                database.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (new, old))


def page_of(uri: str, experiment: str, run_id: str, name: str) -> str | None:
    """Address of an artifact's page in the UI of an MLflow server, without a password; None for a database."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return None
    place = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
    return f"{place}/#/experiments/{experiment}/runs/{run_id}/artifacts/{quote(name)}"


def path_of(uri: str) -> Path:
    """The path of a file address."""
    return Path(unquote(urlsplit(uri).path))


@contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    """A database, with one transaction; UserError if it cannot be used."""
    try:
        with closing(sqlite3.connect(file, timeout=60)) as database, database:
            yield database
    except sqlite3.Error as error:
        raise _unusable(file, str(error)) from error


def _unusable(file: Path, reason: str) -> UserError:
    hint = f"move it away, and a new one is made, or {CHOOSE}"
    return UserError(f"MLflow's database '{file}'", f"cannot be used ({reason})", next_step=hint)
