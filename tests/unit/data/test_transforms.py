"""Transforms of torchvision and timm are read as steps, which give the same samples in numpy; others are kept in words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset
from torchvision import transforms as v1
from torchvision.models import ResNet18_Weights
from torchvision.transforms import v2

from adaptive_runtime.samples.inputs import GivenPreparation
from adaptive_runtime.samples.pictures import PictureSteps
from tasks.base.own_code import LIVE
from tasks.data import DataSettings, load_splits
from tasks.data.own import Data
from tasks.data.transforms import of_config, random_parts, steps_of
from tasks.export import card, running

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BICUBIC = v1.InterpolationMode.BICUBIC
NORMALIZE = v1.Normalize(MEAN, DEVIATION)
CONFIG = {"input_size": (3, 32, 32), "interpolation": "bicubic", "mean": MEAN, "std": DEVIATION, "crop_pct": 0.8}
COMPOSED: dict[str, Any] = {
    "usual": v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.ToTensor(), NORMALIZE]),
    "as it is": v1.Compose([v1.ToTensor(), v1.Normalize((0.5,), (0.25,))]),
    "stretched": v1.Compose([v1.Resize((24, 48), BICUBIC), v1.ToTensor()]),
    "whole numbers": v1.Compose([v1.Resize((20, 20)), v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)]),
    "grey": v1.Compose([v1.Grayscale(), v1.Resize([16, 20]), v1.ToTensor()]),
    "v2": v2.Compose(
        [v2.ToImage(), v2.Resize(40), v2.CenterCrop((32, 28)), v2.ToDtype(torch.float32, scale=True), NORMALIZE]
    ),
    "nested": v1.Compose([v1.Compose([v1.Resize(40), v1.CenterCrop(32)]), v1.Compose([v1.ToTensor(), NORMALIZE])]),
    "weights": ResNet18_Weights.DEFAULT.transforms(crop_size=32, resize_size=40),
    "timm": of_config(CONFIG),
    "timm, squash": of_config({**CONFIG, "input_size": (3, 24, 48), "crop_mode": "squash"}),
}


def picture(height: int = 61, width: int = 47) -> Image.Image:
    """A smooth picture with some noise."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 255, (7, 6, 3), np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    return Image.fromarray(
        np.clip(np.asarray(coarse) + rng.integers(-8, 8, (height, width, 3)), 0, 255).astype(np.uint8)
    )


@pytest.mark.parametrize("name", COMPOSED)
def test_steps_give_the_samples_of_the_transform(name: str) -> None:
    transform = COMPOSED[name]
    for size in ((61, 47), (45, 90)):
        wanted = transform(picture(*size))
        steps = steps_of(transform, tuple(wanted.shape))
        assert steps is not None, transform
        found = steps.of(np.asarray(picture(*size)))
        scale = np.reshape(steps.deviation, (-1, 1, 1)) * 255
        assert np.abs((found - wanted.numpy()) * scale).max() <= 2.01, "two of 255 levels, since sides are rounded"
        assert np.abs((found - wanted.numpy()) * scale).mean() < 0.3
        assert PictureSteps.model_validate_json(steps.model_dump_json()) == steps


BGR = PictureSteps(
    colours="BGR", scaled=(20, 30), fit="letterbox", size=(20, 30), fill=114, largest=255, mean=(104, 117, 123),
    deviation=(1, 1, 1), layout="NHWC",
)  # fmt: skip


@pytest.mark.parametrize(
    "steps",
    [steps_of(COMPOSED["usual"], (3, 32, 32)), steps_of(COMPOSED["grey"], (1, 16, 20)), BGR],
    ids=["cut", "grey", "BGR"],
)
def test_programs_make_the_same_samples(steps: PictureSteps, tmp_path: Path) -> None:
    picture().save(tmp_path / "photo.png")
    np.arange(6, dtype=np.float32).tofile(tmp_path / "x.f32")
    prepared = GivenPreparation(shape=steps.shape, size=steps.shape, pictures=steps)
    assert all(f"{number}. {line}" in card._given(prepared) for number, line in enumerate(steps.lines, 1))
    source = running._TEMPLATES.get_template("pictures.py.jinja").render(running._pictures(prepared))
    program: dict[str, Any] = {"np": np, "Path": Path}
    exec(source, program)
    found = program["read"](str(tmp_path / "photo.png"), np.float32)
    wanted = steps.of(np.asarray(picture()))
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() * min(steps.deviation) * 255 / steps.largest < 2.1
    assert program["read"](str(tmp_path / "x.f32"), np.float32).tolist() == [0, 1, 2, 3, 4, 5]


