"""Pairs of modifications, measured on a real SuperNet: which ones, what they add, and when they are used."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

import tailor_ir
from tailor_ir.spaces.selectors import SpaceSpec
from tasks.base.artifacts import Workspace, read_json, read_lines
from tasks.base.progress import Silent
from tasks.base.schemas.stored import PointErrors
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData, accuracy
from tasks.prediction import sensitivity
from tasks.prediction.accuracy import AccuracyPredictor, measure_sensitivities, modifications
from tasks.prediction.sensitivity import better, strongest_pairs, with_interactions
from tasks.prediction.settings import Settings

SPACE: SpaceSpec = {
    "resolution": [24, 32],
    "stage.*.width_mult": [0.5, 0.75, 1.0],
    "stage.*.block.*.expand_ratio": "auto",
}
PAIRS = 5


@pytest.fixture(scope="module")
def supernet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=10).eval()
    folder = tmp_path_factory.mktemp("interactions") / "supernet"
    tailor_ir.compile(network, torch.zeros(1, 3, 32, 32), SPACE).save(folder)
    return folder


@pytest.fixture(scope="module")
def net(supernet: Path) -> tailor_ir.SuperNet:
    return tailor_ir.load(supernet)


@pytest.fixture(scope="module")
def images() -> EvaluationData:
    splits = load_splits(DataSettings(kind="digits"))
    return EvaluationData(splits["validation"], splits["train"], limit=60, recalibration_images=32)


@pytest.fixture(scope="module")
def plain(net: tailor_ir.SuperNet, images: EvaluationData, measured: Path) -> AccuracyPredictor:
    return AccuracyPredictor(measure_sensitivities(net, images, measured, Silent()))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("measured") / "evaluated.jsonl"


@pytest.fixture(scope="module")
def paired(
    net: tailor_ir.SuperNet, images: EvaluationData, measured: Path, plain: AccuracyPredictor
) -> AccuracyPredictor:
    return with_interactions(net, plain, PAIRS, images, measured, Silent())


def test_pairs_are_of_variables_that_meet_in_an_operator_strongest_first(
    net: tailor_ir.SuperNet, plain: AccuracyPredictor
) -> None:
    codes = strongest_pairs(net, plain, 1000)
    changed = [tuple(np.flatnonzero(code != net.space.cardinalities - 1)) for code in codes]
    met = {pair for term in net.operator_terms() for pair in combinations(sorted(term.variables), 2)}
    assert len(codes) > PAIRS
    assert set(changed) <= met
    assert len(set(changed)) == len(changed)
    assert (net.space.canonical_codes(codes) == codes).all()
    effects = [values for _, values in plain.tables]
    sizes = [abs(effects[a][code[a]] * effects[b][code[b]]) for code, (a, b) in zip(codes, changed, strict=True)]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) > 0
    for code, pair in zip(codes, changed, strict=True):
        assert all(abs(effects[v][code[v]]) == np.abs(effects[v]).max() for v in pair)
    assert strongest_pairs(net, plain, PAIRS).tolist() == codes[:PAIRS].tolist()


def test_only_as_many_pairs_are_evaluated_as_are_allowed(
    net: tailor_ir.SuperNet, paired: AccuracyPredictor, measured: Path
) -> None:
    assert len(paired.table.interactions) == PAIRS
    single = {net.space.digest(config) for config in modifications(net.space)}
    pairs = {net.space.digest(net.space.decode(code)) for code in strongest_pairs(net, paired_less(paired), PAIRS)}
    assert {line["digest"] for line in read_lines(measured)} == single | pairs
    assert len(pairs) == PAIRS


def paired_less(paired: AccuracyPredictor) -> AccuracyPredictor:
    return AccuracyPredictor(paired.table.model_copy(update={"interactions": ()}))


def test_what_a_pair_adds_is_what_was_measured_less_both_effects(
    net: tailor_ir.SuperNet, images: EvaluationData, plain: AccuracyPredictor, paired: AccuracyPredictor
) -> None:
    largest = accuracy(net, net.max_config, images)
    for each, residual, kept in zip(paired.table.interactions, paired.residuals, paired.kept, strict=True):
        both = dict(zip(each.variables, each.choices, strict=True))
        first, second, together = (
            accuracy(net, net.max_config | chosen, images)
            for chosen in (*({name: choice} for name, choice in both.items()), both)
        )
        beyond = together.right.astype(int) - first.right - second.right + largest.right
        assert residual == pytest.approx(beyond.mean())
        assert each.standard_error == pytest.approx(beyond.std() / 60**0.5)
        expected = max(0.0, 1 - (each.standard_error / residual) ** 2) if residual else 0.0
        assert kept == pytest.approx(expected)


def test_a_predictor_with_interactions_is_plain_for_one_modification(
    net: tailor_ir.SuperNet, plain: AccuracyPredictor, paired: AccuracyPredictor
) -> None:
    codes = net.space.encode(modifications(net.space))
    assert paired.predict(codes) == pytest.approx(plain.predict(codes), abs=1e-12)
    assert paired.predict_loss(codes) == pytest.approx(plain.predict_loss(codes), abs=1e-12)
    pairs = strongest_pairs(net, plain, PAIRS)
    assert paired.predict_loss(pairs) == pytest.approx([each.measured.loss for each in paired.table.interactions])


def stated(tau: float | None, error: float) -> PointErrors:
    return PointErrors(kendall_tau=tau, mean_error_points=error, max_error_points=error)


def test_interactions_are_better_when_held_out_subnets_are_ordered_better() -> None:
    assert better(stated(0.5, 1.0), stated(0.6, 2.0))
    assert better(stated(0.5, 1.0), stated(0.5, 0.9))
    assert better(stated(None, 1.0), stated(0.1, 2.0))
    assert not better(stated(0.5, 1.0), stated(0.4, 0.1))
    assert not better(stated(0.5, 1.0), stated(0.5, 1.0))


def test_the_stage_uses_interactions_only_when_they_help_and_goes_on(supernet: Path, tmp_path: Path) -> None:
    settings = Settings(random_subnets=6, validation_images=60, recalibration_images=32, interactions=PAIRS)
    workspace = Workspace(out=tmp_path, progress=Silent())
    found = sensitivity.run(settings, DataSettings(kind="digits"), supernet, workspace)
    said = found["interactions"]
    table = AccuracyPredictor.load(tmp_path / sensitivity.SENSITIVITIES_FILE).table
    assert said["evaluations"] == len(said["rows"]) == PAIRS
    assert len(table.interactions) == (PAIRS if said["used"] else 0)
    plain, paired = (PointErrors.model_validate(said[name]) for name in ("plain", "with_interactions"))
    assert said["used"] == better(plain, paired)
    chosen = said["with_interactions" if said["used"] else "plain"]
    assert {name: found[name] for name in chosen} == chosen
    lines = (tmp_path / sensitivity.EVALUATED_FILE).read_text().splitlines(keepends=True)
    (tmp_path / sensitivity.EVALUATED_FILE).write_text("".join(lines[:-3]))
    assert sensitivity.run(settings, DataSettings(kind="digits"), supernet, workspace) == found
    assert read_json(tmp_path / sensitivity.ACCURACY_VALIDATION_FILE) == found
