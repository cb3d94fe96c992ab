"""Energy of any SubNet: an analytic model of arithmetic and of moving bytes, calibrated if a power sensor gave readings.

An operator costs its multiply-accumulates and the bytes that come from each level of memory. All operands come from the nearest
cache at least once, and more often if the registers require it: with a fast memory of S elements, n multiply-accumulates of a
matrix product move at least 2·n / √S elements (Hong and Kung, STOC 1981; the factor: Smith et al., arXiv 1702.02017). A farther
level supplies whatever the levels before it cannot hold: nothing if the operator's working set fits into them, since its inputs
were just written; else its inputs and results, or that bound for the size of the level before. Weights are read once per
inference: from the last cache if all weights of the SubNet fit into it, else from DRAM.

If the device's sensors measured the energy of operators, these values count instead, and the model is the fallback for the
other operators, scaled to agree on the measured ones.

The constants are those of a 45 nm process at 0.9 V (Horowitz, ISSCC 2014, figure 1.1.9): 3.7 pJ for a multiplication and 0.9 pJ
for an addition in fp32; for 64 bits 20 pJ from a cache of 32 KiB, 100 pJ from one of 1 MiB, and 1.3 to 2.6 nJ from DRAM (the
middle is taken). Other processes have other constants: the model compares SubNets, it is no power meter. Instructions, static
power, and operators without multiply-accumulates beyond the bytes that they move are left out.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from solvers.tables import Codes, Values
from tailor_ir import OperatorFeature, SuperNet
from tasks.base.schemas.stored import Stored
from tasks.prediction.calibration import Calibration
from tasks.prediction.latency import LatencyPredictor, LatencyRecord
from tasks.prediction.settings import FLOAT_BYTES, EnergySettings
from tasks.prediction.sums import Sums, SumsRecord

MJ = 1e-9  # one pJ in mJ


def operator_energy_mj(feature: OperatorFeature, settings: EnergySettings) -> float:
    """Energy of one operator [mJ], batch 1, without the first read of its weights."""
    macs = feature.macs
    elements = sum(int(np.prod(shape)) for shape in (*feature.input_shapes, *feature.output_shapes))
    activations, weights = FLOAT_BYTES * elements, FLOAT_BYTES * feature.parameters
    near = settings.register_bytes, *settings.cache_bytes
    costs = *settings.cache_pj_per_byte, settings.dram_pj_per_byte
    total_pj = macs * settings.pj_per_mac
    for level, (size, pj_per_byte) in enumerate(zip(near, costs, strict=True)):
        again = FLOAT_BYTES * 2 * macs / (size / FLOAT_BYTES) ** 0.5
        if level == 0:
            total_pj += max(activations + weights, again) * pj_per_byte
        elif activations + weights > size:
            total_pj += max(activations, again) * pj_per_byte
    return total_pj * MJ


def lone_energy_mj(feature: OperatorFeature, settings: EnergySettings) -> float:
    """Energy of one operator that runs repeatedly by itself [mJ], batch 1: its own weights stay in a cache if they fit."""
    bytes_ = FLOAT_BYTES * feature.parameters
    cached = bytes_ <= settings.cache_bytes[-1]
    pj_per_byte = settings.cache_pj_per_byte[-1] if cached else settings.dram_pj_per_byte
    return operator_energy_mj(feature, settings) + bytes_ * pj_per_byte * MJ


class EnergyPredictor:
    """Predicts energy [mJ] of one sample for codes (n, V).

    operators: sums of the operators' energies. weights: elements that are read once per inference, if no operator's energy is
    measured. calibration: fitted to whole SubNets, with the latencies that it uses.
    """

    def __init__(
        self,
        settings: EnergySettings,
        operators: Sums,
        weights: Sums,
        calibration: tuple[Calibration, LatencyPredictor] | None = None,
    ) -> None:
        self.settings, self.operators, self.weights, self.calibration = settings, operators, weights, calibration

    @classmethod
    def compile(
        cls,
        net: SuperNet,
        settings: EnergySettings,
        measured_mj: Mapping[str, float | None] | None = None,
        batch: int = 1,
    ) -> Self:
        """Tables from the operators of a SuperNet.

        measured_mj: operators' digests -> a power sensor's reading for one run of `batch` samples; if there are any, the
        operators' sum counts. None and 0 are unknown (a sensor that does not see the operator reads 0): the fallback is the
        analytic model, scaled to the others.
        """
        unique = net.unique_operators()
        known = {f: mj for f in unique if (mj := (measured_mj or {}).get(f.digest))}
        if known:
            model = {feature: lone_energy_mj(feature, settings) for feature in unique}
            scale = median(mj / model[feature] if model[feature] else 1.0 for feature, mj in known.items())
            energies = {feature: known.get(feature, scale * model[feature]) / batch for feature in unique}
            weights = dict.fromkeys(unique, 0)
        else:
            energies = {feature: operator_energy_mj(feature, settings) for feature in unique}
            weights = {feature: feature.parameters for feature in unique}
        return cls(settings, Sums.compile(net, energies), Sums.compile(net, weights))

    def calibrated(self, latency: LatencyPredictor, codes: Codes, measured_mj: Values) -> "EnergyPredictor":
        """The predictor with the best fit to the measured energies (n,) [mJ] of one sample of SubNets (n, V)."""
        calibration = Calibration.fit(self.model(codes), latency.predict(codes), measured_mj)
        return EnergyPredictor(self.settings, self.operators, self.weights, (calibration, latency))

    def predict(self, codes: Codes) -> Values:
        """Energies (n,) [mJ] of codes (n, V). UserError, if calibrated: an operator of a SubNet has no latency."""
        if self.calibration is None:
            return self.model(codes)
        calibration, latency = self.calibration
        return calibration.energy_mj(self.model(codes), latency.predict(codes))

    def model(self, codes: Codes) -> Values:
        """Energies (n,) [mJ] of codes (n, V) by the analytic model alone."""
        bytes_ = self.weights.predict(codes) * FLOAT_BYTES
        fits: NDArray[np.bool_] = bytes_ <= self.settings.cache_bytes[-1]
        pj_per_byte = np.where(fits, self.settings.cache_pj_per_byte[-1], self.settings.dram_pj_per_byte)
        total: Values = self.operators.predict(codes) + bytes_ * pj_per_byte * MJ
        return total

    def save(self, path: Path) -> None:
        """Write JSON."""
        calibration, latency = self.calibration or (None, None)
        EnergyFile(
            settings=self.settings,
            operators=self.operators.to_record(),
            weights=self.weights.to_record(),
            calibration=calibration,
            latency=latency and latency.to_record(),
        ).write(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a predictor that `save` wrote. UserError for any other file."""
        file = EnergyFile.read(path)
        calibration = None
        if file.calibration is not None and file.latency is not None:
            calibration = file.calibration, LatencyPredictor.of_record(file.latency)
        return cls(file.settings, Sums.of_record(file.operators), Sums.of_record(file.weights), calibration)


class EnergyFile(Stored):
    """`EnergyPredictor` in a file."""

    STAGE: ClassVar[str] = "predict"
    KIND: ClassVar[str] = "predictor"

    settings: EnergySettings
    operators: SumsRecord
    weights: SumsRecord
    calibration: Calibration | None = None
    latency: LatencyRecord | None = None

    @model_validator(mode="after")
    def _calibration_has_latencies(self) -> Self:
        if (self.calibration is None) != (self.latency is None):
            raise ValueError("calibration and latency belong together; allowed: both, or neither")
        return self
