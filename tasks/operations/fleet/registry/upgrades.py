"""Upgrades from earlier schemas to that of `tasks.operations.fleet.registry.tables`, in the transaction that opens it.

All rows are kept.
"""

from sqlalchemy import Connection, update
from sqlalchemy.schema import CreateColumn

from tasks.operations.fleet.registry.tables import SCHEMA_VERSION, devices, schema


def upgrade(connection: Connection, version: int) -> None:
    """Upgrade the schema. Version 2 adds facts of a device's latest telemetry, of its restored copies, and of checks."""
    if version < 2:
        for name in ("told", "restored", "restored_s", "lut", "verdict", "verdict_reason", "checked_s"):
            column = CreateColumn(devices.c[name]).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {devices.name} ADD COLUMN {column}")
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"ALTER TABLE {devices.name} ALTER COLUMN sequence TYPE BIGINT")
    connection.execute(update(schema).values(version=SCHEMA_VERSION))
