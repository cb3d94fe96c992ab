"""A device of the run as one level: the format of its files, and the predictors of SubNets' costs in this format.

Legend: n SubNets, V variables.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.bundle.bundles import BundleFormat
from adaptive_runtime.model.adapting.variants import DEVIATION_OF_MEAN_ERROR, UNKNOWN_ERROR
from adaptive_runtime.state.slowdown.common import SIGMA_OF_MEDIAN
from profiling_agents.messages import MIB
from solvers.tables import Codes, Values
from tailor_ir import SuperNet
from tailor_ir.memory.layouts import Rules
from tasks.base.schemas.accuracy import SENSITIVITIES_FILE, AccuracyValidation
from tasks.base.schemas.accuracy import VALIDATION_FILE as ACCURACY_VALIDATION_FILE
from tasks.base.schemas.latency import VALIDATION_FILE as LATENCY_VALIDATION_FILE
from tasks.base.schemas.latency import LatencyValidation
from tasks.base.schemas.resources import RESOURCES_FILE, Resources
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.energy import EnergyPredictor
from tasks.prediction.latency import LatencyPredictor
from tasks.prediction.memory import MemoryPredictor
from tasks.prediction.resources import ENERGY_FILE
from tasks.prediction.validate import LATENCY_FILE

PERCENT = 100


class PredictedCosts(NamedTuple):
    """Predicted costs of SubNets (n,). known: all operators have a latency; only then the other values are valid."""

    known: NDArray[np.bool_]
    accuracy: Values
    latency_ms: Values
    energy_mj: Values
    weights_mib: Values
    activations_mib: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelDevice:
    """Folders of the stages of one device. rules: memory model of its runtime, with the bytes of a weight."""

    name: str
    form: BundleFormat
    sensitivities: Path
    latency: Path
    resources: Path
    rules: Rules

    def costs(self, net: SuperNet, codes: Codes) -> PredictedCosts:
        """The predicted costs of SubNets (n, V)."""
        latency = LatencyPredictor.load(self.latency / LATENCY_FILE)
        known = latency.unknown.predict(codes) == 0 if latency.missing else np.ones(len(codes), bool)
        memory = MemoryPredictor.compile(net, self.rules)
        latency_ms = latency.sums.predict(codes) + latency.correction.offset_ms
        energy_mj = np.full(len(codes), np.nan)
        energy_mj[known] = EnergyPredictor.load(self.resources / ENERGY_FILE).predict(codes[known])
        return PredictedCosts(
            known=known,
            accuracy=AccuracyPredictor.load(self.sensitivities / SENSITIVITIES_FILE).predict(codes),
            latency_ms=latency_ms,
            energy_mj=energy_mj,
            weights_mib=memory.weights_bytes(codes) / MIB,
            activations_mib=memory.peak_bytes(codes) / MIB,
        )

    @property
    def energy_from(self) -> str:
        """The source of predicted energies."""
        return Resources.read(self.resources / RESOURCES_FILE).energy_from

    @property
    def accuracy_error(self) -> float:
        """Standard deviation of predicted accuracies, from holdout SubNets."""
        stated = AccuracyValidation.read(self.sensitivities / ACCURACY_VALIDATION_FILE)
        return DEVIATION_OF_MEAN_ERROR * stated.mean_error_points / PERCENT

    @property
    def latency_error(self) -> float:
        """Relative standard deviation of predicted latencies, from holdout SubNets."""
        return latency_error_of(self.latency)


def latency_error_of(latency: Path) -> float:
    """Relative standard deviation of the latencies predicted by the "latency" stage in this folder."""
    median = LatencyValidation.read(latency / LATENCY_VALIDATION_FILE).held_out.median_relative_error
    return UNKNOWN_ERROR if median is None else SIGMA_OF_MEDIAN * median
