"""`autotailor health` of the services of compose, as real processes: what is well, and what is told when something is not."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tests import redis_server
from tests.support.flows.prefect_server import wait_for
from tests.support.operations.installation import (
    HAS_DRIVER,
    REDIS,
    Installation,
    installation,
    is_ready,
    make_databases,
)
from tests.support.postgres import USER, postgres, programs

BINARIES = programs()
PORTS = {"prefect": "4200", "mlflow": "5000", "registry": "8763", "relay": "8764", "worker": "8080"}
START_SECONDS = 400


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def services(own_cache: Path) -> Iterator[tuple[Installation, ExitStack]]:
    """All services, and what ends the database."""
    assert BINARIES is not None
    with ExitStack() as database:
        server = database.enter_context(postgres(BINARIES))
        make_databases(BINARIES, server)
        with installation(own_cache, server, REDIS | PORTS) as made:
            yield made, database


def told(words: list[str]) -> tuple[int, dict[str, Any]]:
    code = main([*words, "--json", "health.json"])
    answer: dict[str, Any] = json.loads(Path("health.json").read_text())
    return code, {row["service"]: row for row in answer["services"]}


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["health", "prefekt"], "health: 'prefekt' is no service; allowed: prefect, worker, mlflow"),
        (["health"], "health: no service has an address; write prefect=URL"),
        (["health", "mlflow"], "health: mlflow has no address; set MLFLOW_TRACKING_URI, or write mlflow=URL"),
        (
            ["health", "postgres=[mysql://me:secret@db/x]"],
            "postgres: got 'mysql://me:***@db/x'; allowed: postgresql://",
        ),
        (["health", "registry=http://127.0.0.1:1", "ca_file=nowhere"], "ca_file: 'nowhere' is no certificate"),
        (["health", "device=[remote]", "device.remote.agent=http://127.0.0.1:1"], "an agent elsewhere needs its token"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    own_cache: Path, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    found = capsys.readouterr().err
    assert line in found
    assert found.count("\n") == 1


def test_services_that_do_not_answer_are_named_with_what_to_do(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens at port 1; a database that is no database is one file."""
    (own_cache / "mlflow.db").write_bytes(b"no database, but long enough to be read as one" * 100)
    monkeypatch.setenv("TOKEN", "0123456789abcdef" * 2)
    device = ["device=[remote,ncnn]", "device.remote.agent=http://127.0.0.1:1", "device.remote.token_env=TOKEN"]
    nowhere = [f"{name}=http://127.0.0.1:1" for name in ("prefect", "worker", "registry", "relay")]
    there = ["mlflow=sqlite:///mlflow.db", "postgres=[postgresql://me:secret@127.0.0.1:1/x]"]
    code, rows = told(["health", *nowhere, *there, *device])
    assert code == 1
    assert {name for name, row in rows.items() if row["well"]} == {"agent ncnn"}
    assert len(rows) == 8
    assert all(row["next_step"] for row in rows.values() if not row["well"])
    assert rows["mlflow"]["said"] == "cannot be used (file is not a database)"
    assert "secret" not in rows["postgres"]["where"]


def test_the_defaults_in_conf_are_those_of_the_code() -> None:
    from flows.cli.operations.health import HealthConfig
    from flows.compose import compose_config
    from flows.validate import validate

    composed = compose_config("health", [])
    assert validate(HealthConfig, composed) == HealthConfig()
    assert set(composed) == set(HealthConfig.model_fields)