UNKNOWN: dict[str, Any] = {
    "function": v1.Compose([v1.ToTensor(), v1.Lambda(lambda x: x * 2)]),
    "nearest": v1.Compose([v1.Resize((20, 20), v1.InterpolationMode.NEAREST), v1.ToTensor()]),
    "scaled after the cut": v1.Compose([v1.CenterCrop(16), v1.Resize(20), v1.ToTensor()]),
    "several sizes": v1.Compose([v1.Resize(20, max_size=60), v1.CenterCrop(20), v1.ToTensor()]),
    "padded": v1.Compose([v1.Resize(20), v1.Pad(2), v1.ToTensor()]),
    "filled up by a colour": of_config({**CONFIG, "crop_mode": "border"}),
    "random": v1.Compose([v1.RandomResizedCrop(20), v1.RandomHorizontalFlip(), v1.ToTensor()]),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_transforms_are_no_steps(name: str) -> None:
    transform = UNKNOWN[name]
    assert steps_of(transform, tuple(transform(picture(40, 40)).shape)) is None
    assert random_parts(transform) == (["RandomResizedCrop", "RandomHorizontalFlip"] if name == "random" else [])


class Photos(Dataset[tuple[torch.Tensor, int]]):
    """Pictures with a transform, as data sets of torchvision."""

    def __init__(self, transform: Callable[[Image.Image], torch.Tensor]) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(picture(40 + index, 50)), index % 2


def given(monkeypatch: pytest.MonkeyPatch, data: Data) -> tuple[GivenPreparation, tuple[str, ...]]:
    monkeypatch.setitem(LIVE, "live:photos", data)
    train = load_splits(DataSettings(kind="own", name="live:photos"))["train"]
    assert train.scaling.given is not None
    return train.scaling.given, train.notes


RANDOM = v1.Compose([v1.RandomResizedCrop(32), v1.ToTensor(), NORMALIZE])
USUAL = COMPOSED["usual"]


@pytest.mark.parametrize(
    "data",
    [
        Data(Photos(USUAL)),
        Data(Photos(RANDOM), Photos(USUAL)),
        Data(Photos(RANDOM), None, Subset(Photos(USUAL), range(20))),
        Data(Photos(RANDOM), preparation=USUAL),
        Data([(torch.zeros(3, 32, 32), 0)] * 30, preparation=USUAL),
    ],
)
def test_a_dataset_brings_its_preparation(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, _ = given(monkeypatch, data)
    assert prepared.pictures == steps_of(USUAL, (3, 32, 32))
    assert prepared.described == ""


def test_a_configuration_of_timm_is_a_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, _ = given(monkeypatch, Data(Photos(USUAL), preparation=CONFIG))
    assert prepared.pictures is not None
    assert (prepared.pictures.interpolation, prepared.pictures.scaled) == ("bicubic", (40, 40))


def test_words_stay_words_and_unknown_transforms_become_words(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, _ = given(monkeypatch, Data(Photos(USUAL), preparation="as my camera gives them"))
    assert (prepared.pictures, prepared.described) == (None, "as my camera gives them")
    prepared, _ = given(
        monkeypatch, Data(Photos(v1.Compose([v1.Resize((9, 9)), v1.ToTensor(), v1.RandomErasing(0.0)])))
    )
    assert (prepared.pictures, prepared.described) == (None, "")
    prepared, _ = given(
        monkeypatch, Data(Photos(v1.Compose([v1.Resize(9), v1.Pad(1), v1.CenterCrop(9), v1.ToTensor()])))
    )
    assert prepared.pictures is None
    assert "Pad(padding=1" in prepared.described


def test_shares_of_augmented_samples_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    _, notes = given(monkeypatch, Data(Photos(RANDOM)))
    assert len(notes) == 1
    assert "validation and test samples are shares" in notes[0]
    assert "RandomResizedCrop" in notes[0]
    assert "autotailor.Data(train, validation, test)" in notes[0]
    _, notes = given(monkeypatch, Data(Photos(RANDOM), Photos(USUAL)))
    assert "data: test samples are shares" in notes[0]
    for data in (Data(Photos(RANDOM), Photos(USUAL), Photos(USUAL)), Data(Photos(USUAL))):
        assert given(monkeypatch, data)[1] == ()
