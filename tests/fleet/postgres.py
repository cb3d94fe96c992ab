"""A PostgreSQL server of Debian's packages, for tests of what other databases than SQLite do."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

BINARIES = Path("/usr/lib/postgresql/15/bin")
USER = "postgres"
OPTIONS = (
    "-c",
    "fsync=off",
    "-c",
    "listen_addresses=127.0.0.1",
    "-c",
    "unix_socket_directories=",
    "-c",
    "max_connections=40",
)


class PostgresServer:
    """A database on loopback that trusts whoever reaches it. It refuses to run as root: its user is another one then."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._user = self._other_user() if os.getuid() == 0 else None
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        if self._user is not None:
            shutil.chown(folder, self._user)
        self._run("initdb", "--auth=trust", f"--username={USER}", "--no-sync")

    @property
    def url(self) -> str:
        """For SQLAlchemy."""
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Until it takes connections."""
        options = " ".join((*OPTIONS, "-p", str(self._port)))
        self._run("pg_ctl", "--wait", "--timeout=120", f"--log={self._folder}/log", f"--options={options}", "start")

    def stop(self) -> None:
        """At once; clients lose their connections."""
        self._run("pg_ctl", "--wait", "--timeout=120", "--mode=fast", "stop")

    def _run(self, program: str, *options: str) -> None:
        command = [str(BINARIES / program), f"--pgdata={self._folder}/data", *options]
        done = subprocess.run(
            command, user=self._user, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
        )
        assert done.returncode == 0, done.stderr.decode()

    @staticmethod
    def _other_user() -> str:
        """That of the packages, where they were installed with one."""
        known = {entry.pw_name for entry in pwd.getpwall()}
        return USER if USER in known else "nobody"


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running one, with an empty database. Its folder is in the system's own, which its user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="autotailor-postgres-", dir="/tmp"))
    try:
        server = PostgresServer(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)
