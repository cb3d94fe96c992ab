"""Signals in what stages and exports tell: pictures of spectrograms, the model card, and the manifest of a bundle."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import tailor_ir
from adaptive_runtime.bundle.chains import ImagePreparation
from adaptive_runtime.samples.inputs import Spectrogram
from tasks.base.errors import UserError
from tasks.data import DataSettings, load_splits
from tasks.data.dataset import DataDescription, describe
from tasks.evaluation.models import ModelSettings
from tasks.evaluation.pictures import write_answers
from tasks.evaluation.subnets import EvaluationData
from tasks.export.card import image_preparation
from tasks.training import compile as compile_stage

MOTION = DataSettings(kind="motion", images=120, resolution=16, classes=3)
IMAGES = DataSettings(kind="digits", resolution=16)


def evaluation(settings: DataSettings) -> EvaluationData:
    splits = load_splits(settings)
    return EvaluationData(splits["validation"], splits["train"], recalibration_images=32)


def supernet(data: EvaluationData) -> tailor_ir.SuperNet:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = nn.Sequential(*layers, nn.Linear(8, data.dataset.classes)).eval()
    return tailor_ir.compile(network, torch.zeros(1, 3, 16, 16))


def test_spectrograms_are_drawn_with_the_answers_of_both_ends_and_images_are_not(tmp_path: Path) -> None:
    signals, images = evaluation(MOTION), evaluation(IMAGES)
    write_answers(supernet(signals), signals, tmp_path / "signals.png")
    pixels = np.asarray(Image.open(tmp_path / "signals.png").convert("L"), dtype=np.float32)
    assert min(pixels.shape) > 300
    assert pixels.std() > 20
    write_answers(supernet(images), images, tmp_path / "images.png")
    assert not (tmp_path / "images.png").exists()


def test_card_and_manifest_have_the_spectrogram_where_there_is_one_and_else_no_word_of_it() -> None:
    for settings, wanted in ((MOTION, True), (IMAGES, False)):
        told = image_preparation(describe(load_splits(settings)["test"]), (1, 3, 16, 16))
        assert ("spectrogram" in told.model_dump(exclude_unset=True)) == wanted
        assert ("spectrogram" in told.model_dump()) == wanted
        assert ImagePreparation.model_validate_json(told.model_dump_json()) == told


def test_a_supernet_of_one_kind_of_signals_is_refused_for_another(tmp_path: Path) -> None:
    described = describe(load_splits(MOTION)["test"])
    described.write(tmp_path / "data.json")
    assert DataDescription.read(tmp_path / "data.json") == described
    assert isinstance(described.spectrogram, Spectrogram)
    longer = described.spectrogram.model_copy(update={"samples": 300})
    assert described.differing(described.model_copy(update={"spectrogram": longer})) == ["signals"]
    assert "no signals" in described.model_copy(update={"spectrogram": None}).described()["signals"]


class StepsFirst(nn.Module):
    """Signals (T, N, H, W): the second axis is the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(64, 32), nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.out(torch.relu(self.hidden(x[-1].mean(-1))))
        return answer


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_network_whose_batch_is_not_its_first_axis_does_not_fit_the_data(tmp_path: Path) -> None:
    network, file, open_axes = StepsFirst().eval(), tmp_path / "net.onnx", {"x": {1: "batch"}}
    torch.onnx.export(
        network, (torch.zeros(1, 1, 64, 64),), file, dynamo=False, input_names=["x"], dynamic_axes=open_axes
    )
    model, data = ModelSettings(kind="onnx", path=file), DataSettings(kind="sounds", images=60, classes=3)
    line = r"model '.*': does not take the batch as the first axis of input 'x'; allowed: inputs whose first axis is the batch"
    with pytest.raises(UserError, match=line):
        compile_stage.supernet_of(compile_stage.Settings(), model, data, None, None)
