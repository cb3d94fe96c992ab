"""A small feature pyramid is trained, compiled, fine-tuned and predicted by its masks, in this process."""

from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import save_file, save_model
from torch import nn

import tailor_ir
from tasks import compile as compile_stage
from tasks.conversion import onnx_of
from tasks.data import DataSettings, load_splits
from tasks.errors import UserError
from tasks.evaluation.onnx_files import OnnxNetwork
from tasks.evaluation.pictures import ANSWERS_FILE
from tasks.evaluation.subnets import EvaluationData, accuracy, count_correct, recalibrate_module, statistics_of
from tasks.finetune import checkpoint
from tasks.finetune.job import Job
from tasks.finetune.settings import Settings, TrainSettings
from tasks.models import ModelSettings, create
from tasks.predict import sensitivity
from tasks.predict.settings import AccuracySettings
from tasks.problems import SEGMENTATION
from tasks.progress import Silent
from tasks.schemas.accuracy import SENSITIVITIES_FILE, Sensitivities
from tests.finetune.one_rank import train_here

DATA = DataSettings(kind="glyph_scenes", classes=2, images=480, resolution=32, augment=False)
MODEL = ModelSettings(kind="callable", name=f"{Path(__file__).with_name('small_fpn.py')}:network")
SPACE = {"resolution": [24, 32], "*.width_mult": [0.5, 1]}
STEPS = 20
COMMON = {"batch_size": 16, "micro_batch": 16, "processes": 1, "device": "cpu", "recalibration_images": 64}
BACKGROUND_ALONE = 1 / 3
"""Mean IoU of the answer that every pixel is background, or less: the other two classes are never found."""


def _trained(folder: Path) -> nn.Module:
    """The network after some epochs, with the job's checkpoint read."""
    train = load_splits(DATA)["train"]
    module = create(MODEL, train.classes, train.channels, DATA.resolution, problem=train.problem)
    assert isinstance(module, nn.Module)
    folder.mkdir()
    save_model(module, str(folder / "initial.safetensors"))
    epochs = 10
    job = Job(
        folder=folder, data=DATA, model=MODEL, initial=folder / "initial.safetensors", steps_per_epoch=STEPS,
        total_steps=STEPS * epochs, train=TrainSettings.model_validate({**COMMON, "epochs": epochs, "learning_rate": 5e-3}),
    )  # fmt: skip
    history = train_here(job)
    assert history[-1]["loss"] < 0.6 * history[0]["loss"]
    checkpoint.load_model(job.checkpoint, module)
    return module


@pytest.fixture(scope="module")
def supernet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SuperNet of the trained network, fine-tuned with its largest SubNet as the teacher of the others."""
    folder = tmp_path_factory.mktemp("segmentation")
    module = _trained(folder / "base")
    splits = load_splits(DATA)
    data = EvaluationData(splits["test"], splits["train"], recalibration_images=64)
    recalibrate_module(module, data.calibration((32, 32)))
    weights = folder / "weights.safetensors"
    save_file({name: value.contiguous() for name, value in module.state_dict().items()}, str(weights))
    compile_stage.run(compile_stage.Settings(), MODEL, DATA, weights, SPACE, folder, Silent())
    settings = Settings.model_validate({**COMMON, "epochs": 2, "strategy": "sandwich", "learning_rate": 1e-3})
    job = Job(folder=folder / "tuned", data=DATA, finetune=settings, supernet=folder / "supernet", steps_per_epoch=STEPS,
              total_steps=2 * STEPS)  # fmt: skip
    history = train_here(job)
    assert history[-1]["loss_smallest"] < history[0]["loss_smallest"]
    net = tailor_ir.load(folder / "supernet")
    checkpoint.load_model(job.checkpoint, net.elastic)
    net.save(folder / "finetuned")
    return folder / "finetuned"


def test_sensitivities_are_points_of_mean_iou_and_answers_are_drawn(supernet: Path, tmp_path: Path) -> None:
    settings = AccuracySettings(validation_images=64, recalibration_images=64, random_subnets=4)
    stated = sensitivity.run(settings, DATA, supernet, tmp_path, Silent())
    assert 0 <= stated["mean_error_points"] < 30
    with Image.open(tmp_path / ANSWERS_FILE) as shown:
        assert shown.size == (4 * 34 + 2, 6 * 34 + 2)  # 32 pixels and a gap each

    table = Sensitivities.read(tmp_path / SENSITIVITIES_FILE)
    assert table.largest.accuracy > 1.2 * BACKGROUND_ALONE
    (resolution,) = (row for row in table.variables if row.variable == "resolution")
    assert resolution.measured[0].accuracy < resolution.measured[-1].accuracy


def test_an_exported_subnet_has_the_score_of_its_module(supernet: Path, tmp_path: Path) -> None:
    net, splits = tailor_ir.load(supernet), load_splits(DATA)
    data = EvaluationData(splits["test"], splits["train"], recalibration_images=64)
    config = net.min_config
    model = onnx_of(net, config, statistics_of(net, config, data), 16)
    exported = count_correct(OnnxNetwork(model), data.batches((24, 24)), SEGMENTATION)
    assert exported.share == pytest.approx(accuracy(net, config, data).share, abs=1e-3)
    assert exported.loss == pytest.approx(accuracy(net, config, data).loss, rel=1e-3)


def test_networks_of_timm_are_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="model 'test_resnet': segmentation cannot do it yet: timm makes networks"):
        create(ModelSettings(name="test_resnet"), 5, 3, 32, problem=SEGMENTATION)
