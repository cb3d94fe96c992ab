"""The table of a bundle's variants: its SubNets in each format, whole, up to each exit, and with thresholds.

Interfaces of SubNets over several devices, as a model uses them; `adaptive_runtime.offload.placed` has the classes.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import pi, sqrt
from typing import NamedTuple, Protocol, Self

import numpy as np

from adaptive_runtime.base.numbers import clipped_share
from adaptive_runtime.bundle.bundles import BundledExit, BundledSubNet, BundleFormat, BundleManifest, EarlyAnswers
from adaptive_runtime.policy import LoadFactors, VariantTable
from adaptive_runtime.policy.lookup import deviations
from adaptive_runtime.pool import Variant
from adaptive_runtime.state.factors import octaves_V

UNKNOWN_ERROR = 0.25
"""Relative deviation assumed for a predicted latency whose error is unknown."""
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
    """The variants of a bundle in some formats, in the order of the table's rows.

    accuracy: on the first split; with thresholds, reduced by their loss on test images. latency_ms: measured, else predicted;
    for an exit that was not timed, its share of the MACs. latency_error: 0 if the latency was measured; with thresholds, the
    spread over samples. energy_mj: for an exit, its share of the latency. memory_mib: of the whole SubNet. Exits with unknown
    accuracy are left out. load_class: octaves of latency, the same in all formats; SubNets over devices have a class of their
    own.

    A format with its own figures uses them: exits lose as much accuracy and slow down by the same factor as the whole SubNet in
    that format, and unknown energy follows the latency. Over devices a SubNet computes in the bundle's own format, whatever the
    formats are. It has the accuracy and memory of the SubNet on the coordinator, which is the fallback, or the accuracy with
    coded values; unknown energy is taken from the SubNet on the coordinator.
    """

    variants: tuple[Variant, ...]
    table: VariantTable

    @classmethod
    def of(cls, manifest: BundleManifest, *forms: BundleFormat, placed: Collection[str] = ()) -> Self:
        """All variants of the manifest in some formats, which contain at least one SubNet.

        placed: SubNets over devices, too.
        """
        predicted = manifest.predicted_error
        error = UNKNOWN_ERROR if predicted is None else predicted * DEVIATION_OF_MEAN_ERROR
        rows = [
            row
            for subnet in manifest.subnets
            for at, form in enumerate(subnet.formats_among(forms))
            for row in _rows(
                subnet, form, form if at else None, _error(subnet, form, error, measured=manifest.runs[form].measured)
            )
        ]
        load_class = load_classes([row.latency_ms for row in rows])
        served = (subnet for subnet in manifest.subnets if subnet.formats_among(forms))
        over = [_over_devices(subnet, manifest.own_format) for subnet in served if subnet.digest in placed]
        rows += over
        energy_mj = tuple(row.energy_mj for row in rows if row.energy_mj is not None)
        table = VariantTable(
            names=tuple(name_of(row.variant) for row in rows),
            accuracy=tuple(row.accuracy for row in rows),
            latency_ms=tuple(row.latency_ms for row in rows),
            latency_error=tuple(row.latency_error for row in rows),
            energy_mj=energy_mj if len(energy_mj) == len(rows) else None,
            memory_mib=tuple(row.memory_mib for row in rows),
            load_class=load_class + (max(load_class) + 1,) * len(over),
        )
        return cls(tuple(row.variant for row in rows), table)

    @property
    def coordinator_of(self) -> dict[int, int]:
        """Maps each row over devices to the row of the same SubNet on the coordinator."""
        row_of = {variant: row for row, variant in enumerate(self.variants)}
        return {row: row_of[Variant(one.digest)] for one, row in row_of.items() if one.placed}


def name_of(variant: Variant) -> str:
    """Name of a variant in the table and in reasons."""
    if variant.early:
        return f"{variant.files} by thresholds"
    return variant.files if variant.exit is None else f"{variant.files} up to {variant.exit}"


def load_classes(latency_ms: Sequence[float]) -> tuple[int, ...]:
    """A class for each octave of latency: requests of similar length scatter alike under load."""
    octave_V = octaves_V(np.array(latency_ms))
    return tuple((octave_V - octave_V.min()).tolist())


def _error(subnet: BundledSubNet, form: BundleFormat, predicted: float, *, measured: bool) -> float:
    own = subnet.nets[form].figures
    if own is not None:
        return own.latency_error
    if not measured:
        return max(predicted, UNKNOWN_ERROR)
    return predicted if subnet.latency is None else 0.0


def _rows(subnet: BundledSubNet, form: BundleFormat, named: BundleFormat | None, error: float) -> Iterator[_Row]:
    """Rows of one SubNet in one format. named: the format in the names of variants."""
    known, whole = subnet.figures_of(form), Variant(subnet.digest, form=named)
    whole_ms, memory_mib, has_own = known.latency_ms, known.memory.total_mib, subnet.nets[form].figures is not None
    slower = whole_ms / subnet.likely_ms if has_own else 1.0
    energy_mj = known.energy_mj
    if energy_mj is None and subnet.energy_mj is not None:
        energy_mj = subnet.energy_mj * slower

    def energy_of(latency_ms: float) -> float | None:
        return None if energy_mj is None else energy_mj * latency_ms / whole_ms

    yield _Row(whole, known.first_accuracy, whole_ms, error, energy_mj, memory_mib)
    if subnet.nets[form].chain is None:
        return
    split, lost = next(iter(subnet.accuracy), ""), subnet.first_accuracy - known.first_accuracy
    for exit in subnet.exits:
        accuracy = (exit.accuracy or {}).get(split)
        if accuracy is not None:
            until_ms, exit_error = _until(exit, subnet, error)
            exit_ms = until_ms * slower
            exit_error = max(exit_error, UNKNOWN_ERROR) if has_own else exit_error
            left = clipped_share(accuracy - lost)
            yield _Row(whole._replace(exit=exit.exit), left, exit_ms, exit_error, energy_of(exit_ms), memory_mib)
    if subnet.thresholds is not None and subnet.early is not None:
        early, early_ms = subnet.early, subnet.early.expected_ms * slower
        left = clipped_share(_early_accuracy(early, subnet) - lost)
        spread = spread_of(early.expected_ms, early.p99_ms)
        yield _Row(whole._replace(early=True), left, early_ms, spread, energy_of(early_ms), memory_mib)


def _over_devices(subnet: BundledSubNet, form: BundleFormat) -> _Row:
    """The row of a SubNet over devices. form: the format of the segments on the coordinator."""
    placement = subnet.placement
    assert placement is not None, "it was opened"
    on_coordinator = next(_rows(subnet, form, None, 0.0))
    energy_mj = on_coordinator.energy_mj
    if energy_mj is not None and placement.sent_mj is not None:
        energy_mj = energy_mj * placement.coordinator_share + placement.sent_mj
    return on_coordinator._replace(
        variant=Variant(subnet.digest, placed=True),
        accuracy=on_coordinator.accuracy
        if placement.accuracy is None
        else min(on_coordinator.accuracy, placement.accuracy),
        latency_ms=placement.latency_ms,
        latency_error=placement.latency_error,
        energy_mj=energy_mj,
    )


def _until(exit: BundledExit, subnet: BundledSubNet, error: float) -> tuple[float, float]:
    """Latency [ms] up to an exit and its relative error, in the format in which the SubNet was measured."""
    if exit.latency_ms is not None:
        return exit.latency_ms, error if subnet.latency is None else min(error, UNKNOWN_ERROR)
    share = exit.macs / max(1, subnet.exits[-1].macs)
    return subnet.likely_ms * share, max(error, UNKNOWN_ERROR)


def _early_accuracy(early: EarlyAnswers, subnet: BundledSubNet) -> float:
    """Accuracy on the first split, assuming that thresholds lose as much there as on test images."""
    lost = subnet.accuracy.get("test", early.accuracy) - early.accuracy
    return clipped_share(subnet.first_accuracy - lost)


def spread_of(expected_ms: float, p99_ms: float) -> float:
    """Relative deviation of latencies over samples, from their mean and their 99th percentile."""
    return max(0.0, p99_ms / expected_ms - 1) / deviations(P99)


class RowsOverDevices(Protocol):
    """Current state of the table rows over several devices."""

    def now(self, factors: LoadFactors) -> tuple[LoadFactors, frozenset[int], Mapping[int, str]]:
        """Factors with those of these rows, rows without an available device, and descriptions of rows."""
        ...

    def renew(self, factors: LoadFactors, spread: float | None = None) -> object:
        """Compute the rows before they are asked for. spread: factor on their deviations from now on; None: unchanged."""
        ...


class SubNetsOverDevices(Protocol):
    """SubNets of a bundle that may run on several devices. Close them after use."""

    def rows(self, table: VariantTable, digests: Mapping[int, str], coordinator: Mapping[int, int]) -> RowsOverDevices:
        """Rows of a table over devices. digests: of their SubNets; coordinator: the rows of these on the coordinator."""
        ...

    def close(self) -> None: ...
