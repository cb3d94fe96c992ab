"""A small U-Net that takes out noise goes through the stages by its PSNR, from pairs of files to a bundle that gives images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_squared_error

import adaptive_runtime
from adaptive_runtime.service.inference import InferenceFormat
from tasks import report
from tasks.artifacts import RESULT_FILE, read_json
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import Accuracy, count_correct
from tasks.finetune.losses import soft_cross_entropy
from tasks.models import ModelSettings
from tasks.problems import RESTORATION
from tests.data.paired_files import write_drawn
from tests.problems.stages import SmallRun

SIDE, SMALLER = 32, 24
DRAWN = DataSettings(kind="noisy_glyphs", classes=4, images=360, resolution=SIDE)
MODEL = ModelSettings(kind="callable", name="conf.networks.unet:network")
SPACE = {"resolution": [SMALLER, SIDE], "*.width_mult": [0.5, 1]}


def psnr_db(restored: np.ndarray, wanted: np.ndarray) -> float:
    return float(-10 * np.log10(mean_squared_error(wanted.ravel(), restored.ravel())))


def test_the_score_is_psnr_of_values_between_black_and_white() -> None:
    generator = torch.Generator().manual_seed(0)
    wanted_BCHW = torch.rand(5, 3, 8, 8, generator=generator)
    outputs = wanted_BCHW + 0.2 * torch.randn(5, 3, 8, 8, generator=generator)
    tally = RESTORATION.tally()
    for rows in (slice(0, 2), slice(2, 5)):
        tally.add(outputs[rows], wanted_BCHW[rows])
    found = Accuracy.tallied(tally.found())
    shown = outputs.clamp(0, 1).numpy()
    each_db = [psnr_db(*pair) for pair in zip(shown, wanted_BCHW.numpy(), strict=True)]
    assert 100 * found.share == pytest.approx(np.mean(each_db), abs=1e-4)
    assert 100 * found.each == pytest.approx(each_db, abs=0.02)
    assert found.loss == pytest.approx(mean_squared_error(wanted_BCHW.ravel(), shown.ravel()), rel=1e-5)
    ends = RESTORATION.tally()
    ends.add(wanted_BCHW, wanted_BCHW)
    assert ends.found().score == 1.0


def test_a_smaller_image_is_enlarged_to_its_target_and_taught_by_a_smaller_one() -> None:
    small = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    large = torch.nn.functional.interpolate(small, (8, 8), mode="bilinear", align_corners=False)
    assert float(RESTORATION.loss(small, large, 0.1)) == pytest.approx(0, abs=1e-12)
    assert RESTORATION.decoded(2 * small, (8, 8)).shape == (2, 3, 8, 8)
    assert float(RESTORATION.decoded(2 * small, (8, 8)).max()) == 1.0
    near, far = (RESTORATION.distillation(small, taught, soft_cross_entropy) for taught in (large, 1 - large))
    assert near < 0.2 * far


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSettings:
    folder = tmp_path_factory.mktemp("pairs")
    write_drawn(folder, DRAWN)
    return DataSettings(kind="pairs", path=folder, resolution=SIDE, mean=(0.0,), deviation=(1.0,), augment=False)


@pytest.fixture(scope="module")
def sources(data: DataSettings, tmp_path_factory: pytest.TempPathFactory) -> report.Sources:
    """The stages from pairs of images to exported winners in a bundle, on onnxruntime here."""
    return SmallRun("unet", data).from_network(tmp_path_factory.mktemp("unet"), MODEL, SPACE, steps=12, epochs=4)


def test_a_bundle_gives_images_with_less_noise_and_the_report_shows_them(
    sources: report.Sources, data: DataSettings, tmp_path: Path
) -> None:
    (device,) = sources.devices
    (card,) = read_json(device.export / RESULT_FILE)["subnets"]
    assert card["problem"] == "restoration"
    assert {name: file["state"] for name, file in card["files"].items()} == {"onnx": "ok", "ncnn": "ok"}
    test = load_splits(data)["test"]
    noisy = 100 * count_correct(lambda x: x, test.batches(32), RESTORATION).share
    assert 100 * card["accuracy"]["test"] > noisy + 1
    x_BCHW, wanted_BCHW = next(iter(test.batches(len(test))))
    with adaptive_runtime.load(device.export / "bundle", prepares=False) as model:
        images = model.infer(x_BCHW.numpy()).images
        assert InferenceFormat.of(model).outputs == {"images": [-1, 3, SIDE, SIDE]}
    assert images is not None
    each_db = [psnr_db(*pair) for pair in zip(images, wanted_BCHW.numpy(), strict=True)]
    assert np.mean(each_db) == pytest.approx(100 * card["accuracy"]["test"], abs=0.05)
    found = report.run(sources, report.Settings(), tmp_path)
    assert found["metric"] == "PSNR in % of 100 dB"
    assert found["answers"].startswith("data:image/png")
