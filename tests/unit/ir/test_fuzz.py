"""Random networks of all operators compile and hold what every network holds, or are refused in one line."""

import pytest

from tailor_ir.ops import OPERATORS
from tests.fuzzing.campaign import run_seed
from tests.fuzzing.drawing import draw
from tests.fuzzing.networks import Network, Step
from tests.fuzzing.recipes import RECIPES
from tests.fuzzing.shrinking import shrink

COUNT, CHUNK, MODULES = 200, 10, 6


def faults_of(seeds: range, modules: bool = False) -> list[str]:
    """A line for each fault, with its seed."""
    results = [run_seed(seed, modules) for seed in seeds]
    assert sum(result.state == "compiled" for result in results) >= len(results) // 5, results
    return [f"seed {result.seed}: {result.kind}\n{result.text}" for result in results if result.state == "fault"]


@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_random_graphs_have_no_fault(first: int) -> None:
    assert not faults_of(range(first, first + CHUNK))


@pytest.mark.long
def test_random_modules_have_no_fault() -> None:
    assert not faults_of(range(MODULES), modules=True)


def test_every_operator_can_be_drawn() -> None:
    given = {name for recipe in RECIPES for name in recipe.gives}
    assert not OPERATORS.keys() - given, "give them a recipe in tests/fuzzing/recipes"
    assert len(RECIPES) <= COUNT, "each recipe has a seed, by its number"


def test_a_seed_gives_the_same_network_everywhere() -> None:
    for seed in range(5):
        network = draw(seed)
        assert draw(seed) == network
        again = eval(network.text(), {"Network": Network, "Step": Step})
        assert again.model().SerializeToString() == network.model().SerializeToString()


def test_a_fault_is_shrunk_to_what_it_needs() -> None:
    large = next(network for network in map(draw, range(500)) if "Softmax" in network.operators())
    small = shrink(large, lambda network: "Softmax" in network.operators(), seconds=10.0)
    assert [step.op for step in small.steps] == ["Softmax"]
    assert len(small.inputs) == len(small.outputs) == 1
