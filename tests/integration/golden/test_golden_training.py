"""The loss curve of fine-tuning a small SuperNet is what it was."""

from pathlib import Path

import pytest

from tasks.base.artifacts import read_lines
from tasks.base.progress import Silent
from tasks.data import DataSettings
from tasks.evaluation.models import ModelSettings
from tasks.training import compile as compile_stage
from tasks.training import finetune
from tests.support.golden.fixtures import Golden
from tests.support.golden.records import rounded

STEPS = 20
LOSSES = ("loss", "loss_largest", "loss_smallest", "loss_random")
RTOL = 1e-4
"""In float64, where processors differ by much less after so few steps."""


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["sandwich"])
def test_losses_of_the_first_steps_are_what_they_were(
    strategy: str, golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    data, model = DataSettings(kind="digits", augment=False), ModelSettings(name="test_resnet")
    compile_stage.run(compile_stage.Settings(), model, data, None, None, tmp_path, Silent())
    settings = finetune.Settings(
        epochs=1,
        batch_size=32,
        micro_batch=32,
        processes=1,
        precision="float64",
        device="cpu",
        learning_rate=1e-3,
        recalibration_images=64,
        strategy=strategy,
    )
    folder = tmp_path / "finetuned"
    folder.mkdir()
    finetune.run(settings, data, tmp_path / "supernet", folder, Silent())
    history = read_lines(folder / "history.jsonl")[:STEPS]
    assert len(history) == STEPS
    assert history[-1]["loss"] < history[0]["loss"]
    golden(f"losses_{strategy}", {key: rounded(line[key] for line in history) for key in LOSSES}, rtol=RTOL)
