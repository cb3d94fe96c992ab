"""One cache folder (Prefect's home, locks) for all tests of this folder, and one finished run that many look at."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.flows.tiny import TINY


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """XDG_CACHE_HOME in a temporary folder, apart from the user's own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.delenv("PREFECT_API_URL", raising=False)
        patch.delenv("PREFECT_HOME", raising=False)
        yield folder


@dataclass(frozen=True)
class Command:
    """Runs commands in one output folder."""

    output: Path

    def __call__(self, command: str, *overrides: str) -> dict[str, Any]:
        """The JSON result of a command that succeeds."""
        from flows.cli import main

        file = self.output.parent / "result.json"
        assert main([command, *TINY, f"output_dir={self.output}", *overrides, "--json", str(file)]) == 0
        result: dict[str, Any] = json.loads(file.read_text())
        return result


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Commands in an output folder that all tests share."""
    return Command(tmp_path_factory.mktemp("run") / "out")


@pytest.fixture(scope="session")
def finished(command: Command) -> dict[str, Any]:
    """The report of the whole pipeline, once."""
    return command("run")
