"""Stage "resources": needs of SubNets on one device besides time: memory, multiply-accumulates, parameters, energy.

Nothing is run: memory (parameters and the peak of activations) and counts follow from the SuperNet and the settings of
the device, for whole populations. So does energy, by an analytic model of arithmetic and of moving bytes. If the
device's sensors measured the energy of operators, these values count instead, and the model is the fallback for the
other operators, scaled to agree on the measured operators.

Measured energies of SubNets calibrate the result: the energy and the predicted latency, which stands for power that the
device draws all the time, are scaled and a constant is added. Errors are relative to the measurements, so a reading
that is too high because something else ran meanwhile has little weight.

An operator costs its multiply-accumulates and the bytes that come from each level of memory. All operands come from the
nearest cache at least once, and more often if the registers require it: with a fast memory of S elements, n
multiply-accumulates of a matrix product move at least 2·n / √S elements (Hong and Kung, STOC 1981; the factor: Smith et
al., arXiv 1702.02017). A farther level supplies whatever the levels before it cannot hold: nothing if the operator's
working set fits into them, since its inputs were just written; else its inputs and results, or that bound for the size
of the level before. Weights are read once per inference: from the last cache if all weights of the SubNet fit into it,
else from DRAM.

The constants are from a 45 nm process at 0.9 V (Horowitz, ISSCC 2014, figure 1.1.9): 3.7 pJ for a multiplication and
0.9 pJ for an addition in fp32; for 64 bits 20 pJ from a cache of 32 KiB, 100 pJ from one of 1 MiB, and 1.3 to 2.6 nJ
from DRAM (the middle is taken). Other processes have other constants: the model compares SubNets, it is no power meter.
Instructions, static power, and operators without multiply-accumulates beyond the bytes that they move are left out.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

import tailor_ir
from adaptive_runtime.base.arrays import FLOAT_BYTES
from profiling_agents.messages import MIB
from solvers.tables import Codes, Values
from tailor_ir import OperatorFeature, SuperNet
from tailor_ir.memory import ONNXRUNTIME, ActivationMemory, Rules
from tasks.base.schemas.predictions import (
    ENERGY_FILE,
    LATENCY_VALIDATION_FILE,
    RESOURCES_FILE,
    CheckedLatency,
    LatencyValidation,
    Metered,
    ResourceNeeds,
    Resources,
)
from tasks.base.schemas.stored import StageResult, Strict
from tasks.measuring.lut import Lut
from tasks.measuring.profile import LUT_FOLDER
from tasks.prediction.latency import LATENCY_FILE, LatencyPredictor, LatencyRecord, errors
from tasks.prediction.settings import EnergySettings
from tasks.prediction.settings import ResourceSettings as Settings
from tasks.prediction.sums import PredictorFile, Sums, SumsRecord, mac_sums, parameter_sums

FEWEST_SUBNETS = 3
"""One SubNet for each coefficient."""


class Calibration(Strict):
    """Energy of one sample [mJ]: `offset_mj` + `factor` × the analytic model's [mJ] + `mj_per_ms` × predicted latency [ms].

    subnets: number of measured SubNets. spread: root mean square of the remaining relative errors, with one degree of freedom
    less for each coefficient above 0; None if no degree of freedom is left.
    """

    offset_mj: float = Field(ge=0, allow_inf_nan=False)
    factor: float = Field(ge=0, allow_inf_nan=False)
    mj_per_ms: float = Field(ge=0, allow_inf_nan=False)
    subnets: int = Field(ge=FEWEST_SUBNETS)
    spread: float | None = Field(ge=0, allow_inf_nan=False)

    @classmethod
    def fit(cls, model_mj: Values, latency_ms: Values, measured_mj: Values) -> Self:
        """Non-negative least squares of relative errors over SubNets (n,), at least `FEWEST_SUBNETS`; measured energies > 0.

        Source: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.
        """
        from scipy.optimize import nnls  # takes a second

        inputs = np.column_stack([np.ones(len(measured_mj)), model_mj, latency_ms])
        scales = np.where(inputs.max(axis=0) > 0, inputs.max(axis=0), 1.0)  # units must not decide what counts as 0
        found, _ = nnls(inputs / scales / measured_mj[:, None], np.ones(len(measured_mj)))
        left = len(measured_mj) - int((found > 0).sum())
        errors = inputs @ (found / scales) / measured_mj - 1
        offset_mj, factor, mj_per_ms = (float(one) for one in found / scales)
        return cls(
            offset_mj=offset_mj,
            factor=factor,
            mj_per_ms=mj_per_ms,
            subnets=len(measured_mj),
            spread=float((errors @ errors / left) ** 0.5) if left else None,
        )

    def energy_mj(self, model_mj: Values, latency_ms: Values) -> Values:
        """Energies (n,) [mJ] from energies of the analytic model [mJ] and predicted latencies [ms]."""
        return self.offset_mj + self.factor * model_mj + self.mj_per_ms * latency_ms


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


class EnergyFile(PredictorFile):
    """`EnergyPredictor` in a file."""

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


class MemoryPredictor:
    """Predicts memory [MiB] of codes (n, V), batch 1. Activations are those of fp32, which no precision exceeds."""

    def __init__(self, activations: ActivationMemory, parameters: Sums, parameter_bytes: int) -> None:
        self.activations, self.parameters, self.parameter_bytes = activations, parameters, parameter_bytes

    @classmethod
    def compile(cls, net: SuperNet, rules: Rules = ONNXRUNTIME) -> "MemoryPredictor":
        """A predictor from the lifetimes and operators of a SuperNet."""
        return cls(net.activation_memory(rules), parameter_sums(net), rules.parameter_bytes)

    def predict(self, codes: Codes) -> Values:
        """Parameters and peak activations (n,) [MiB]."""
        total: Values = (self.weights_bytes(codes) + self.activations.peak_bytes(codes)) / MIB
        return total

    def weights_bytes(self, codes: Codes) -> Values:
        """Bytes of the parameters (n,)."""
        return self.parameters.predict(codes) * self.parameter_bytes

    def peak_bytes(self, codes: Codes) -> NDArray[np.int64]:
        """The peak bytes of activations (n,), without the network's input."""
        return self.activations.peak_bytes(codes)

    def within(self, limit_mib: float) -> "MemoryPredictor | MemoryWithin":
        """The predictor for a search with a limit; an order is planned only if it decides whether the limit is kept."""
        return MemoryWithin(self, limit_mib) if self.activations.terms.planned else self

    def arena_mib(self, code: Codes) -> float:
        """The peak use of onnxruntime's arena for one SubNet (V,) in a first run [MiB], without its weights."""
        return self.activations.arena_bytes(code) / MIB


