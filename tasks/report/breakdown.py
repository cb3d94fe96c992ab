"""The predicted latency of each shown SubNet, layer by layer; every different operator is stored once."""

from collections.abc import Mapping
from typing import Any

from tasks.prediction.layers import Layers, SubNetLayer

Row = dict[str, Any]


def breakdown(layers: Layers, configs: Mapping[str, Mapping[str, Any]]) -> Row:
    """SubNets (digest -> config) as pairs of a layer's and an operator's number; predicted_ms of an operator [ms].
    The predicted latency of a SubNet is `offset_ms` plus those of its operators.
    """
    numbers: dict[SubNetLayer, int] = {}
    subnets = {}
    for digest, config in configs.items():
        subnets[digest] = {
            "elsewhere": layers.elsewhere(config),
            "sections": [section.to_json() for section in layers.sections(config)],
            "architecture": layers.architecture(config),
            "layers": [
                [number, numbers.setdefault(operator, len(numbers))] for number, operator in layers.of(config).items()
            ],
        }
    return {
        "offset_ms": layers.offset_ms,
        "layers": [{"place": place.name, "section": place.section} for place in layers.places],
        "operators": [operator.to_json() for operator in numbers],
        "subnets": subnets,
    }
