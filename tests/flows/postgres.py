"""A real PostgreSQL server, of Debian's package, for the time of some tests."""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

DEBIAN = Path("/usr/lib/postgresql")
NEEDED = ("initdb", "postgres", "pg_isready")
USER = "autotailor"
START_SECONDS = 120
STOP_SECONDS = 120
SMALL = (
    "fsync=off",
    "shared_buffers=32MB",
    "max_connections=200",
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
)


def programs() -> Path | None:
    """The folder of the newest server's programs; None where none is installed."""
    found = [folder for folder in DEBIAN.glob("*/bin") if all((folder / name).exists() for name in NEEDED)]
    if found:
        return max(found, key=lambda folder: float(folder.parent.name))
    on_path = shutil.which("postgres")
    return Path(on_path).parent if on_path else None


@dataclass(frozen=True)
class Postgres:
    """A running server. Its password is in a file for PGPASSFILE."""

    port: int
    password: str
    passwords: Path

    def url(self, database: str, *, password: bool = False) -> str:
        """The address of a database, as users give it."""
        user = f"{USER}:{self.password}" if password else USER
        return f"postgresql+psycopg://{user}@127.0.0.1:{self.port}/{database}"

    def database(self, name: str) -> str:
        """The address of a new database."""
        self.ask("postgres", f'CREATE DATABASE "{name}"')
        return self.url(name)

    def ask(self, database: str, statement: str) -> list[Any]:
        """First column of an answer."""
        engine = create_engine(self.url(database, password=True), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            found = connection.execute(text(statement))
            return list(found.scalars()) if found.returns_rows else []


@contextmanager
def postgres(bin_folder: Path) -> Iterator[Postgres]:
    """A server on a free port of loopback, in a folder of its own, as a user who is not root."""
    folder, password = Path(tempfile.mkdtemp(prefix="postgres-")), secrets.token_hex(12)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    passwords = folder / "passwords"
    passwords.write_text(f"127.0.0.1:{port}:*:{USER}:{password}\n")
    passwords.chmod(0o600)
    owner = _owner(folder)
    _initialise(bin_folder, folder, password, owner)
    settings = [word for setting in SMALL for word in ("-c", setting)]
    command = [str(bin_folder / "postgres"), "-D", str(folder / "data"), "-p", str(port), *settings]
    with (folder / "log").open("wb") as log:
        server: subprocess.Popen[bytes] = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, start_new_session=True, **owner
        )
    try:
        _wait_until_ready(bin_folder, port, server, folder / "log")
        yield Postgres(port, password, passwords)
    finally:
        server.send_signal(signal.SIGINT)  # clients are sent away
        try:
            server.wait(STOP_SECONDS)
        finally:
            server.kill()
            shutil.rmtree(folder, ignore_errors=True)


def _owner(folder: Path) -> dict[str, Any]:
    """The user of the server, as options of a process; where this one is root, the folder becomes another one's."""
    if os.getuid() != 0:
        return {}
    known = {account.pw_name: account for account in pwd.getpwall()}
    account = known.get("postgres") or known["nobody"]
    os.chown(folder, account.pw_uid, account.pw_gid)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _initialise(bin_folder: Path, folder: Path, password: str, owner: dict[str, Any]) -> None:
    """The files of a server with one user."""
    (folder / "secret").write_text(password)
    words = f"-D data -U {USER} -A scram-sha-256 --pwfile=secret --locale=C -E UTF8 -N".split()
    subprocess.run([str(bin_folder / "initdb"), *words], cwd=folder, check=True, capture_output=True, **owner)


def _wait_until_ready(bin_folder: Path, port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    asked = [str(bin_folder / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    while subprocess.run(asked).returncode != 0:
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)
