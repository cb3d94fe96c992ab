"""The registry of devices, bundles and roll-outs, in a database: SQLite by default, PostgreSQL by its address.

The database is created if new, upgraded if old, and refused if its schema is later than ours. Upgrades run in the
transaction that opens it, and keep all rows. Times are seconds since 1970, UTC; tokens are stored only as their sha256.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.schema import CreateColumn

from adaptive_runtime.base.errors import without_passwords
from tasks.base.errors import UserError, shortened

SCHEMA_VERSION = 2
"""Version of these tables. `tasks.operations.fleet.registry` upgrades earlier ones; a later one is refused."""

metadata = sa.MetaData()

schema = sa.Table(
    "fleet_schema",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("window_s", sa.Float, nullable=False),  # length of the windows of telemetry
)

enrolments = sa.Table(
    "enrolments",
    metadata,
    sa.Column("token_hash", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(256), nullable=False),
    sa.Column("expires_s", sa.Float, nullable=False),
    sa.Column("device", sa.String(32)),  # device that has used it; null: none yet
)

devices = sa.Table(
    "devices",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("token_hash", sa.String(64), nullable=False, unique=True),
    sa.Column("name", sa.String(256), nullable=False),
    sa.Column("kind", sa.String(256), nullable=False),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("owner", sa.String(256), nullable=False),
    sa.Column("enrolled_s", sa.Float, nullable=False),
    sa.Column("seen_s", sa.Float, nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False, default=0),  # sequence number of its latest telemetry
    sa.Column("told", sa.String(64), key="digest"),  # sha256 of that telemetry, which detects repeated messages
    sa.Column(
        "restored", sa.Integer, nullable=False, server_default="0"
    ),  # how often it sent telemetry from an older copy of its folder
    sa.Column("restored_s", sa.Float),  # last time of this
    sa.Column("lut", sa.String(256)),  # name of the look-up table of its kind
    sa.Column("verdict", sa.String(16)),  # of the latest check by its kind: sound, outlier, failed, unknown
    sa.Column("verdict_reason", sa.Text),
    sa.Column("checked_s", sa.Float),
    sa.Column("assigned", sa.String(64)),  # digest of the bundle that it should run; null: whatever it has
    sa.Column("active", sa.String(64)),  # digest of the bundle that it reports to run
)

bundles = sa.Table(
    "bundles",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),  # sha256 of bundle.json
    sa.Column("name", sa.String(256), nullable=False),
    sa.Column("signature", sa.String(64)),
    sa.Column("added_s", sa.Float, nullable=False),
)

telemetry = sa.Table(
    "telemetry",
    metadata,
    sa.Column("device", sa.String(32), sa.ForeignKey("devices.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("window", sa.Integer, primary_key=True),  # its start over the length of windows
    sa.Column("bundle", sa.String(64), primary_key=True),  # bundle that answered; empty: none of this registry
    sa.Column("requests", sa.Float, nullable=False),
    sa.Column("log_latency", sa.Float, nullable=False),
    sa.Column("in_time", sa.Float, nullable=False),
    sa.Column("confidence", sa.Float, nullable=False),
    sa.Column("labelled", sa.Float, nullable=False),
    sa.Column("agreed", sa.Float, nullable=False),
)

rollouts = sa.Table(
    "rollouts",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("bundle", sa.String(64), sa.ForeignKey("bundles.digest"), nullable=False),
    sa.Column("kinds", sa.Text, nullable=False),  # JSON; empty: all
    sa.Column("settings", sa.Text, nullable=False),
    sa.Column("seed", sa.Integer, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),  # running, asking, halted, complete
    sa.Column("stage", sa.Integer, nullable=False),
    sa.Column("stage_window", sa.Integer, nullable=False),  # window in which the stage began
    sa.Column("looked_window", sa.Integer, nullable=False),  # last window that was decided on
)

rollout_devices = sa.Table(
    "rollout_devices",
    metadata,
    sa.Column("rollout", sa.Integer, sa.ForeignKey("rollouts.id"), primary_key=True),
    sa.Column("place", sa.Integer, primary_key=True),
    sa.Column("device", sa.String(32), nullable=False),
    sa.Column("kind", sa.String(256), nullable=False),
    sa.Column("before", sa.String(64)),  # bundle that it was assigned before
    sa.Column("stage", sa.Integer),  # stage in which it gets the bundle; null: not yet
    sa.Column(
        "compared", sa.Boolean, nullable=False, default=False
    ),  # whether the test of the running stage looks at it
)

rollout_events = sa.Table(
    "rollout_events",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("rollout", sa.Integer, sa.ForeignKey("rollouts.id"), nullable=False, index=True),
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Column("stage", sa.Integer, nullable=False),
    sa.Column("action", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
)


def upgrade(connection: sa.Connection, version: int) -> None:
    """Upgrade the schema. Version 2 adds facts of a device's latest telemetry, of its restored copies, and of checks."""
    if version < 2:
        for name in ("digest", "restored", "restored_s", "lut", "verdict", "verdict_reason", "checked_s"):
            column = CreateColumn(devices.c[name]).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {devices.name} ADD COLUMN {column}")
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"ALTER TABLE {devices.name} ALTER COLUMN sequence TYPE BIGINT")
    connection.execute(sa.update(schema).values(version=SCHEMA_VERSION))


