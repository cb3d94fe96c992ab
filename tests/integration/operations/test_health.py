"""`autotailor health` of the services of compose, as real processes: what is well, and what is told when something is not."""

from pathlib import Path

import pytest

from flows.cli import main
from tests.support.operations import health
from tests.support.operations.health import told

services = health.services
own_cache = health.own_cache


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
    from flows.config.compose import compose_config
    from flows.config.validate import validate

    composed = compose_config("health", [])
    assert validate(HealthConfig, composed) == HealthConfig()
    assert set(composed) == set(HealthConfig.model_fields)
