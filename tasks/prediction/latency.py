"""Latency of any SubNet predicted from the look-up table (LUT) of one device: compiled to arrays, and corrected.

The latencies of a SubNet's operators are added up, and corrected for the rest of a network: caches, layouts, overhead
of each layer and each run. Each operator depends on few variables, so a prediction for a matrix of codes gathers from
small arrays (`tasks.prediction.sums`). The device's half of stage "predict" compiles the predictor, corrects it, and
states its holdout error.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

import tailor_ir
from profiling_agents.client import AgentClient
from profiling_agents.messages import Measurement
from solvers.tables import Codes, Values, with_derived
from tailor_ir import OperatorFeature, SuperNet
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.placed import IMPLEMENTATIONS_FILE, ChosenImplementations
from tasks.base.schemas.predictions import LATENCY_FILE, LATENCY_VALIDATION_FILE, CheckedLatency, LatencyValidation
from tasks.base.schemas.stored import Record, RelativeErrors, StageResult, Strict
from tasks.evaluation.uncertainty import kendall_tau
from tasks.measuring.lut import Lut
from tasks.measuring.profile import LUT_FOLDER, device_key
from tasks.measuring.subnets import SubNetMeter, validation_configs
from tasks.prediction.settings import LatencySettings
from tasks.prediction.sums import PredictorFile, Sums, SumsRecord

NOISE = 0.03  # relative standard deviation of a network's measured latency
FAMILY_SD = 0.15  # relative standard deviation of a family's factor from the common factor
OFFSET_SD = 0.1  # standard deviation of the offset, relative to the fastest network
OVERHEAD_SD = 0.05  # overhead of all operators together, relative to a network
HUBER = 1.5  # residuals beyond this many standard deviations count linearly
SMALLEST = 0.1  # least share of its latency in the table that an operator keeps
ITERATIONS = 20


def family(feature: OperatorFeature) -> str:
    """The group of operators that a runtime treats alike."""
    grouped = any(step.op == "Conv" and dict(step.attributes).get("group", 1) != 1 for step in feature.steps)
    return f"{feature.operator} grouped" if grouped else feature.operator


@dataclass(frozen=True, slots=True)
class OperatorSums:
    """A network's operators in the look-up table: their number, and the sum of their latencies [ms] by family."""

    operators: int
    sums_ms: Mapping[str, float]

    @property
    def sum_ms(self) -> float:
        """The sum over all operators [ms]."""
        return sum(self.sums_ms.values())


class Correction(Strict):
    """Latency of a network: `offset_ms` plus, for each operator, the factor of its family × its latency + `overhead_ms`.

    factor: for families that no fitted network has. spread: remaining relative error of the fitted networks, each predicted
    from the others (standard deviation, robust); None without a fit.
    """

    offset_ms: float = Field(default=0.0, allow_inf_nan=False)
    overhead_ms: float = Field(default=0.0, allow_inf_nan=False)
    factor: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    factors: dict[str, float] = Field(default_factory=dict)
    spread: float | None = Field(default=None, ge=0)

    @classmethod
    def fit(cls, networks: Sequence[OperatorSums], measured_ms: Values) -> Self:
        """Bayesian linear regression on relative errors with Huber's weights; (n,) networks.

        The prior has one factor for all families and no overhead: a handful of networks moves only the coefficients on which it
        has evidence.
        """
        families = sorted({name for network in networks for name in network.sums_ms})
        sums_ms = np.array([[network.sums_ms.get(name, 0.0) for name in families] for network in networks])
        counts = np.array([network.operators for network in networks])
        ratio = float(np.median(measured_ms / sums_ms.sum(axis=1)))
        inputs = np.column_stack([np.ones(len(networks)), counts, sums_ms]) / measured_ms[:, None]
        mean = np.array([0.0, 0.0, *[ratio] * len(families)])
        overhead_sd = OVERHEAD_SD * float(np.median(measured_ms / counts))
        sd = np.array([OFFSET_SD * measured_ms.min(), overhead_sd, *[FAMILY_SD * ratio] * len(families)])
        found, spread = _regression(inputs, mean, sd)
        factors = {name: float(max(f, ratio / 4)) for name, f in zip(families, found[2:], strict=True)}
        lowest_ms = -0.5 * ratio * float(sums_ms.sum(axis=1).min())
        return cls(
            offset_ms=max(float(found[0]), lowest_ms),
            overhead_ms=float(found[1]),
            factor=ratio,
            factors=factors,
            spread=spread,
        )

    def operator_ms(self, name: str, latency_ms: float) -> float:
        """The contribution of a family's operator to a SubNet's latency [ms]; 0 if the runtime runs no layer for it."""
        if latency_ms == 0.0:
            return 0.0
        scaled_ms = self.factors.get(name, self.factor) * latency_ms
        return max(scaled_ms + self.overhead_ms, SMALLEST * scaled_ms)


