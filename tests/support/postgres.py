"""A real PostgreSQL server, of Debian's package, for the time of some tests."""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.support.ports import free_port

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


class Postgres:
    """A server on a free port of loopback. Its password is in a file for PGPASSFILE."""

    def __init__(self, bin_folder: Path, folder: Path) -> None:
        self._programs, self._folder = bin_folder, folder
        self.password, self.passwords, self.port = secrets.token_hex(12), folder / "passwords", free_port()
        self.passwords.write_text(f"127.0.0.1:{self.port}:*:{USER}:{self.password}\n")
        self.passwords.chmod(0o600)
        self._owner = _owner(folder)
        _initialise(bin_folder, folder, self.password, self._owner)
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Until it takes connections."""
        settings, log = [word for setting in SMALL for word in ("-c", setting)], self._folder / "log"
        command = [str(self._programs / "postgres"), "-D", f"{self._folder}/data", "-p", str(self.port), *settings]
        with log.open("ab") as said:
            server: subprocess.Popen[bytes] = subprocess.Popen(
                command, cwd=self._folder, stdout=said, stderr=said, start_new_session=True, **self._owner
            )
        self._server, until = server, time.monotonic() + START_SECONDS
        asked = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(asked).returncode != 0:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        """At once; clients are sent away."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.send_signal(signal.SIGINT)
        try:
            server.wait(STOP_SECONDS)
        finally:
            server.kill()

    def url(self, database: str = "postgres", *, password: bool = False) -> str:
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
    """A running server in a folder of its own, as a user who is not root."""
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    try:
        server = Postgres(bin_folder, folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
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
