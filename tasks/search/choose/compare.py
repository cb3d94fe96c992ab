"""SubNets in numbers: one SubNet by its stages, two SubNets layer by layer."""

import math
from collections.abc import Mapping
from typing import Any, TypedDict

from tailor_ir import Choice
from tasks.prediction.layers import LayerRow, Layers, SectionRow, SubNetLayer
from tasks.search.results import SubNetRow


class PlacedLayer(LayerRow):
    """A layer with its name and its number among the layers of the largest SubNet."""

    layer: int
    place: str


class ArchitectureRows(TypedDict):
    """Sections and layers as JSON with their predicted latencies [ms]. elsewhere: choices that belong to no section."""

    offset_ms: float
    elsewhere: dict[str, Choice]
    sections: list[SectionRow]
    layers: list[PlacedLayer]


class ComparedLayer(TypedDict):
    """A layer of two SubNets. `first`, `second`: its operator; None if the SubNet skips the layer's block.

    `difference_ms`: second minus first, with 0 for a skipped layer; None if an operator has no latency.
    """

    layer: int
    section: str
    place: str
    first: LayerRow | None
    second: LayerRow | None
    difference_ms: float | None


class ComparedSubNet(SubNetRow):
    """One side of a comparison. `word`: its name in the request. `elsewhere`: choices that belong to no section."""

    word: str
    elsewhere: dict[str, Choice]


class ComparedSubNets(TypedDict):
    """Two SubNets side by side on one device. `uncertainty`: `tasks.base.schemas.accuracy.Uncertainty`, of their accuracies."""

    device: str
    uncertainty: dict[str, Any]
    first: ComparedSubNet
    second: ComparedSubNet
    offset_ms: float
    layers: list[ComparedLayer]


def architecture(layers: Layers, config: Mapping[str, Any]) -> ArchitectureRows:
    """The architecture of one SubNet, with its predicted latencies [ms]."""
    return {
        "offset_ms": layers.offset_ms,
        "elsewhere": layers.elsewhere(config),
        "sections": [section.to_json() for section in layers.sections(config)],
        "layers": [
            {"layer": number, "place": layers.places[number].name, **operator.to_json()}
            for number, operator in layers.of(config).items()
        ],
    }


def side_by_side(layers: Layers, first: Mapping[str, Any], second: Mapping[str, Any]) -> list[ComparedLayer]:
    """The layers that at least one of two SubNets has, in the order of the largest SubNet."""
    left, right = layers.of(first), layers.of(second)
    rows: list[ComparedLayer] = []
    for number in sorted(left.keys() | right.keys()):
        operators = left.get(number), right.get(number)
        difference_ms = _ms(operators[1]) - _ms(operators[0])
        rows.append(
            {
                "layer": number,
                "section": layers.places[number].section,
                "place": layers.places[number].name,
                "first": None if operators[0] is None else operators[0].to_json(),
                "second": None if operators[1] is None else operators[1].to_json(),
                "difference_ms": None if math.isnan(difference_ms) else difference_ms,
            }
        )
    return rows


def _ms(operator: SubNetLayer | None) -> float:
    if operator is None:
        return 0.0
    return math.nan if operator.predicted_ms is None else operator.predicted_ms
