"""What of trainings and reports is held against published figures."""

from itertools import product

import pytest
import torch

import tailor_ir
from benchmarks.published_spaces import (
    STAGES,
    TRAINED,
    best_within,
    fastest_within,
    least,
    most,
    phases,
    stage_seconds,
    words,
)
from benchmarks.published_tables import SUBNETS, from_scratch_s, published_rows
from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from tailor_ir import SuperNet
from tasks.data.samples import image_form
from tasks.evaluation.models import ModelSettings, create
from tasks.prediction.sums import mac_sums, parameter_sums

ORIGINAL = {"measured_ms": 10.0, "accuracy": 0.90}
FRONT = [
    {"measured_ms": 3.0, "accuracy": 0.70, "macs": 30},
    {"measured_ms": 5.0, "accuracy": 0.87, "macs": 50},
    {"measured_ms": 8.0, "accuracy": 0.90, "macs": 70},
]


@pytest.fixture
def net() -> SuperNet:
    network = create(ModelSettings(name="test_resnet"), 10, image_form(3, 32))
    assert isinstance(network, torch.nn.Module)
    space = {"alternatives": ["merged", "pruned"], "stage.*.depth": "auto"}
    return tailor_ir.compile(network.eval(), torch.zeros(1, 3, 32, 32), space)


def test_least_and_most_are_those_of_all_subnets(net: SuperNet) -> None:
    codes = list(product(*(range(count) for count in net.space.cardinalities)))
    configs = [net.space.decode(code) for code in net.space.canonical_codes(torch.tensor(codes).numpy())]
    for sums, of in ((mac_sums(net), net.macs), (parameter_sums(net), net.parameters)):
        values = [of(config) for config in configs]
        assert (least(net, sums), most(net, sums)) == (min(values), max(values))


def test_the_fastest_subnet_may_lose_just_so_many_points() -> None:
    assert fastest_within(3, ORIGINAL, FRONT) == FRONT[1]
    assert fastest_within(1, ORIGINAL, FRONT) == FRONT[2]
    assert fastest_within(1, ORIGINAL, FRONT[:1]) is None


def test_the_best_subnet_keeps_a_share_of_the_latency() -> None:
    assert best_within(0.8, ORIGINAL, FRONT) == FRONT[2]
    assert best_within(0.7, ORIGINAL, FRONT) == FRONT[1]
    assert best_within(0.2, ORIGINAL, FRONT) is None


def test_a_phase_costs_its_steps_times_the_median_step() -> None:
    branches = [{"epoch": 0, "loss_branches": 1.0, "images_per_s": speed} for speed in (64.0, 32.0, 1.0)]
    tune = [{"epoch": epoch, "loss_random": 1.0, "images_per_s": 16.0} for epoch in (1, 1, 2, 2)]
    found = phases([*branches, *tune], 32)
    assert found["branches"] == {"steps": 3, "epochs": 1, "step_s": 1.0, "seconds": 3.0}
    assert found["steps"] == {"steps": 4, "epochs": 2, "step_s": 2.0, "seconds": 8.0}


def test_subnets_from_scratch_cost_their_share_of_the_original() -> None:
    assert from_scratch_s({"base": {"seconds": 60.0}, "macs": 100}, FRONT) == 90.0


def test_stages_are_added_up_over_devices() -> None:
    rows = [{"stage": stage, "seconds": 2.0} for stage in ("base", "search/ncnn", "search/onnxruntime")]
    assert stage_seconds(rows) == {"base": 2.0, "search": 4.0}


@pytest.mark.parametrize("preset", TRAINED)
def test_a_training_of_a_published_space_is_a_valid_command(preset: str) -> None:
    config = validate(RunConfig, compose_config("config", words(preset, ["finetune.epochs=8"])))
    assert (config.data.resolution, config.finetune.epochs, config.finetune.processes) == (64, 8, 1)
    assert config.space


def test_published_figures_stand_without_measurements() -> None:
    rows = published_rows({}, {})
    assert all(published and here == "–" for _, _, published, here in rows)
    assert set(TRAINED) < set(SUBNETS)
    assert STAGES == ("space", "train", "measure")
