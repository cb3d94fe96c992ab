"""Databases: a PostgreSQL server is queried, a file is read."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from flows.operations.health.state import ServiceHealth
from tasks.base.errors import UserError, shortened
from tasks.operations.backup import plain_address

ADDRESS = "postgresql://USER@HOST:PORT/DATABASE"


def postgres_health(address: str, *, timeout_s: float, service: str = "postgres") -> ServiceHealth:
    """Whether a PostgreSQL database accepts the login and answers. UserError for an invalid address."""
    url = _url_of(address, service)
    bare = url.set(drivername="postgresql")
    well, said, next_step = True, "", ""
    try:
        said = asyncio.run(_asked(bare, timeout_s))
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
        well, said = False, f"does not let us in ({shortened(error)})"
        next_step = "look at the address, and at the file of PGPASSFILE (mode 0600)"
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        well, said = False, f"does not answer ({shortened(error) or type(error).__name__})"
        next_step = "start PostgreSQL, or look at its log"
    return ServiceHealth(service=service, where=plain_address(url), well=well, said=said, next_step=next_step)


async def _asked(url: URL, timeout_s: float) -> str:
    address = url.render_as_string(hide_password=False)
    connection = await asyncio.wait_for(asyncpg.connect(address, timeout=timeout_s), timeout_s)
    try:
        version = await connection.fetchval("SHOW server_version", timeout=timeout_s)
    finally:
        await connection.close(timeout=timeout_s)
    return f"version {version}"


def sqlite_health(file: Path, service: str) -> ServiceHealth:
    """Whether an SQLite file is intact; other processes may be writing to it."""
    well, said, next_step = True, "whole", ""
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=60)) as database:
            (state,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        state = str(error)
    if state != "ok":
        well, said, next_step = False, f"cannot be used ({state})", "autotailor restore FOLDER brings back a backup"
    return ServiceHealth(service=service, where=f"sqlite:///{file}", well=well, said=said, next_step=next_step)


def _url_of(address: str, service: str) -> URL:
    try:
        url = make_url(address)
    except ArgumentError as error:
        raise UserError(service, "is no address", allowed=ADDRESS) from error
    if url.get_backend_name() not in ("postgresql", "postgres"):
        raise UserError(service, f"got '{url.render_as_string(hide_password=True)}'", allowed=ADDRESS)
    return url
