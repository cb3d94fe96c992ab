"""The services of deploy/compose.yaml as plain processes on loopback, by the command lines of that file.

PostgreSQL and Redis are Debian's. Redis is left out where it is not installed: one Prefect server needs none.
"""

import importlib.util
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.integration.agents.test_agents_cli import write_certificate
from tests.integration.operations.test_compose import SERVICES
from tests.support import redis_server
from tests.support.docs.documents import ROOT
from tests.support.ports import free_port
from tests.support.postgres import USER, Postgres

HOST = "127.0.0.1"
START_SECONDS = 400
STOP_SECONDS = 20
BINARIES = Path(sys.executable).parent
HAS_DRIVER = importlib.util.find_spec("psycopg") is not None
REDIS = {"redis": "6379"} if redis_server.PROGRAM else {}
"""Its port in compose, by its name."""


class Installation:
    """Processes of the services, their ports and their secrets."""

    def __init__(self, folder: Path, server: Postgres) -> None:
        self.folder, self.server = folder, server
        self.ports = {name: free_port() for name in ("4200", "5000", "8763", "8764", "8080", "6379")}
        self.secrets = folder / "secrets"
        self.secrets.mkdir(mode=0o700)
        self.password = f"admin:{secrets.token_hex(12)}"
        (self.secrets / "pgpass").write_bytes(server.passwords.read_bytes())
        (self.secrets / "prefect").write_text(self.password)
        (self.secrets / "relay").write_text(secrets.token_hex(32))
        redis_server.write_secrets(self.secrets, self.ports["6379"])
        (folder / "cert").mkdir()
        for made, name in zip(write_certificate(folder / "cert"), ("tls_cert", "tls_key"), strict=True):
            made.rename(self.secrets / name)
        for file in self.secrets.iterdir():
            file.chmod(0o600)

    def url(self, scheme: str, port: str, path: str = "") -> str:
        """Of a service, by its port in compose."""
        return f"{scheme}://{HOST}:{self.ports[port]}{path}"

    def start(self, name: str, stack: ExitStack) -> None:
        """Start a service as compose does."""
        service = SERVICES[name]
        words = [self._here(word) for word in (*service.get("entrypoint", ()), *service["command"])]
        environment = {key: self._here(str(value)) for key, value in service.get("environment", {}).items()}
        if not REDIS:
            environment = {key: value for key, value in environment.items() if "redis" not in f"{key}{value}".lower()}
            words = [word for word in words if "/redis" not in word]
        for at in (0, words.index("--") + 1) if "--" in words else (0,):
            words[at] = _program(words[at])
        log = stack.enter_context((self.folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            words,
            cwd=self.folder,
            env=self._environment() | environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        stack.callback(_stop, process)

    def is_well(self, name: str) -> bool:
        """Whether the health check of a service succeeds."""
        kind, *words = (self._here(word) for word in SERVICES[name]["healthcheck"]["test"])
        words = ["sh", "-c", *words] if kind == "CMD-SHELL" else words
        return subprocess.run(words, env=self._environment(), capture_output=True, timeout=60).returncode == 0

    def _environment(self) -> dict[str, str]:
        """That of a container, as far as it matters: nothing of the tests' own."""
        own = {"HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder / "cache"), "PYTHONPATH": str(ROOT)}
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "OMP_NUM_THREADS") if name in os.environ}
        ports = dict.fromkeys(
            ("PREFECT_REDIS_MESSAGING_PORT", "PREFECT_REDIS_WORKER_CLEANUP_QUEUE_PORT"), str(self.ports["6379"])
        )
        silent = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        return own | kept | silent | (ports if REDIS else {})

    def _here(self, word: str) -> str:
        """A word of compose on this machine."""
        word = re.sub(r"\$\{AUTOTAILOR_HOST[^}]*\}", HOST, word).replace("0.0.0.0", "127.0.0.1")
        word = word.replace("/run/secrets", str(self.secrets)).replace("/srv/", f"{self.folder}/")
        word = word.replace("/tmp/prefect", f"{self.folder}/prefect").replace("/opt/autotailor", str(ROOT))
        for host in ("prefect", "mlflow"):
            word = word.replace(f"//{host}:", "//127.0.0.1:")
        word = "127.0.0.1" if word == "redis" else word
        if not HAS_DRIVER:
            word = re.sub(r"postgresql\+psycopg://\S*/(\w+)$", rf"sqlite:///{self.folder}/\1.db", word)
        word = word.replace("@postgres:5432/", f"@127.0.0.1:{self.server.port}/")
        return re.sub(rf"\b({'|'.join(self.ports)})\b", lambda found: str(self.ports[found[1]]), word)


def _program(name: str) -> str:
    """Ours are in the environment of this process; Redis is of the machine."""
    found = {"python": sys.executable, "redis-server": redis_server.PROGRAM}.get(name)
    return found or str(BINARIES / name)


@contextmanager
def installation(folder: Path, server: Postgres, names: Mapping[str, str]) -> Iterator[Installation]:
    """Running services, by their names in compose, each when the address beside its name answers."""
    with ExitStack() as stack:
        made = Installation(folder, server)
        for name, port in names.items():
            made.start(name, stack)
            _wait(made, name, port)
        yield made


def _wait(made: Installation, name: str, port: str) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            with socket.create_connection(("127.0.0.1", made.ports[port]), timeout=5):
                return
        except OSError:
            assert time.monotonic() < until, (made.folder / f"{name}.log").read_text()
            time.sleep(0.2)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The whole group, since servers have workers; by force where it waits for a service that is gone."""
    os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def make_databases(made: Path, server: Postgres) -> None:
    """As PostgreSQL's image does when its volume is new."""
    words = [f"--dbname=postgresql://{USER}@127.0.0.1:{server.port}/postgres", "--command=CREATE DATABASE prefect"]
    words += [f"--file={ROOT / 'deploy' / 'databases.sql'}"]
    environment: dict[str, Any] = {"PGPASSFILE": str(server.passwords)}
    subprocess.run([made / "psql", "-q", "--set=ON_ERROR_STOP=1", *words], env=environment, check=True)
