"""One finished run for all tests of partitions."""

from pathlib import Path

import pytest

import tailor_ir
from tests.support.partition.finished_run import finished_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tailor_ir.SuperNet]:
    folder = tmp_path_factory.mktemp("finished")
    return folder, finished_run(folder)
