"""The sensitivity stage on a real SuperNet and real digits: resumed, it evaluates only what is missing."""

from pathlib import Path

import pytest
import timm
import torch

import tailor_ir
from tailor_ir.spaces.selectors import SpaceSpec
from tasks.base.artifacts import Workspace, read_json
from tasks.base.progress import Silent
from tasks.data import DataSettings
from tasks.prediction import sensitivity
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.settings import Settings

SETTINGS = Settings(random_subnets=4, validation_images=30, recalibration_images=32)


@pytest.fixture(scope="module")
def supernet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=10).eval()
    space: SpaceSpec = {"resolution": [24, 32], "stage.*.width_mult": [0.5, 1.0]}
    folder = tmp_path_factory.mktemp("sensitivity") / "supernet"
    tailor_ir.compile(network, torch.zeros(1, 3, 32, 32), space).save(folder)
    return folder


def test_interrupted_measurement_goes_on_and_ends_the_same(supernet: Path, tmp_path: Path) -> None:
    workspace = Workspace(out=tmp_path, progress=Silent())
    found = sensitivity.run(SETTINGS, DataSettings(kind="digits"), supernet, workspace)
    evaluated = tmp_path / sensitivity.EVALUATED_FILE
    lines = evaluated.read_text().splitlines(keepends=True)
    evaluated.write_text("".join(lines[:4]) + lines[4][:20])
    assert sensitivity.run(SETTINGS, DataSettings(kind="digits"), supernet, workspace) == found
    again = evaluated.read_text().splitlines(keepends=True)
    assert again[:4] == lines[:4]
    assert sorted(line for line in again if line in lines) == sorted(lines)


def test_sensitivities_are_those_of_single_modifications_and_skip_nothing(supernet: Path, tmp_path: Path) -> None:
    workspace = Workspace(out=tmp_path, progress=Silent())
    found = sensitivity.run(SETTINGS, DataSettings(kind="digits"), supernet, workspace)
    net = tailor_ir.load(supernet)
    predictor = AccuracyPredictor.load(tmp_path / sensitivity.SENSITIVITIES_FILE)
    assert [row.variable for row in predictor.table.variables] == [v.name for v in net.space.variables]
    assert predictor.table.samples == 30
    largest = next(row for row in found["rows"] if row["digest"] == net.space.digest(net.max_config))
    assert largest["predicted_accuracy"] == pytest.approx(largest["accuracy"])
    assert largest["predicted_loss"] == pytest.approx(largest["loss"])
    assert len(found["rows"]) == 6
    assert read_json(tmp_path / sensitivity.ACCURACY_VALIDATION_FILE) == found