class MemoryWithin:
    """Memory [MiB] of codes (n, V) in planned order, for a limit: above the limit exactly if the prediction is.

    If bounds decide that, a bound is returned in place of the prediction.
    """

    def __init__(self, memory: MemoryPredictor, limit_mib: float) -> None:
        self.memory, self.limit_mib = memory, limit_mib

    def predict(self, codes: Codes) -> Values:
        """Parameters and peak activations (n,) [MiB], or bounds on the same side of the limit."""
        codes = np.asarray(codes)
        weights = self.memory.weights_bytes(codes)
        least, most = self.memory.activations.bounds(codes)
        left = self.limit_mib * MIB - weights
        peaks = np.where(least > left, least, most)
        open_ = (least <= left) & (left < most) & (least < most)
        peaks[open_] = self.memory.peak_bytes(codes[open_])
        total: Values = (weights + peaks) / MIB
        return total


MACS_FILE = "macs.json"
PARAMETERS_FILE = "parameters.json"


def run(
    settings: Settings,
    supernet: Path,
    out: Path,
    latency: Path | None = None,
    batch: int = 1,
    profiled: Path | None = None,
) -> StageResult:
    """Write the predictors, and their predictions for the largest and the smallest SubNet; for one sample.

    latency, profiled: folders of the device's latency and profile stages, which ran in batches of `batch`; None: nothing was
    measured. Memory needs no file: `MemoryPredictor.compile` derives it from the SuperNet.
    """
    net = tailor_ir.load(supernet)
    memory, macs, parameters = MemoryPredictor.compile(net, settings.rules), mac_sums(net), parameter_sums(net)
    energy, result = _of_operators(settings.energy, net, supernet, profiled, batch)
    if latency is not None:
        energy, by_sensor = _by_sensor(net, energy, latency, batch)
        result |= by_sensor
    macs.save(out / MACS_FILE)
    parameters.save(out / PARAMETERS_FILE)
    energy.save(out / ENERGY_FILE)
    configs = [net.max_config, net.min_config]
    codes = net.space.encode(configs)
    columns = {
        "memory_mib": memory.predict(codes),
        "peak_activations_mib": memory.peak_bytes(codes) / MIB,
        "peak_arena_mib": np.asarray([memory.arena_mib(code) for code in codes]),
        "parameters": parameters.predict(codes).astype(int),
        "macs": macs.predict(codes).astype(int),
        "energy_mj": energy.predict(codes),
    }
    rows = []
    for index, (kind, config) in enumerate(zip(("largest", "smallest"), configs, strict=True)):
        needs = {name: values[index].item() for name, values in columns.items()}
        rows.append(ResourceNeeds(kind=kind, config=dict(config), digest=net.space.digest(config), **needs))
    return Resources(**result, subnets=tuple(rows)).write(out / RESOURCES_FILE)


