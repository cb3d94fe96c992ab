"""Uninterrupted trainings, which others are compared with."""

from pathlib import Path
from typing import Any

import pytest

from tasks.base.artifacts import read_lines
from tasks.base.schemas.stored import StageResult
from tests.support.finetune import short_training, small_training


@pytest.fixture(scope="session")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], StageResult, Path]:
    """(history, result, folder) of one process that accumulates two micro-batches a step."""
    folder = tmp_path_factory.mktemp("baseline")
    temporary = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        result = small_training.train(folder, processes=1)
    assert not list(temporary.glob("torchelastic*")), "torchrun's folder of logs is left"
    return read_lines(folder / "history.jsonl"), result, folder


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One epoch of two ranks, with a moving average of the weights."""
    folder = tmp_path_factory.mktemp("undisturbed")
    short_training.train(folder, processes=2, average=0.9)
    return folder
