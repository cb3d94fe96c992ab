"""A real Redis server, of Debian's package, for the time of some tests: by the command line of deploy/compose.yaml."""

import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from redis import Redis
from redis.exceptions import ConnectionError as NotReached

from tests.support.docs.documents import ROOT
from tests.support.ports import free_port

PROGRAM = shutil.which("redis-server")
"""None: it is not installed."""
START_SECONDS = 60
STOP_SECONDS = 20
PASSWORD, CONFIG, ADDRESS = "redis", "redis.conf", "redis_url"
"""Files of secrets, as docs/operations.md makes them."""


def write_secrets(folder: Path, port: int) -> None:
    """The files of secrets of a server on a port of loopback. What only tests need is in its config: the port."""
    password = secrets.token_hex(12)
    (folder / PASSWORD).write_text(password)
    (folder / CONFIG).write_text(f"requirepass {password}\nport {port}\nbind 127.0.0.1\n")
    (folder / ADDRESS).write_text(f"redis://:{password}@127.0.0.1:{port}/1\n")


@contextmanager
def redis_server(folder: Path) -> Iterator[int]:
    """A running server with its secrets in a folder; its port."""
    assert PROGRAM is not None
    port = free_port()
    write_secrets(folder, port)
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    words = [word.replace("/run/secrets", str(folder)) for word in compose["services"]["redis"]["command"]]
    with (folder / "redis.log").open("wb") as log:
        server = subprocess.Popen([PROGRAM, *words[1:]], stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until_ready(folder)
        yield port
    finally:
        server.terminate()
        try:
            server.wait(STOP_SECONDS)
        finally:
            server.kill()


def wait_until_ready(folder: Path) -> None:
    """Until the server of these secrets answers."""
    until = time.monotonic() + START_SECONDS
    with Redis.from_url((folder / ADDRESS).read_text().strip()) as client:
        while True:
            try:
                client.ping()
                return
            except NotReached:
                assert time.monotonic() < until, "redis-server does not answer"
                time.sleep(0.1)


def databases(folder: Path) -> set[str]:
    """Which databases of the server of these secrets have something in them: `db0` has messages, `db1` work of services."""
    with Redis.from_url((folder / ADDRESS).read_text().strip()) as client:
        return set(client.info("keyspace"))
