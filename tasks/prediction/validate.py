"""The device's half of stage "predict": compile the latency predictor, correct it, state its holdout error."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

import tailor_ir
from profiling_agents.client import AgentClient
from profiling_agents.messages import Measurement
from solvers.tables import Values
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.agreement import RelativeErrors
from tasks.base.schemas.latency import LATENCY_FILE, VALIDATION_FILE, CheckedLatency, LatencyValidation
from tasks.base.schemas.operators import IMPLEMENTATIONS_FILE, ChosenImplementations
from tasks.base.schemas.stored import StageResult
from tasks.evaluation.agreement import kendall_tau
from tasks.measuring.lut import Lut
from tasks.measuring.profile import LUT_FOLDER, device_key
from tasks.measuring.subnets import SubNetMeter, validation_configs
from tasks.prediction.correction import Correction
from tasks.prediction.latency import LatencyPredictor, network_of
from tasks.prediction.settings import LatencySettings

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
    ).write(out / VALIDATION_FILE)


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
    for measurement in measured:
        if measurement.p50_ms is None:
            raise UserError(
                f"SubNet {measurement.key}",
                f"cannot be measured on the device: {measurement.reason}",
                next_step="without whole SubNets the latency predictor cannot be checked",
            )
    return np.array([measurement.p50_ms for measurement in measured])