def _regression(inputs: Values, mean: Values, sd: Values) -> tuple[Values, float]:
    """Coefficients with normal priors for which `inputs` (n, k) times them is 1, and the leave-one-out spread."""
    precision = np.diag(sd**-2.0)
    found, noise = mean, NOISE
    weights = np.ones(len(inputs))
    for _ in range(ITERATIONS):
        weighted = inputs * (weights / noise**2)[:, None]
        covariance = np.linalg.inv(weighted.T @ inputs + precision)
        found = covariance @ (weighted.sum(axis=0) + precision @ mean)
        residuals = np.abs(inputs @ found - 1)
        noise = max(NOISE, 1.4826 * float(np.median(residuals)))
        weights = 1 / np.maximum(residuals / (HUBER * noise), 1.0)
    leverage = np.einsum("ij,jk,ik->i", weighted, covariance, inputs)
    left_out = np.abs(inputs @ found - 1) / np.maximum(1 - leverage, 0.05)
    return found, 1.4826 * float(np.median(left_out))


UNCORRECTED = Correction()


NAMED_IN_ERRORS = 3
NEXT_STEP = "leave out the choices that lead to it, or measure again: autotailor profile … profile.remeasure=[failed]"


class Missing(Record):
    """An operator without a latency, the reason, and the choices (variable column, choice index) that lead to it."""

    operator: str
    reason: str
    choices: tuple[tuple[int, int], ...]

    def hits(self, code: NDArray[np.int64]) -> bool:
        """Whether the SubNet of this extended code (V + D,) has the operator."""
        return all(code[column] == choice for column, choice in self.choices)


