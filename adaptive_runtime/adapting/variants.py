"""The table of variants that a bundle has: its SubNets, whole, up to each exit, and by thresholds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import pi, sqrt
from typing import NamedTuple, Self

import numpy as np

from adaptive_runtime.bundles import BundledExit, BundledSubNet, BundleManifest, EarlyAnswers
from adaptive_runtime.chains import ChainFormat
from adaptive_runtime.choice import VariantTable
from adaptive_runtime.choice.inputs import deviations
from adaptive_runtime.pool import Variant
from adaptive_runtime.slowdown import octaves_V

UNKNOWN_ERROR = 0.25
"""Deviation of a predicted latency of which nobody knows how far it is off, relative."""
DEVIATION_OF_MEAN_ERROR = sqrt(pi / 2)
"""Standard deviation of a normal distribution, as a multiple of the mean distance from its middle."""
P99 = 0.99


class _Row(NamedTuple):
    variant: Variant
    accuracy: float
    latency_ms: float
    latency_error: float
    energy_mj: float | None
    memory_mib: float


@dataclass(frozen=True, slots=True)
class BundleVariants:
    """The variants of a bundle in one format, in the order of the table's rows.

    accuracy: of the first split; of thresholds by what they lose on test images. latency_ms: as measured, else predicted; of an
    exit that was not timed by its share of the MACs. latency_error: 0 where it was measured; by thresholds it is the spread
    over samples. energy_mj: of an exit by its share of the latency. memory_mib: of the whole SubNet. Exits whose accuracy is
    unknown are left out. load_class: by octaves of latency.
    """

    variants: tuple[Variant, ...]
    table: VariantTable

    @classmethod
    def of(cls, manifest: BundleManifest, form: ChainFormat) -> Self:
        """All that the manifest tells of one format, which has a SubNet at least."""
        predicted = manifest.predicted_error
        error = UNKNOWN_ERROR if predicted is None else predicted * DEVIATION_OF_MEAN_ERROR
        measured = manifest.runs[form].measured
        rows = [
            row
            for subnet in manifest.subnets
            if form in subnet.nets
            for row in _rows(subnet, form, _error(subnet, error, measured=measured))
        ]
        energy_mj = tuple(row.energy_mj for row in rows if row.energy_mj is not None)
        table = VariantTable(
            names=tuple(name_of(row.variant) for row in rows),
            accuracy=tuple(row.accuracy for row in rows),
            latency_ms=tuple(row.latency_ms for row in rows),
            latency_error=tuple(row.latency_error for row in rows),
            energy_mj=energy_mj if len(energy_mj) == len(rows) else None,
            memory_mib=tuple(row.memory_mib for row in rows),
            load_class=load_classes([row.latency_ms for row in rows]),
        )
        return cls(tuple(row.variant for row in rows), table)


def name_of(variant: Variant) -> str:
    """A variant in the table and in reasons."""
    if variant.early:
        return f"{variant.digest} by thresholds"
    return variant.digest if variant.exit is None else f"{variant.digest} up to {variant.exit}"


def load_classes(latency_ms: Sequence[float]) -> tuple[int, ...]:
    """A class for each octave of latency: requests of like length scatter alike under load."""
    octave_V = octaves_V(np.array(latency_ms))
    return tuple((octave_V - octave_V.min()).tolist())


def _error(subnet: BundledSubNet, predicted: float, *, measured: bool) -> float:
    if not measured:
        return max(predicted, UNKNOWN_ERROR)
    return predicted if subnet.latency is None else 0.0


def _rows(subnet: BundledSubNet, form: ChainFormat, error: float) -> Iterator[_Row]:
    memory_mib = subnet.memory.weights_mib + subnet.memory.activations_mib
    whole_ms = subnet.likely_ms
    split = next(iter(subnet.accuracy), "")
    yield _Row(Variant(subnet.digest), subnet.first_accuracy, whole_ms, error, subnet.energy_mj, memory_mib)
    if subnet.nets[form].chain is None:
        return
    for exit in subnet.exits:
        accuracy = (exit.accuracy or {}).get(split)
        if accuracy is not None:
            latency_ms, exit_error = _until(exit, subnet, error)
            energy_mj = None if subnet.energy_mj is None else subnet.energy_mj * latency_ms / whole_ms
            yield _Row(Variant(subnet.digest, exit.exit), accuracy, latency_ms, exit_error, energy_mj, memory_mib)
    if subnet.thresholds is not None and subnet.early is not None:
        early = subnet.early
        energy_mj = None if subnet.energy_mj is None else subnet.energy_mj * early.expected_ms / whole_ms
        accuracy, spread = _early_accuracy(early, subnet), _spread(early)
        yield _Row(Variant(subnet.digest, early=True), accuracy, early.expected_ms, spread, energy_mj, memory_mib)


def _until(exit: BundledExit, subnet: BundledSubNet, error: float) -> tuple[float, float]:
    """Latency [ms] up to an exit, and its error."""
    if exit.latency_ms is not None:
        return exit.latency_ms, error if subnet.latency is None else min(error, UNKNOWN_ERROR)
    share = exit.macs / max(1, subnet.exits[-1].macs)
    return subnet.likely_ms * share, max(error, UNKNOWN_ERROR)


def _early_accuracy(early: EarlyAnswers, subnet: BundledSubNet) -> float:
    """On the first split, if thresholds lose there what they lose on test images."""
    lost = subnet.accuracy.get("test", early.accuracy) - early.accuracy
    return min(1.0, max(0.0, subnet.first_accuracy - lost))


def _spread(early: EarlyAnswers) -> float:
    return max(0.0, early.p99_ms / early.expected_ms - 1) / deviations(P99)
