"""The database of a registry: created if new, upgraded if old, refused if its schema is a later one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Engine, create_engine, event, insert, inspect, select
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from adaptive_runtime.base.errors import without_passwords
from tasks.base.errors import UserError, shortened
from tasks.operations.fleet.registry.tables import SCHEMA_VERSION, metadata, schema
from tasks.operations.fleet.registry.upgrades import upgrade

WINDOW_S = 3600.0
READS = "fleet_reads"
ADDRESSES = "sqlite:///FILE or postgresql+psycopg://…"
BUSY_S = 30
"""How long to wait for a SQLite database that another process writes to [s]."""
WRITERS = 8
"""Transactions of a service that write at once, if the database takes several."""


class Registry:
    """An open database. Each block `with registry.writing() as connection` is one transaction, as is one of `reading`."""

    def __init__(self, engine: Engine, where: str, window_s: float) -> None:
        """where: its address for people. window_s: length of the windows of telemetry."""
        self._engine, self.where, self.window_s = engine, where, window_s
        self._reader = engine.execution_options(**{READS: True})

    @classmethod
    def open(cls, url: str, window_s: float = WINDOW_S) -> Self:
        """Open a registry. UserError: unusable, or of a later version.

        url: as SQLAlchemy takes it: sqlite:///FILE, postgresql+DRIVER://…. window_s: of a new registry.
        """
        where = f"database '{without_passwords(url)}'"
        try:
            engine = create_engine(url, pool_pre_ping=True)
            if engine.dialect.name == "sqlite":
                _make_folder(engine)
                event.listen(engine, "connect", _open_sqlite)
                event.listen(engine, "begin", _begin_sqlite)
            with engine.begin() as connection:
                found_s = _windows_of(connection, where, window_s)
        except ModuleNotFoundError as error:
            raise UserError(
                where, f"its driver '{error.name}' is missing", next_step=f"pip install {error.name}"
            ) from error
        except NoSuchModuleError as error:
            raise UserError(where, shortened(error), allowed=ADDRESSES) from error
        except ArgumentError as error:
            raise UserError("database", "is no address", allowed=ADDRESSES) from error
        except (SQLAlchemyError, OSError) as error:
            raise UserError(where, f"cannot be used ({shortened(error)})") from error
        return cls(engine, where, found_s)

    @property
    def writers(self) -> int:
        """Number of transactions that may write at once. SQLite has one writer; waiting for it is slower than a queue."""
        return 1 if self._engine.dialect.name == "sqlite" else WRITERS

    def close(self) -> None:
        """Close the registry's connections."""
        self._engine.dispose()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction; rolled back if its block raises."""
        with self._engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that writes nothing, and waits for no writer."""
        with self._reader.begin() as connection:
            yield connection


def one_at_a_time(connection: Connection) -> None:
    """Wait for all other transactions that called this; from now on, the data read does not change until the transaction ends.

    For transactions that read several rows before they write: roll-outs, and bundles that are added. SQLite has one writer
    anyway.
    """
    connection.execute(select(schema.c.version).with_for_update())


def _make_folder(engine: Engine) -> None:
    file = engine.url.database
    if file and file != ":memory:":
        Path(file).parent.mkdir(parents=True, exist_ok=True)


def _begin_sqlite(connection: Connection) -> None:
    """A writer waits for other writers from its first statement on, so the data it read does not change before it writes."""
    reads = connection.get_execution_options().get(READS, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _open_sqlite(connection: Any, record: Any) -> None:
    """Set up a connection: readers do not wait for a writer, and foreign keys are enforced."""
    connection.isolation_level = None  # transactions begin as `_begin_sqlite` says
    for setting in ("journal_mode=WAL", "foreign_keys=ON", f"busy_timeout={1000 * BUSY_S}", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {setting}")


def _windows_of(connection: Connection, where: str, window_s: float) -> float:
    """Window length of a registry; its schema is created if it is missing, and upgraded if it is older."""
    if not inspect(connection).has_table(schema.name):
        metadata.create_all(connection)
        connection.execute(insert(schema).values(version=SCHEMA_VERSION, window_s=window_s))
    found = connection.execute(select(schema.c.version).with_for_update()).scalar_one_or_none()
    if found is None or not 1 <= found <= SCHEMA_VERSION:
        late = found is not None and found > SCHEMA_VERSION
        next_step = "update autotailor here" if late else "use another database"
        raise UserError(where, f"its schema has version {found}", allowed=f"1 to {SCHEMA_VERSION}", next_step=next_step)
    if found < SCHEMA_VERSION:
        upgrade(connection, found)
    return float(connection.execute(select(schema.c.window_s)).scalar_one())
