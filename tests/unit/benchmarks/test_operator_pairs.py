"""What belongs to an operator, the best SubNets that apply no other, and what is held against what."""

from typing import Any

import numpy as np
import pytest
import torch

import tailor_ir
from benchmarks.operator_pairs import (
    COMBINATIONS,
    DATA,
    OPERATORS,
    OURS,
    PUBLISHED,
    THEIRS,
    applied,
    candidates,
    fastest,
    gains,
    operator_of,
    words_of,
)
from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from solvers.tables import Codes, Table, Values
from tailor_ir import Config, Space
from tasks.data.samples import image_form
from tasks.evaluation.models import ModelSettings, create


@pytest.fixture(scope="module")
def space() -> Space:
    network = create(ModelSettings(name="test_resnet"), 10, image_form(3, 32))
    assert isinstance(network, torch.nn.Module)
    spec: Any = {"alternatives": ["low_rank_0.5", "fire"], "stage.*.depth": "auto", "*.width_mult": [0.5, 1]}
    return tailor_ir.compile(network.eval(), torch.zeros(1, 3, 32, 32), spec).space


def test_every_choice_but_the_originals_applies_one_operator(space: Space) -> None:
    found = [operator_of(variable, one) for variable in space.variables for one in variable.choices[:-1]]
    assert set(found) == {"η1", "η2", "η5", "η6"}
    assert applied(space, space.max_config) == set()


def tables(space: Space) -> tuple[list[Table], list[Table]]:
    """Gains and positive costs of single choices, drawn."""
    rng = np.random.default_rng(0)
    gain = [Table((column,), rng.uniform(-1.0, 0.0, count)) for column, count in enumerate(space.cardinalities)]
    cost = [Table((column,), rng.uniform(1.0, 2.0, count)) for column, count in enumerate(space.cardinalities)]
    return gain, cost


def total(own: list[Table], codes: Codes) -> Values:
    return np.sum([table.values[codes[:, table.columns[0]]] for table in own], axis=0)


@pytest.mark.parametrize("operators", [("η2",), ("η1", "η5"), ("η2", "η6")])
def test_candidates_are_the_best_of_all_subnets_that_apply_no_other_operator(
    space: Space, operators: tuple[str, ...]
) -> None:
    gain, cost = tables(space)
    codes = np.indices(space.cardinalities.tolist()).reshape(len(space.variables), -1).T
    codes = np.array([code for code in codes if applied(space, raw(space, code)) <= set(operators)])
    costs, worth = total(cost, codes), total(gain, codes)
    budgets = np.geomspace(costs.min(), costs.max(), 5)
    best = [codes[within][np.argmax(worth[within])] for within in (costs <= one * (1 + 1e-9) for one in budgets)]
    expected = {space.digest(space.decode(code)) for code in space.canonical_codes(np.array(best))}
    found = candidates(space, gain, cost, operators, float(costs.max()), 5)
    assert {space.digest(config) for config in found} == expected
    assert all(applied(space, config) <= set(operators) for config in found)


def raw(space: Space, code: np.ndarray) -> Config:
    return {variable.name: variable.choices[at] for variable, at in zip(space.variables, code, strict=True)}


def test_the_fastest_that_is_accurate_enough_counts() -> None:
    rows = [{"accuracy": share, "predicted_ms": ms} for share, ms in ((0.90, 3.0), (0.88, 2.0), (0.87, 1.0))]
    assert fastest(rows, 0.88) == rows[1]
    assert fastest(rows, 0.91) is None


def test_gains_are_points_above_and_the_others_share_of_the_row() -> None:
    base = {"accuracy": 0.9, "ms": 2.0, "macs": 80, "parameters": 40, "energy_mj": 3.0}
    row = {"accuracy": 0.88, "ms": 1.0, "macs": 20, "parameters": 20, "energy_mj": 1.0}
    assert gains(row, base) == pytest.approx((-2.0, 2.0, 4.0, 2.0, 3.0))


@pytest.mark.long_cases("sounds")
@pytest.mark.parametrize("data", DATA)
def test_every_training_is_a_valid_command_of_equal_epochs(data: str) -> None:
    ours, theirs = (
        validate(RunConfig, compose_config("config", words_of(data, network, ["data.images=720"])))
        for network in (OURS, THEIRS)
    )
    assert (ours.data, ours.base.epochs) == (theirs.data, theirs.base.epochs)
    assert (ours.data.kind, ours.data.images) == (data, 720)


def test_the_published_pairs_are_measured() -> None:
    assert {row.operators for row in PUBLISHED} < set(COMBINATIONS)
    assert len(COMBINATIONS) == len(OPERATORS) * (len(OPERATORS) + 1) // 2
