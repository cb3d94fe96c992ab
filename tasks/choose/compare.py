"""SubNets in numbers: one by its stages, two layer by layer."""

import math
from collections.abc import Mapping
from typing import Any

from tasks.layers import Layers, Operator


def architecture(layers: Layers, config: Mapping[str, Any]) -> dict[str, Any]:
    """Choices that belong to no stage, the sections with their predicted latencies [ms], and every layer."""
    return {
        "offset_ms": layers.offset_ms,
        "elsewhere": layers.elsewhere(config),
        "sections": [section.to_json() for section in layers.sections(config)],
        "layers": [
            {"layer": number, "place": layers.places[number].name, **operator.to_json()}
            for number, operator in layers.of(config).items()
        ],
    }


def side_by_side(layers: Layers, first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each layer that one of two SubNets has, in the order of the largest one.

    `first`, `second`: the operator there, None where the SubNet has skipped its block. `difference_ms`: second less first,
    a skipped layer takes 0; None where an operator has no latency.
    """
    left, right = layers.of(first), layers.of(second)
    rows = []
    for number in sorted(left.keys() | right.keys()):
        operators = left.get(number), right.get(number)
        difference_ms = _ms(operators[1]) - _ms(operators[0])
        rows.append(
            {
                "layer": number,
                "section": layers.places[number].section,
                "place": layers.places[number].name,
                **{
                    side: operator and operator.to_json()
                    for side, operator in zip(("first", "second"), operators, strict=True)
                },
                "difference_ms": None if math.isnan(difference_ms) else difference_ms,
            }
        )
    return rows


def _ms(operator: Operator | None) -> float:
    if operator is None:
        return 0.0
    return math.nan if operator.predicted_ms is None else operator.predicted_ms
