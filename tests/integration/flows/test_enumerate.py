"""`autotailor enumerate`: nothing is trained, and its JSON has the counts and every operator."""

from math import prod
from pathlib import Path
from typing import Any

import pytest

import tailor_ir
from tailor_ir import OperatorFeature
from tests.support.flows.fixtures import Command

RESOLUTIONS = tuple(range(16, 33, 4))


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The output folder of an enumeration in a fresh one, and its JSON."""
    output = tmp_path_factory.mktemp("enumerate") / "out"
    return output, Command(output)("enumerate", "space.resolution={from:16,to:32,step:4}")


def test_enumerating_trains_nothing(untrained: tuple[Path, dict[str, Any]]) -> None:
    output, _ = untrained
    assert {folder.name for folder in (output / "stages").iterdir()} == {"compile", "enumerate"}


def test_the_json_has_the_counts_as_integers(untrained: tuple[Path, dict[str, Any]]) -> None:
    output, result = untrained
    (compiled,) = (output / "stages" / "compile").glob("*/supernet")
    space = tailor_ir.load(compiled).space
    assert space.variables[0].choices == RESOLUTIONS
    assert result["modifications"] == sum(len(variable.choices) for variable in space.variables)
    assert result["codes"] == prod(len(variable.choices) for variable in space.variables)
    assert result["distinct"] == space.distinct
    assert result["enumerate_s"] > 0
    assert result["unique_operators"] == len(result["operators"]) == len({row["digest"] for row in result["operators"]})


def test_every_operator_is_in_the_subnet_of_its_witness(untrained: tuple[Path, dict[str, Any]]) -> None:
    output, result = untrained
    (compiled,) = (output / "stages" / "compile").glob("*/supernet")
    net = tailor_ir.load(compiled)
    assert result["operators"]
    for row in result["operators"]:
        feature = OperatorFeature.from_json(row["feature"])
        assert feature.digest == row["digest"]
        assert feature in net.operators(row["witness"])


@pytest.mark.long
def test_training_changes_no_operator(finished: dict[str, Any], command: Command) -> None:
    found = command("enumerate")
    trained = tailor_ir.load(Path(command("finetune")["stages"][0]["folder"]) / "supernet")
    assert {row["digest"] for row in found["operators"]} == {feature.digest for feature in trained.unique_operators()}
    (again,) = command("enumerate")["stages"]
    assert again["cached"]
