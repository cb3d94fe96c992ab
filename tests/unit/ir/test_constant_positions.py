"""Reading and writing of files at positions that are constant, or beside numbers that count samples."""

import pytest

from tests.fuzzing.checks import Outcome, examine
from tests.fuzzing.networks import Network, Step

KERNEL = {"w": (8, 3, 3, 3)}
CONVOLUTION = Step("Conv", "x w", "u", {"pads": [1, 1, 1, 1]})
COUNTED = (
    Step("Shape", "x", "count", {"start": 0, "end": 1}),
    Step("Squeeze", "count", "number"),
    Step("Range", "zero number one", "samples"),
    Step("Unsqueeze", "samples last", "column"),
    Step("Shape", "places", "many"),
    Step("Concat", "count many", "grid", {"axis": 0}),
    Step("Expand", "column grid", "wide"),
    Step("Expand", "places grid", "listed"),
    Step("Unsqueeze", "wide last", "first"),
    Step("Unsqueeze", "listed last", "second"),
    Step("Concat", "first second", "positions", {"axis": -1}),
)
"""Each sample beside each of the places: (N, places, 2)."""
COUNTS = {"zero": 0, "one": 1, "last": [-1]}


def holds(steps: tuple[Step, ...], constants: dict[str, object], opset: int = 18) -> Outcome:
    """A convolution of an image, steps from `u` to `y`: it compiles without a fault."""
    network = Network(
        inputs={"x": ("float32", ("N", 3, 6, 5))},
        steps=(CONVOLUTION, *steps),
        outputs=("y",),
        weights=KERNEL,
        constants=constants,
        opset=opset,
    )
    outcome = examine(network.needed())
    assert not outcome.faults, outcome.faults
    assert not outcome.refused
    return outcome


@pytest.mark.parametrize("places", [[*range(8)], [5, 0, -1, 5]], ids=["all", "some"])
def test_channels_are_read_by_sample_and_place(places: list[int]) -> None:
    outcome = holds((*COUNTED, Step("GatherND", "u positions", "y")), {**COUNTS, "places": places})
    assert "GatherND" not in outcome.operators


def test_a_mask_is_read_by_sample_and_place() -> None:
    """Source: masks of transformers, as torch's default exporter writes them."""
    steps = (
        *COUNTED,
        Step("GatherND", "mask positions", "read"),
        Step("Where", "read x low", "scores"),
        Step("Softmax", "scores", "share"),
        Step("MatMul", "share w", "y"),
    )
    network = Network(
        inputs={"x": ("float32", ("N", 6)), "mask": ("bool", ("N", 6))},
        steps=steps,
        outputs=("y",),
        weights={"w": (6, 8)},
        constants={**COUNTS, "places": [*range(6)], "low": -1e4},
    )
    outcome = examine(network)
    assert not outcome.faults, outcome.faults
    assert not outcome.refused


def test_places_are_read_along_axes_that_were_turned_to_the_front() -> None:
    steps = (
        Step("Transpose", "u", "turned", {"perm": [2, 3, 0, 1]}),
        Step("GatherND", "turned places", "read"),
        Step("Transpose", "read", "y", {"perm": [1, 2, 0]}),
    )
    holds(steps, {"places": [[0, 1], [-1, 4], [3, -2]]})


def test_places_are_read_in_each_sample() -> None:
    """The samples are axes that data and positions share."""
    steps = (
        Step("Shape", "x", "count", {"start": 0, "end": 1}),
        Step("Concat", "count three two", "grid", {"axis": 0}),
        Step("Expand", "places grid", "positions"),
        Step("GatherND", "u positions", "y", {"batch_dims": 1}),
    )
    holds(steps, {"three": [3], "two": [2], "places": [[7, 0], [0, 5], [2, -1]]})


@pytest.mark.parametrize("back", [0, 5], ids=["from the beginning", "from the end"])
def test_computed_places_are_read_in_each_sample(back: int) -> None:
    """Source: the last token of each text, as torch's default exporter writes it."""
    steps = (
        Step("ReduceMean", "u", "means", {"axes": [1, 3], "keepdims": 0}),
        Step("ArgMax", "means", "largest", {"axis": 1}),
        Step("Sub", "largest back", "places"),
        Step("Shape", "x", "count", {"start": 0, "end": 1}),
        Step("Squeeze", "count", "number"),
        Step("Range", "zero number one", "samples"),
        Step("Unsqueeze", "samples last", "column"),
        Step("Concat", "column places", "positions", {"axis": 1}),
        Step("Transpose", "u", "rows", {"perm": [0, 2, 1, 3]}),
        Step("GatherND", "rows positions", "y"),
    )
    holds(steps, {**COUNTS, "back": back}, opset=17)


@pytest.mark.parametrize(("reduction", "opset"), [("add", 17), ("mul", 17), ("mul", 18), ("max", 18), ("min", 18)])
def test_values_are_joined_at_places_that_repeat(reduction: str, opset: int) -> None:
    turn = {"perm": [2, 0, 1, 3]}
    steps = (
        Step("Transpose", "u", "turned", turn),
        Step("Gather", "turned source", "values"),
        Step("ScatterND", "turned places values", "written", {"reduction": reduction}),
        Step("Transpose", "written", "y", {"perm": [1, 2, 0, 3]}),
    )
    constants = {"source": [5, 1, 2, 4], "places": [[3], [0], [-3], [3]]}
    holds(steps, constants, opset)
