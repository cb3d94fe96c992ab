"""Small networks that take out noise, or enlarge, go through the stages by their PSNR, from pairs of files to a bundle."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import mean_squared_error

import adaptive_runtime
from adaptive_runtime.server.protocol import InferenceFormat
from tasks import report
from tasks.base.artifacts import RESULT_FILE, read_json
from tasks.base.errors import UserError
from tasks.data import DataSettings, load_splits
from tasks.data.problems import RESTORATION, SUPER_RESOLUTION, problem_named
from tasks.evaluation.models import ModelSettings
from tasks.evaluation.models.outputs import check_shapes
from tasks.evaluation.pictures import ANSWERS_FILE, GAP, MOST_IMAGES
from tasks.evaluation.subnets import Accuracy, count_correct
from tasks.training.finetune.numerics import soft_cross_entropy
from tests.support.data.paired_files import write_drawn
from tests.support.problems.stages import SmallRun


class Task(NamedTuple):
    """smaller: the resolution of small SubNets. gained_db: by training, over what networks are given."""

    drawn: DataSettings
    network: str
    smaller: int
    gained_db: float


TASKS = {
    "denoising": Task(
        DataSettings(kind="noisy_glyphs", classes=4, images=360, resolution=32), "conf.networks.restoration:unet", 24, 1
    ),
    "super-resolution": Task(
        DataSettings(kind="small_glyphs", classes=4, images=360, resolution=16, upscale=2),
        "conf.networks.restoration:super_resolution",
        12,
        1,
    ),
}


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


def test_super_resolution_is_of_targets_so_many_times_as_large() -> None:
    data = DataSettings(kind="small_glyphs", classes=2, images=24, resolution=12, upscale=4)
    problem = problem_named(data.problem)
    assert problem is SUPER_RESOLUTION[4]
    train = load_splits(data)["train"]
    x_BCHW, wanted_BCHW = next(train.batches(8, seed=0))
    assert wanted_BCHW.shape == problem.blank(8, 12).expand(-1, 3, -1, -1).shape == (8, 3, 48, 48)
    means_BCHW = wanted_BCHW.unflatten(3, (12, 4)).unflatten(2, (12, 4)).mean((3, 5))
    mean, deviation = (torch.tensor(one)[:, None, None] for one in (data.mean, data.deviation))
    torch.testing.assert_close(x_BCHW * deviation + mean, means_BCHW, rtol=0, atol=1e-5)
    for answer in (wanted_BCHW, x_BCHW):
        assert problem.decoded(answer, (12, 12)).shape == (8, 3, 48, 48)
    assert float(problem.loss(wanted_BCHW, wanted_BCHW, 0.0)) == 0
    fresh_BCHW, _ = next(train.batches(8, seed=1))
    assert not torch.equal(fresh_BCHW, x_BCHW)


def test_an_image_that_is_larger_than_its_target_is_one_clear_line() -> None:
    allowed = (
        r"allowed: one tensor \(B, 3, h, w\): an image of as many channels as the data's, no larger than its target"
    )
    for problem, upscale in ((RESTORATION, 1), (SUPER_RESOLUTION[2], 2)):
        side = 24 * upscale
        for sizes in ((None, 3, side, side), (2, 3, side // 2, side // 2), (None, 3, None, None)):
            check_shapes("model 'own'", [sizes], 3, problem, 24)
        with pytest.raises(UserError, match=rf"gives a tensor \(2, 3, {side}, {side + 1}\); {allowed}"):
            check_shapes("model 'own'", [(2, 3, side, side + 1)], 3, problem, 24)
        check_shapes("model 'own'", [(2, 3, side, side + 1)], 3, problem, None)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"kind": "noisy_glyphs", "upscale": 2},
            "data.upscale=2 is for data.kind=small_glyphs, pairs, not noisy_glyphs",
        ),
        ({"kind": "small_glyphs", "upscale": 1}, "data.upscale=1 with data.kind=small_glyphs; allowed: 2 to 8"),
    ],
)
def test_only_some_data_have_larger_targets(options: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        DataSettings.model_validate(options)


@pytest.fixture(scope="module", params=TASKS)
def task(request: pytest.FixtureRequest) -> Task:
    return TASKS[request.param]


@pytest.fixture(scope="module")
def data(task: Task, tmp_path_factory: pytest.TempPathFactory) -> DataSettings:
    folder = tmp_path_factory.mktemp("pairs")
    write_drawn(folder, task.drawn)
    like = {"kind": "pairs", "path": folder, "mean": (0.0,), "deviation": (1.0,), "augment": False}
    return task.drawn.model_copy(update=like)


@pytest.fixture(scope="module")
def sources(task: Task, data: DataSettings, tmp_path_factory: pytest.TempPathFactory) -> report.Sources:
    """The stages from pairs of images to exported winners in a bundle, on onnxruntime here."""
    model = ModelSettings(kind="callable", name=task.network)
    space = {"resolution": [task.smaller, data.resolution], "*.width_mult": [0.5, 1]}
    return SmallRun(task.network, data).from_network(
        tmp_path_factory.mktemp("stages"), model, space, steps=12, epochs=4
    )


@pytest.mark.long
def test_a_bundle_gives_better_images_than_it_is_given_and_the_report_shows_them(
    task: Task, sources: report.Sources, data: DataSettings, tmp_path: Path
) -> None:
    (device,) = sources.devices
    (card,) = read_json(device.export / RESULT_FILE)["subnets"]
    assert card["problem"] == data.problem
    assert {name: file["state"] for name, file in card["files"].items()} == {"onnx": "ok", "ncnn": "ok"}
    test, side = load_splits(data)["test"], data.upscale * data.resolution
    given = 100 * count_correct(lambda x: x, test.batches(32), test.problem).share
    assert 100 * card["accuracy"]["test"] > given + task.gained_db
    x_BCHW, wanted_BCHW = next(iter(test.batches(len(test))))
    with adaptive_runtime.load(device.export / "bundle", prepares=False) as model:
        images = model.infer(x_BCHW.numpy()).images
        assert InferenceFormat.of(model).outputs == {"images": [-1, 3, side, side]}
    assert images is not None
    each_db = [psnr_db(*pair) for pair in zip(images, wanted_BCHW.numpy(), strict=True)]
    assert np.mean(each_db) == pytest.approx(100 * card["accuracy"]["test"], abs=0.05)
    found = report.run(sources, report.Settings(), tmp_path)
    assert found["metric"] == "PSNR in % of 100 dB"
    assert found["answers"].startswith("data:image/png")
    with Image.open(device.sensitivities / ANSWERS_FILE) as answers:
        assert answers.size == (GAP + 4 * (side + GAP), GAP + MOST_IMAGES * (side + GAP))
