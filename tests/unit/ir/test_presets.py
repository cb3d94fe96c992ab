"""The seven SuperNets of AutoTailor's Table 3 as presets: their counts, through the path that the command line takes."""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import pytest
import torch

import tailor_ir
from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from tasks.data.samples import image_form
from tasks.evaluation.models import create
from tests.support import long

R25 = tuple(range(128, 225, 4))
CLASSES = 10


@dataclass(frozen=True)
class Row:
    """One row of the table: kind of variable -> (number of variables, choices of each)."""

    modifications: int
    codes: int
    variables: dict[str, list[tuple[int, tuple[float, ...]]]]


TABLE = {
    "resnet50": Row(
        100,
        25 * 3**5 * 3**4 * 3**16,
        {
            "resolution": [(1, R25)],
            "width_mult": [(5, (0.65, 0.8, 1))],
            "depth": [(4, (-2, -1, 0))],
            "expand_ratio": [(16, (0.15, 0.2, 0.25))],
        },
    ),
    "mobilenetv2": Row(
        85,
        25 * 3**4 * 3**16,
        {"resolution": [(1, R25)], "depth": [(4, (-2, -1, 0))], "expand_ratio": [(16, (3, 4, 6))]},
    ),
    "mobilenetv3": Row(
        160,
        25 * 9**20 * 3**5,
        {
            "resolution": [(1, R25)],
            "depth": [(5, (-2, -1, 0))],
            "kernel_size": [(20, (3, 5, 7))],
            "expand_ratio": [(20, (3, 4, 6))],
        },
    ),
    "proxylessnet": Row(
        166,
        25 * 9**21 * 3**5,
        {
            "resolution": [(1, R25)],
            "depth": [(5, (-2, -1, 0))],
            "kernel_size": [(21, (3, 5, 7))],
            "expand_ratio": [(21, (3, 4, 6))],
        },
    ),
    # the table has six widths, 163 modifications: two of them change nothing, since identity shortcuts tie input to output,
    # and a variable that changes nothing does not exist here
    "convnext_tiny": Row(
        163 - 2 * 3,
        25 * 3**4 * 3**4 * 9**18,
        {
            "resolution": [(1, R25)],
            "width_mult": [(4, (0.65, 0.8, 1))],
            "depth": [(4, (-2, -1, 0))],
            "kernel_size": [(18, (3, 5, 7))],
            "expand_ratio": [(18, (2, 3, 4))],
        },
    ),
    "vit_base": Row(
        103,
        7 * 12 * 7**12,
        {
            "resolution": [(1, tuple(range(128, 225, 16)))],
            "depth": [(1, tuple(range(-11, 1)))],
            "expand_ratio": [(12, (1, 1.5, 2, 2.5, 3, 3.5, 4))],
        },
    ),
    "levit": Row(
        324,
        33 * 6**6 * 8**15 * 2**2 * 12**23,
        {
            "resolution": [(1, tuple(range(128, 257, 4)))],
            "depth": [(6, tuple(range(-5, 1)))],
            "kernel_size": [(17, (3, 5))],
            "expand_ratio": [(15, (3, 4, 5, 6)), (23, (2, 3, 4, 5))],
            "v_scale": [(23, (2, 3, 4))],
        },
    ),
}


def _config(preset: str) -> RunConfig:
    return validate(RunConfig, compose_config("config", [f"+preset={preset}"]))


@cache
def _compiled(preset: str) -> tailor_ir.SuperNet:
    """The SuperNet of a preset, from random weights."""
    config = _config(preset)
    network = create(config.model, CLASSES, image_form(config.data.channels, config.data.resolution))
    assert isinstance(network, torch.nn.Module)
    example_BCHW = torch.zeros(1, config.data.channels, config.data.resolution, config.data.resolution)
    return tailor_ir.compile(network.eval(), example_BCHW, config.space)


def _variables(space: Any) -> dict[str, Counter[tuple[float, ...]]]:
    found: dict[str, Counter[tuple[float, ...]]] = {}
    for variable in space.variables:
        found.setdefault(variable.kind, Counter())[variable.choices] += 1
    return found


LARGE = ("vit_base",)
CASES = [long(preset) if preset in LARGE else preset for preset in TABLE]


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_the_table_agrees_with_itself(row: Row) -> None:
    variables = [entry for entries in row.variables.values() for entry in entries]
    assert sum(count * len(choices) for count, choices in variables) == row.modifications
    assert prod(len(choices) ** count for count, choices in variables) == row.codes


@pytest.mark.few("mobilenetv2")
@pytest.mark.parametrize("preset", CASES)
def test_a_preset_has_the_variables_and_choices_of_the_table(preset: str) -> None:
    wanted = {
        kind: Counter({choices: count for count, choices in entries})
        for kind, entries in TABLE[preset].variables.items()
    }
    assert _variables(_compiled(preset).space) == wanted


@pytest.mark.few("mobilenetv2")
@pytest.mark.parametrize("preset", CASES)
def test_a_preset_counts_what_the_table_counts(preset: str) -> None:
    space = _compiled(preset).space
    assert space.modifications == TABLE[preset].modifications
    assert space.codes == TABLE[preset].codes
    assert 0 < space.distinct <= space.codes


@pytest.mark.few("mobilenetv2")
@pytest.mark.parametrize("preset", CASES)
def test_a_preset_drops_no_choice(preset: str) -> None:
    assert _compiled(preset).space.dropped == ()


@pytest.mark.long
def test_a_preset_of_once_for_all_takes_learned_transforms_of_its_kernels() -> None:
    config = validate(RunConfig, compose_config("config", ["+preset=mobilenetv3", "compile.kernel_transform=true"]))
    network = create(config.model, CLASSES, image_form(config.data.channels, config.data.resolution))
    assert isinstance(network, torch.nn.Module)
    example_BCHW = torch.zeros(1, config.data.channels, config.data.resolution, config.data.resolution)
    transform = config.compile.kernel_transform
    net = tailor_ir.compile(network.eval(), example_BCHW, config.space, kernel_transform=transform)
    assert net.space == _compiled("mobilenetv3").space
    assert [tuple(matrix.shape) for matrix in net.kernel_matrices] == [(25, 25), (9, 9)] * 20
    assert net.unique_operators().keys() == _compiled("mobilenetv3").unique_operators().keys()