def _of_operators(
    settings: EnergySettings, net: SuperNet, supernet: Path, profiled: Path | None, batch: int
) -> tuple[EnergyPredictor, dict[str, Any]]:
    """The sum of the operators' energies in the table, or the model if the table has none; and their origin (`Resources`)."""
    energies_mj = {} if profiled is None else Lut.open(profiled / LUT_FOLDER).energies_mj()
    measured = net if batch == 1 else tailor_ir.load(supernet, batch=batch)  # another batch has other operators
    unique = measured.unique_operators()
    known = sum(feature.digest in energies_mj for feature in unique)
    origin = {
        "energy_from": "operators" if known else "model",
        "energy_operators": Metered(measured=known, all=len(unique)),
    }
    if known:
        return EnergyPredictor.compile(measured, settings, energies_mj, batch), origin
    return EnergyPredictor.compile(net, settings), origin


def _by_sensor(
    net: SuperNet, model: EnergyPredictor, latency: Path, batch: int
) -> tuple[EnergyPredictor, dict[str, Any]]:
    """The predictor, calibrated if enough fitting SubNets have an energy (None and 0 are unknown), and its origin."""
    rows = [row for row in LatencyValidation.read(latency / LATENCY_VALIDATION_FILE).subnets if row.energy_mj]
    fitting = [row for row in rows if row.used_for == "fit"]
    if len(fitting) < FEWEST_SUBNETS:
        return model, {}
    codes = net.space.encode([row.config for row in fitting])
    found = model.calibrated(LatencyPredictor.load(latency / LATENCY_FILE), codes, _sample_mj(fitting, batch))
    assert found.calibration is not None
    others = [row for row in rows if row.used_for != "fit"]
    predicted_mj = found.predict(net.space.encode([row.config for row in others]))
    return found, {
        "energy_from": "sensor",
        "energy_calibration": found.calibration[0].model_dump(mode="json"),
        "energy_held_out": errors(predicted_mj, _sample_mj(others, batch)),
    }


def _sample_mj(rows: Sequence[CheckedLatency], batch: int) -> NDArray[np.float64]:
    """Measured energies (n,) [mJ] of one sample of SubNets that ran in batches."""
    return np.array([row.energy_mj for row in rows], np.float64) / batch