WINDOW_S = 3600.0
READS = "fleet_reads"
ADDRESSES = "sqlite:///FILE or postgresql+psycopg://…"
BUSY_S = 30
"""How long to wait for a SQLite database that another process writes to [s]."""
WRITERS = 8
"""Transactions of a service that write at once, if the database takes several."""


class Registry:
    """An open database. Each block `with registry.writing() as connection` is one transaction, as is one of `reading`."""

    def __init__(self, engine: sa.Engine, where: str, window_s: float) -> None:
        """where: its address for people. window_s: length of the windows of telemetry."""
        self._engine, self.where, self.window_s = engine, where, window_s
        self._reader = engine.execution_options(**{READS: True})

    @classmethod
    def open(cls, url: str, window_s: float = WINDOW_S) -> Self:
        """Open a registry by its SQLAlchemy address. UserError: unusable, or of a later version. window_s: of a new one."""
        where = f"database '{without_passwords(url)}'"
        try:
            engine = sa.create_engine(url, pool_pre_ping=True)
            if engine.dialect.name == "sqlite":
                if (file := engine.url.database) and file != ":memory:":
                    Path(file).parent.mkdir(parents=True, exist_ok=True)
                sa.event.listen(engine, "connect", _open_sqlite)
                sa.event.listen(engine, "begin", _begin_sqlite)
            with engine.begin() as connection:
                found_s = _windows_of(connection, where, window_s)
        except ModuleNotFoundError as error:
            got = f"its driver '{error.name}' is missing"
            raise UserError(where, got, next_step=f"pip install {error.name}") from error
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
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction; rolled back if its block raises."""
        with self._engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction that writes nothing, and waits for no writer."""
        with self._reader.begin() as connection:
            yield connection


def one_at_a_time(connection: sa.Connection) -> None:
    """Wait for all other transactions that called this; from now on, the data read does not change until the transaction ends.

    For transactions that read several rows before they write: roll-outs, and bundles that are added. SQLite has one writer
    anyway.
    """
    connection.execute(sa.select(schema.c.version).with_for_update())


def _begin_sqlite(connection: sa.Connection) -> None:
    """A writer waits for other writers from its first statement on, so the data it read does not change before it writes."""
    reads = connection.get_execution_options().get(READS, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _open_sqlite(connection: Any, record: Any) -> None:
    """Set up a connection: readers do not wait for a writer, and foreign keys are enforced."""
    connection.isolation_level = None  # transactions begin as `_begin_sqlite` says
    for setting in ("journal_mode=WAL", "foreign_keys=ON", f"busy_timeout={1000 * BUSY_S}", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {setting}")


def _windows_of(connection: sa.Connection, where: str, window_s: float) -> float:
    """Window length of a registry; its schema is created if it is missing, and upgraded if it is older."""
    if not sa.inspect(connection).has_table(schema.name):
        metadata.create_all(connection)
        connection.execute(sa.insert(schema).values(version=SCHEMA_VERSION, window_s=window_s))
    found = connection.execute(sa.select(schema.c.version).with_for_update()).scalar_one_or_none()
    if found is None or not 1 <= found <= SCHEMA_VERSION:
        late = found is not None and found > SCHEMA_VERSION
        next_step = "update autotailor here" if late else "use another database"
        raise UserError(where, f"its schema has version {found}", allowed=f"1 to {SCHEMA_VERSION}", next_step=next_step)
    if found < SCHEMA_VERSION:
        upgrade(connection, found)
    return float(connection.execute(sa.select(schema.c.window_s)).scalar_one())
