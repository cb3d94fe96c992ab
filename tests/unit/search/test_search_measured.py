"""The genetic search by measured accuracy: winners are the best of what was evaluated, each once; a killed run goes on."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch

import tailor_ir
from tailor_ir.spaces.selectors import SpaceSpec
from tasks.base.artifacts import read_lines
from tasks.base.progress import Silent
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import Accuracy, EvaluationData, accuracy
from tasks.prediction.accuracy import AccuracyPredictor, modifications, sensitivities
from tasks.prediction.latency import Correction, LatencyPredictor
from tasks.prediction.sums import Sums
from tasks.search import SearchRequest, Settings, Target, run
from tasks.search.methods import EVALUATED_FILE

SETTINGS = Settings(accuracy="measured", population=8, generations=4, plateau=2)


@pytest.fixture(scope="module")
def supernet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=10).eval()
    space: SpaceSpec = {
        "resolution": [24, 32],
        "stage.*.width_mult": [0.5, 1.0],
        "stage.*.block.*.expand_ratio": "auto",
    }
    folder = tmp_path_factory.mktemp("search") / "supernet"
    tailor_ir.compile(network, torch.zeros(1, 3, 32, 32), space).save(folder)
    return folder


@pytest.fixture(scope="module")
def images() -> EvaluationData:
    splits = load_splits(DataSettings(kind="digits", workers=1))
    return EvaluationData(splits["validation"], splits["train"], limit=100, recalibration_images=64)


def predictors(net: Any) -> tuple[LatencyPredictor, AccuracyPredictor]:
    """A millisecond for each million MACs, and sensitivities that know nothing of this network."""
    none = Sums(net.space.cardinalities.tolist(), ())
    sums = Sums.compile(net, {feature: feature.macs / 1e6 for feature in net.unique_operators()})
    measured = [Accuracy(900 - 7 * number, 1000, 1.0) for number, _ in enumerate(modifications(net.space))]
    return LatencyPredictor(sums, Correction(offset_ms=0.1), none), AccuracyPredictor(
        sensitivities(net.space, measured)
    )


def search(supernet: Path, images: EvaluationData, out: Path) -> Any:
    out.mkdir(exist_ok=True)
    latency, accuracy = predictors(tailor_ir.load(supernet))
    targets = [Target(name="pi", latency=latency)]
    request = SearchRequest(supernet=supernet, targets=targets, accuracy=accuracy, settings=SETTINGS, images=images)
    return run(request, out, Silent())["pi"]


@pytest.fixture(scope="module")
def found(supernet: Path, images: EvaluationData, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    out = tmp_path_factory.mktemp("measured")
    return search(supernet, images, out), out


def test_winners_are_the_most_accurate_of_all_that_were_evaluated(
    found: tuple[Any, Path], supernet: Path, images: EvaluationData
) -> None:
    front, out = found
    net = tailor_ir.load(supernet)
    lines = read_lines(out / EVALUATED_FILE)
    assert len({line["digest"] for line in lines}) == len(lines) == front["evaluated"] > SETTINGS.population
    latency, _ = predictors(net)
    evaluated_ms = latency.predict(net.space.encode([line["config"] for line in lines]))
    for row in front["winners"]:
        shares = [
            line["correct"] / line["total"]
            for line, ms in zip(lines, evaluated_ms, strict=True)
            if ms <= row["budget_ms"] * (1 + 1e-9)
        ]
        assert row["predicted_ms"] <= row["budget_ms"]
        assert row["measured_accuracy"] == max(shares)
    last = front["winners"][-1]
    assert accuracy(net, last["config"], images).share == last["measured_accuracy"]


def test_they_are_at_least_as_accurate_as_those_by_predicted_accuracy(
    found: tuple[Any, Path], supernet: Path, images: EvaluationData, tmp_path: Path
) -> None:
    net = tailor_ir.load(supernet)
    latency, predictor = predictors(net)
    settings = SETTINGS.model_copy(update={"accuracy": "predicted"})
    targets = [Target(name="pi", latency=latency)]
    request = SearchRequest(supernet=supernet, targets=targets, accuracy=predictor, settings=settings)
    predicted = run(request, tmp_path, Silent())["pi"]
    assert predicted["evaluated"] == 0
    better = 0.0
    for row, other in zip(found[0]["winners"], predicted["winners"], strict=True):
        gained = row["measured_accuracy"] - accuracy(net, other["config"], images).share
        assert gained >= 0
        better = max(better, gained)
    assert better > 0


@pytest.mark.long
def test_a_run_that_was_killed_goes_on_with_what_was_evaluated(
    found: tuple[Any, Path], supernet: Path, images: EvaluationData, tmp_path: Path
) -> None:
    front, out = found
    text = (out / EVALUATED_FILE).read_text().splitlines(keepends=True)
    kept = len(text) // 2
    (tmp_path / EVALUATED_FILE).write_text("".join(text[:kept]))
    again = search(supernet, images, tmp_path)
    assert again == front
    assert (tmp_path / EVALUATED_FILE).read_text().splitlines(keepends=True)[:kept] == text[:kept]
    assert len(read_lines(tmp_path / EVALUATED_FILE)) == len(text)