class LatencyPredictor:
    """Predicts latencies [ms] of one device for codes (n, V)."""

    def __init__(self, sums: Sums, correction: Correction, unknown: Sums, missing: Sequence[Missing] = ()) -> None:
        """unknown: counts a SubNet's operators without a latency."""
        self.sums, self.correction, self.unknown, self.missing = sums, correction, unknown, tuple(missing)

    @classmethod
    def compile(cls, net: SuperNet, lut: Lut, correction: Correction = UNCORRECTED) -> Self:
        """Arrays from the operators of a SuperNet and their corrected latencies."""
        latencies = {feature: operator_ms(lut, feature, correction) for feature in net.unique_operators()}
        absent = {feature for feature, latency_ms in latencies.items() if math.isnan(latency_ms)}
        known = {feature: 0.0 if feature in absent else latency_ms for feature, latency_ms in latencies.items()}
        unknown = Sums.compile(net, {feature: float(feature in absent) for feature in latencies})
        return cls(Sums.compile(net, known), correction, unknown, _missing(net, lut, absent) if absent else ())

    def predict(self, codes: Codes) -> Values:
        """Latencies (n,) [ms] of codes (n, V). UserError when an operator of a SubNet has no latency."""
        if self.missing and (hit := self.unknown.predict(codes) > 0).any():
            raise self._unpredictable(codes[hit], len(codes))
        return self.sums.predict(codes) + self.correction.offset_ms

    def _unpredictable(self, codes: Codes, total: int) -> UserError:
        extended = with_derived(codes, self.unknown.derived)
        hits = [missing for missing in self.missing if any(missing.hits(code) for code in extended)]
        named = list(dict.fromkeys(f"{hit.operator} ({hit.reason})" for hit in hits))
        more = f" and {len(named) - NAMED_IN_ERRORS} more" if len(named) > NAMED_IN_ERRORS else ""
        some = f"{', '.join(named[:NAMED_IN_ERRORS])}{more}"
        got = f"{len(codes)} of {total} SubNets have operators without a latency: {some}"
        return UserError("latency predictor", got, next_step=NEXT_STEP)

    def to_record(self) -> "LatencyRecord":
        """The predictor as JSON; `of_record` gives an equal predictor."""
        sums, unknown = self.sums.to_record(), self.unknown.to_record()
        return LatencyRecord(sums=sums, correction=self.correction, unknown=unknown, missing=self.missing)

    @classmethod
    def of_record(cls, file: "LatencyRecord") -> Self:
        """The predictor that `to_record` described."""
        return cls(Sums.of_record(file.sums), file.correction, Sums.of_record(file.unknown), file.missing)

    def save(self, path: Path) -> None:
        """Write JSON."""
        LatencyFile(**self.to_record().to_json()).write(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a predictor that `save` wrote. UserError for any other file."""
        return cls.of_record(LatencyFile.read(path))


def network_of(net: SuperNet, lut: Lut, config: Mapping[str, Any]) -> OperatorSums:
    """A SubNet's operators in the table. UserError when one has no latency."""
    sums_ms: dict[str, float] = {}
    count = 0
    for feature in net.operators(dict(config)):
        latency_ms = _latency_ms(lut, feature)
        if math.isnan(latency_ms):
            raise UserError("latency predictor", f"{_name(feature)} ({_reason(lut, feature)})", next_step=NEXT_STEP)
        if latency_ms > 0:
            count += 1
            sums_ms[family(feature)] = sums_ms.get(family(feature), 0.0) + latency_ms
    return OperatorSums(count, sums_ms)


def subnet_ms(net: SuperNet, lut: Lut, correction: Correction, config: Mapping[str, Any]) -> float:
    """Latency of one SubNet straight from the table [ms]; NaN if an operator has none."""
    return correction.offset_ms + math.fsum(operator_ms(lut, f, correction) for f in net.operators(dict(config)))


def _latency_ms(lut: Lut, feature: OperatorFeature) -> float:
    entry = lut.get(feature.digest)
    return math.nan if entry is None or entry.latency_ms is None else entry.latency_ms


def operator_ms(lut: Lut, feature: OperatorFeature, correction: Correction) -> float:
    """The contribution of one operator to a SubNet's latency [ms]; NaN if it has no latency."""
    return correction.operator_ms(family(feature), _latency_ms(lut, feature))


def _missing(net: SuperNet, lut: Lut, absent: set[OperatorFeature]) -> list[Missing]:
    """Every occurrence of an operator without a latency, with its choices."""
    found = []
    for term in net.operator_terms():
        operators, numbers = term.features.operators, term.features.numbers
        positions = [number for number, feature in enumerate(operators) if feature in absent]
        for at in np.argwhere(np.isin(numbers, positions)):
            feature = operators[int(numbers[tuple(at)])]
            choices = tuple(zip(term.variables, at.tolist(), strict=True))
            found.append(Missing(operator=_name(feature), reason=_reason(lut, feature), choices=choices))
    return found


def _name(feature: OperatorFeature) -> str:
    return f"{feature.operator} {feature.input_shapes[0] if feature.input_shapes else ''}"


def _reason(lut: Lut, feature: OperatorFeature) -> str:
    entry = lut.get(feature.digest)
    return "not measured" if entry is None else str(entry.reason)


class LatencyRecord(Record):
    """`LatencyPredictor` as part of a file."""

    sums: SumsRecord
    correction: Correction
    unknown: SumsRecord
    missing: tuple[Missing, ...]


class LatencyFile(LatencyRecord, PredictorFile):
    """`LatencyPredictor` in a file."""


MEASURED_FILE = "measured_subnets.jsonl"
FIXED_SUBNETS = 2  # the largest and the smallest are always part of the fit


def run(
    settings: LatencySettings,
    supernet: Path,
    profile: Path,
    client: AgentClient,
    out: Path,
    progress: Progress,
    batch: int = 1,
) -> StageResult:
    """Write the corrected predictor and its validation for one device, whose lease the caller holds.

    `profile` is the folder of the profile stage; latencies are those of a batch. UserError: operators without a latency,
    SubNets that fail. `energy_mj` of a SubNet is that of one run, None if the device did not report it.
    """
    net = tailor_ir.load(supernet, batch=batch)
    lut = Lut.open(profile / LUT_FOLDER, device_key(client.capabilities()))
    lut.require(net.unique_operators())
    configs = validation_configs(net, settings.random_subnets, settings.seed)
    codes = net.space.encode(configs)
    networks = [network_of(net, lut, config) for config in configs]
    chosen = ChosenImplementations.read(profile / IMPLEMENTATIONS_FILE)
    meter = SubNetMeter(net, client, settings.measure, settings.limits, settings.rounds, chosen)
    measured = meter.measure(configs, out / MEASURED_FILE, progress, "validate latency")
    measured_ms = _times(measured)
    fitted = FIXED_SUBNETS + settings.fit_subnets
    predictor = LatencyPredictor.compile(net, lut, Correction.fit(networks[:fitted], measured_ms[:fitted]))
    predictor.save(out / LATENCY_FILE)
    predicted_ms = predictor.predict(codes)
    rows = tuple(
        CheckedLatency(
            config=dict(config),
            digest=measurement.key,
            kind="random" if index >= FIXED_SUBNETS else "smallest" if index else "largest",
            used_for="fit" if index < fitted else "held out",
            sum_ms=networks[index].sum_ms,
            predicted_ms=float(predicted_ms[index]),
            measured_ms=float(measured_ms[index]),
            noisy=measurement.noisy,
            energy_mj=measurement.energy_mj,
        )
        for index, (config, measurement) in enumerate(zip(configs, measured, strict=True))
    )
    return LatencyValidation(
        correction=predictor.correction.model_dump(mode="json"),
        fit=errors(predicted_ms[:fitted], measured_ms[:fitted]),
        held_out=errors(predicted_ms[fitted:], measured_ms[fitted:]),
        subnets=rows,
    ).write(out / LATENCY_VALIDATION_FILE)


def errors(predicted_ms: Values, measured_ms: Values) -> RelativeErrors:
    """Relative errors (n,) of predictions: median and largest, share within ±10 %, Kendall's tau."""
    if not len(measured_ms):
        return RelativeErrors(n=0)
    relative = np.abs(predicted_ms - measured_ms) / measured_ms
    return RelativeErrors(
        n=len(relative),
        median_relative_error=float(np.median(relative)),
        max_relative_error=float(relative.max()),
        within_10_percent=float((relative <= 0.1).mean()),
        kendall_tau=kendall_tau(predicted_ms, measured_ms),
    )


def _times(measured: Sequence[Measurement]) -> Values:
    for one in measured:
        if one.p50_ms is None:
            next_step = "without whole SubNets the latency predictor cannot be checked"
            got = f"cannot be measured on the device: {one.reason}"
            raise UserError(f"SubNet {one.key}", got, next_step=next_step)
    return np.array([one.p50_ms for one in measured])
