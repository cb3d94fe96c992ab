"""Rules for which implementations of an operator are worth measuring, learned from operators measured with all of them.

Operators that differ only in their sizes form a class. An implementation is worth measuring if it was faster than the runtime's
own choice on the measured operators of the class with the nearest sizes. In a class without measured operators, every
implementation is worth measuring.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from solvers.tables import Values
from tailor_ir import OperatorFeature

NEIGHBOURS = 3
WORTH = 0.98
"""Largest expected ratio of an implementation's latency to that of the runtime's own choice at which measuring is worth it."""


@dataclass(frozen=True, slots=True)
class Example:
    """An operator whose latency by an implementation is `ratio` times its latency by the runtime's own choice."""

    feature: OperatorFeature
    implementation: str
    ratio: float


@dataclass(frozen=True, slots=True)
class _Known:
    """Examples of one class and implementation: logarithms of sizes (n, 3), and of ratios (n,)."""

    sizes: Values
    log_ratios: Values

    def ratio(self, sizes: Values) -> float:
        """Geometric mean of the ratios of the nearest examples."""
        distances = np.abs(self.sizes - sizes).sum(axis=1)
        nearest = np.argsort(distances, kind="stable")[:NEIGHBOURS]
        return float(np.exp(self.log_ratios[nearest].mean()))


class ImplementationRules:
    """Rules for all operators, learned from a device's examples."""

    def __init__(self, examples: Sequence[Example]) -> None:
        groups: dict[tuple[Hashable, str], list[Example]] = {}
        for one in examples:
            groups.setdefault((_class_of(one.feature), one.implementation), []).append(one)
        self._known: Mapping[tuple[Hashable, str], _Known] = {
            key: _Known(
                np.array([_sizes(one.feature) for one in found]), np.log(np.array([one.ratio for one in found]))
            )
            for key, found in groups.items()
        }

    def ratio(self, feature: OperatorFeature, implementation: str) -> float:
        """The expected latency of an operator by an implementation, over that by the runtime's own choice; 0 if unknown."""
        known = self._known.get((_class_of(feature), implementation))
        return 0.0 if known is None else known.ratio(_sizes(feature))

    def worth_measuring(self, feature: OperatorFeature, candidates: Sequence[str]) -> tuple[str, ...]:
        """The candidates that are likely faster than the runtime's own choice, the fastest first."""
        ratios = {name: self.ratio(feature, name) for name in candidates}
        return tuple(sorted((name for name in candidates if ratios[name] <= WORTH), key=lambda name: ratios[name]))


def _class_of(feature: OperatorFeature) -> Hashable:
    """Everything that decides the kernel, except the sizes."""
    attributes = {name: value for name, value in feature.attributes if name not in ("group", "pads")}
    groups = dict(feature.attributes).get("group", 1)
    return feature.operator, tuple(sorted(attributes.items(), key=str)), groups == 1


def _sizes(feature: OperatorFeature) -> Values:
    """Logarithms (3,) of the channels read, of the channels written, and of the positions."""
    read, written = feature.input_shapes[0], feature.output_shapes[0]
    positions = float(np.prod(written[2:])) if len(written) > 2 else 1.0
    return np.log2(np.array([read[1], written[1], positions], np.float64))
