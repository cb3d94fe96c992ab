"""`autotailor health` of the services of compose, as real processes: what is well, and what is told when something is not."""

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from flows.cli import main
from tests.support import redis_server
from tests.support.flows.prefect_server import wait_for
from tests.support.operations import health
from tests.support.operations.health import BINARIES, PORTS, told
from tests.support.operations.installation import (
    HAS_DRIVER,
    REDIS,
    Installation,
    is_ready,
)
from tests.support.postgres import USER

services = health.services
own_cache = health.own_cache

START_SECONDS = 400


@pytest.mark.timeout(1500)
@pytest.mark.skipif(BINARIES is None, reason="no PostgreSQL server is installed")
def test_the_services_of_compose_are_well_as_processes_and_what_stops_is_named(
    services: tuple[Installation, ExitStack], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, database = services
    monkeypatch.setenv("PGPASSFILE", str(made.server.passwords))
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", made.password)
    until = time.monotonic() + START_SECONDS
    while not is_ready(made.url("http", "4200", "/api")):
        assert time.monotonic() < until, (made.folder / "prefect.log").read_text()
        time.sleep(1)
    for name in PORTS:  # a check itself waits for 10 s, which a busy machine may need longer than
        while main(made.asked(name)) != 0:
            assert time.monotonic() < until, (made.folder / f"{name}.log").read_text()
            time.sleep(1)

    if REDIS:
        wait_for(lambda: redis_server.databases(made.secrets) == {"db0", "db1"}, "messages, and work of services")

    words = ["health", *(word for name in PORTS for word in made.asked(name) if "=" in word and "ca_file" not in word)]
    words += [f"ca_file={made.secrets}/tls_cert", "timeout_s=60"]
    words += [f"postgres=[postgresql://{USER}@127.0.0.1:{made.server.port}/fleet]"]
    code, rows = told(words)
    assert code == 0
    assert {name for name, row in rows.items() if row["well"]} == {*PORTS, "postgres"}
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "admin:wrong")
    code, rows = told(words)
    assert code == 1
    assert rows["prefect"]["said"] == "refuses the password"

    database.close()
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", made.password)
    code, rows = told(words)
    assert code == 1
    assert not rows["postgres"]["well"]
    assert not rows["prefect"]["well"]
    assert {rows[name]["well"] for name in ("registry", "relay")} == {not HAS_DRIVER}, "they have another database then"
    for secret in (made.password, made.server.password):
        assert secret not in "".join(capsys.readouterr()) + Path("health.json").read_text()
