"""A small detector goes through training, compiling, fine-tuning and sensitivities to an exported file and pictures."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_model
from torch import nn

import tailor_ir
from tasks.base.artifacts import Workspace, read_lines
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.base.schemas.predictions import SENSITIVITIES_FILE, Sensitivities
from tasks.data import DataSettings, load_splits
from tasks.data.samples import image_form
from tasks.data.teacher import OnnxNetwork
from tasks.evaluation.conversion import onnx_of
from tasks.evaluation.models import ModelSettings, create
from tasks.evaluation.pictures import ANSWERS_FILE
from tasks.evaluation.subnets import EvaluationData, accuracy, count_correct, statistics_of
from tasks.prediction import sensitivity
from tasks.prediction.settings import Settings as PredictSettings
from tasks.training import compile as compile_stage
from tasks.training.finetune import checkpoint
from tasks.training.finetune.job import Job
from tasks.training.finetune.settings import Settings, TrainSettings
from tests.support import SUPPORT
from tests.support.finetune.one_rank import train_here

SIDE, STEPS, BATCH = 32, 12, 8
DATA = DataSettings(kind="glyph_boxes", classes=2, images=240, resolution=SIDE, augment=False)
MODEL = ModelSettings(kind="callable", name=f"{SUPPORT / 'boxes' / 'small_detectors.py'}:ssdlite")
SPACE = {"resolution": [24, SIDE], "*.width_mult": [0.5, 1]}
COMMON = {"batch_size": BATCH, "micro_batch": BATCH, "processes": 1, "device": "cpu", "recalibration_images": 16}
PREDICT = PredictSettings(validation_images=16, recalibration_images=16, random_subnets=4, fit_subnets=1, rounds=1)


@pytest.fixture(scope="module")
def supernet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SuperNet of a network that was trained for some steps, fine-tuned with its largest SubNet as the teacher."""
    folder = tmp_path_factory.mktemp("detection")
    train = load_splits(DATA)["train"]
    module = create(MODEL, train.classes, train.form, problem=train.problem)
    assert isinstance(module, nn.Module)
    save_model(module, str(folder / "initial.safetensors"))
    settings = TrainSettings.model_validate({**COMMON, "epochs": 2, "learning_rate": 5e-3})
    job = Job(folder=folder / "base", data=DATA, model=MODEL, initial=folder / "initial.safetensors", train=settings,
              steps_per_epoch=STEPS, total_steps=2 * STEPS)  # fmt: skip
    history = train_here(job)
    assert history[-1]["loss"] < 0.9 * history[0]["loss"]
    checkpoint.load_model(job.checkpoint, module)
    save_model(module, str(folder / "weights.safetensors"))
    compile_stage.run(compile_stage.Settings(), MODEL, DATA, folder / "weights.safetensors", SPACE, folder, Silent())
    tuning = Settings.model_validate({**COMMON, "epochs": 1, "strategy": "sandwich", "learning_rate": 1e-3})
    job = Job(folder=folder / "tuned", data=DATA, finetune=tuning, supernet=folder / "supernet", steps_per_epoch=STEPS // 2,
              total_steps=STEPS // 2)  # fmt: skip
    assert 0 < train_here(job)[-1]["loss_smallest"] < 100
    net = tailor_ir.load(folder / "supernet")
    checkpoint.load_model(job.checkpoint, net.elastic)
    net.save(folder / "finetuned")
    return folder / "finetuned"


def test_sensitivities_are_points_of_map_and_boxes_are_drawn(supernet: Path, tmp_path: Path) -> None:
    sensitivity.run(PREDICT, DATA, supernet, Workspace(out=tmp_path, progress=Silent()))
    table = Sensitivities.read(tmp_path / SENSITIVITIES_FILE)
    assert {row.variable.rpartition(".")[2] for row in table.variables} == {"resolution", "width_mult"}
    lines = read_lines(tmp_path / sensitivity.EVALUATED_FILE)
    assert all(line["scores"] and not line["hits"] for line in lines)
    with Image.open(tmp_path / ANSWERS_FILE) as shown:
        assert shown.size == (4 * (SIDE + 2) + 2, 6 * (SIDE + 2) + 2)


def test_an_exported_detector_has_the_score_and_loss_of_its_module(supernet: Path) -> None:
    net, splits = tailor_ir.load(supernet), load_splits(DATA)
    data = EvaluationData(splits["test"], splits["train"], recalibration_images=16)
    config = net.min_config
    exported = count_correct(OnnxNetwork(onnx_of(net, config, statistics_of(net, config, data), 16)), data.batches((24, 24)),
                             splits["test"].problem)  # fmt: skip
    own = accuracy(net, config, data)
    assert exported.loss == pytest.approx(own.loss, rel=1e-3)
    assert exported.share == pytest.approx(own.share, abs=1e-3)


def test_a_network_of_another_head_is_refused_in_one_line() -> None:
    problem = load_splits(DATA)["train"].problem
    other = MODEL.model_copy(update={"name": MODEL.name.replace(":ssdlite", ":fcos")})
    with pytest.raises(
        UserError, match=r"gives a tensor \(2, 23, 8\); allowed: one tensor \(B, P, 7\): 3 logits .* head ssdlite"
    ):
        create(other, 3, image_form(3, SIDE), problem=problem)
    with pytest.raises(UserError, match="detection_ssdlite cannot do it yet: timm makes networks"):
        create(ModelSettings(name="test_resnet"), 3, image_form(3, SIDE), problem=problem)
    assert torch.equal(problem.blank(2, SIDE)[:, 0, 0], torch.ones(2))
