"""A small feature pyramid goes through the stages by its masks, from random weights to exported files and the report."""

import base64
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

import adaptive_runtime
import tailor_ir
from adaptive_runtime.bundle.bundles import BundleFormat, OpenBundle
from tasks import report, search
from tasks.base.artifacts import RESULT_FILE, read_json, read_lines
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.base.schemas.predictions import SENSITIVITIES_FILE, Sensitivities
from tasks.data import DataSettings, load_splits
from tasks.data.problems import SEGMENTATION
from tasks.data.samples import image_form
from tasks.data.teacher import OnnxNetwork
from tasks.evaluation.conversion import onnx_of
from tasks.evaluation.models import ModelSettings, create
from tasks.evaluation.pictures import ANSWERS_FILE
from tasks.evaluation.subnets import EvaluationData, accuracy, count_correct, recalibrate_module, statistics_of
from tasks.measuring.lut import Lut
from tasks.measuring.profile import LUT_FOLDER
from tasks.prediction import sensitivity
from tasks.training import compile as compile_stage
from tasks.training.finetune import checkpoint
from tasks.training.finetune.job import Job
from tasks.training.finetune.settings import Settings
from tests.support import SUPPORT
from tests.support.finetune.one_rank import train_here
from tests.support.problems.stages import COMMON, PREDICT, SmallRun, trained

pytestmark = pytest.mark.long

DATA = DataSettings(kind="glyph_scenes", classes=2, images=480, resolution=32, augment=False)
MODEL = ModelSettings(kind="callable", name=f"{SUPPORT / 'problems' / 'small_fpn.py'}:network")
SPACE = {"resolution": [24, 32], "*.width_mult": [0.5, 1]}
STEPS = 20
BACKGROUND_ALONE = 1 / 3
"""Mean IoU of the answer that every pixel is background, or less: the other two classes are never found."""


@pytest.fixture(scope="module")
def supernet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SuperNet of the trained network, fine-tuned with its largest SubNet as the teacher of the others."""
    folder = tmp_path_factory.mktemp("segmentation")
    module, losses = trained(folder / "base", DATA, MODEL, steps=STEPS, epochs=10)
    assert losses[-1] < 0.6 * losses[0]
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


@pytest.fixture(scope="module")
def sources(supernet: Path, tmp_path_factory: pytest.TempPathFactory) -> report.Sources:
    """The stages from the SuperNet to its exported winners and bundles, on onnxruntime and on ncnn here."""
    run = SmallRun("small_fpn", DATA, refined=True, backends=("onnxruntime", "ncnn"))
    return run.sources(supernet, tmp_path_factory.mktemp("stages"))


def test_sensitivities_are_points_of_mean_iou_and_answers_are_drawn(supernet: Path, sources: report.Sources) -> None:
    folder = sources.sensitivities
    assert 0 <= read_json(folder / RESULT_FILE)["mean_error_points"] < 30
    with Image.open(folder / ANSWERS_FILE) as shown:
        assert shown.size == (4 * 34 + 2, 6 * 34 + 2)  # 32 pixels and a gap each

    table = Sensitivities.read(folder / SENSITIVITIES_FILE)
    assert table.largest.accuracy > 1.2 * BACKGROUND_ALONE
    (resolution,) = (row for row in table.variables if row.variable == "resolution")
    net, images = tailor_ir.load(supernet), sensitivity.images_of(PREDICT, DATA)
    for choice, measured in zip((24, 32), resolution.measured, strict=True):
        found = accuracy(net, net.space.canonical(net.max_config | {"resolution": choice}), images)
        assert measured.accuracy == pytest.approx(found.share, abs=1e-6)
        assert measured.loss == pytest.approx(found.loss, rel=1e-5)
    assert len({measured.accuracy for measured in resolution.measured}) == 2
    lines = read_lines(folder / sensitivity.EVALUATED_FILE)
    assert all(line["scores"] and not line["hits"] for line in lines)
    assert any(line["correct"] % 1 for line in lines)


def test_winners_are_chosen_by_measured_mean_iou_and_their_files_agree_with_torch(sources: report.Sources) -> None:
    for device in sources.devices:
        winners = read_json(device.search / search.FRONT_FILE)["winners"]
        assert winners
        assert all(0 < row["measured_accuracy"] < 1 for row in winners)
        cards = read_json(device.export / RESULT_FILE)["subnets"]
        assert {card["digest"] for card in cards} == {row["digest"] for row in winners}
        for card in cards:
            assert card["problem"] == "segmentation"
            assert card["device"]["backend"] == device.name
            assert card["latency"]["p50_ms"] > 0
            assert {name: file["state"] for name, file in card["files"].items()} == {"onnx": "ok", "ncnn": "ok"}
            assert 0 < card["accuracy"]["test"] < 1
        assert "mean IoU, test" in next(device.export.glob("*.md")).read_text()


def test_every_operator_of_a_segmenter_is_measured_on_every_device(sources: report.Sources) -> None:
    for device in sources.devices:
        entries = list(Lut.open(device.profile / LUT_FOLDER).entries())
        assert len(entries) > 20
        assert {entry.operator: entry.reason for entry in entries if entry.state == "failed"} == {}


def test_the_bundle_of_a_device_with_ncnn_gives_the_same_masks_in_both_formats(sources: report.Sources) -> None:
    _, device = sources.devices
    bundle = OpenBundle.open(device.export / "bundle")
    images_NCHW = np.concatenate([x.numpy() for x, _ in load_splits(DATA)["test"].batches(8)])[:8]
    formats: tuple[BundleFormat, ...] = ("onnx", "ncnn")
    masks = []
    for form in formats:
        with adaptive_runtime.load(bundle.folder, format=form, prepares=False) as model:
            found = model.infer(images_NCHW).masks
            assert found is not None
            masks.append(found)
    onnx_NHW, ncnn_NHW = masks
    assert onnx_NHW.shape == (8, 32, 32)
    assert len(np.unique(onnx_NHW)) > 1
    assert (onnx_NHW == ncnn_NHW).mean() > 0.999


def test_the_report_says_what_accuracy_is_and_shows_answers(sources: report.Sources, tmp_path: Path) -> None:
    found = report.run(sources, report.Settings(), tmp_path)
    assert found["metric"] == "mean IoU"
    page = (tmp_path / "report.html").read_text()
    assert "segmentation: accuracy is mean IoU" in page
    assert base64.b64encode((sources.sensitivities / ANSWERS_FILE).read_bytes()).decode() in page


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
        create(ModelSettings(name="test_resnet"), 5, image_form(3, 32), problem=SEGMENTATION)
