"""`autotailor health` of the services of compose, as real processes: what is well, and what is told when something is not."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tests.support.operations.installation import (
    REDIS,
    Installation,
    installation,
    make_databases,
)
from tests.support.postgres import postgres, programs

BINARIES = programs()


PORTS = {"prefect": "4200", "mlflow": "5000", "registry": "8763", "relay": "8764", "worker": "8080"}


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
