"""Health checks of the services of compose, as real processes: they succeed, and fail while the database is away."""

import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import redis_server
from tests.support.flows.prefect_server import wait_for
from tests.support.operations.installation import (
    HAS_DRIVER,
    REDIS,
    START_SECONDS,
    Installation,
    installation,
    make_databases,
)
from tests.support.postgres import postgres, programs

BINARIES = programs()
PORTS = {"prefect": "4200", "mlflow": "5000", "registry": "8763", "relay": "8764", "worker": "8080"}
ON_POSTGRES = {"prefect", *(PORTS.keys() - {"worker"} if HAS_DRIVER else ())}
"""Others have another database where its driver is not installed."""


def wait_until_well(made: Installation, name: str) -> None:
    until = time.monotonic() + START_SECONDS
    while not made.is_well(name):
        assert time.monotonic() < until, (made.folder / f"{name}.log").read_text()
        time.sleep(1)


@pytest.mark.timeout(1500)
@pytest.mark.skipif(BINARIES is None, reason="no PostgreSQL server is installed")
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_services_of_compose_are_well_as_processes_until_their_database_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BINARIES is not None
    monkeypatch.chdir(tmp_path)
    with ExitStack() as database:
        server = database.enter_context(postgres(BINARIES))
        make_databases(BINARIES, server)
        with installation(tmp_path, server, REDIS | PORTS) as made:
            for name in PORTS:
                wait_until_well(made, name)
            if REDIS:
                wait_for(
                    lambda: redis_server.databases(made.secrets) == {"db0", "db1"}, "messages, and work of services"
                )
            database.close()
            assert not {name for name in ON_POSTGRES if made.is_well(name)}
