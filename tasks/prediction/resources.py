"""Stage "resources": needs of SubNets on one device besides time: memory, multiply-accumulates, parameters, energy.

Nothing is run and no device is asked: memory and counts follow from the SuperNet and the settings of the device. So does
energy, with two exceptions: energies of operators in the look-up table replace the model, and measured energies of SubNets
timed on the device calibrate the result; best both.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

import tailor_ir
from profiling_agents.messages import MIB
from tailor_ir import SuperNet
from tasks.base.schemas.agreement import RelativeErrors
from tasks.base.schemas.latency import VALIDATION_FILE, CheckedLatency, LatencyValidation
from tasks.base.schemas.resources import ENERGY_FILE, RESOURCES_FILE, Metered, ResourceNeeds, Resources
from tasks.base.schemas.stored import StageResult
from tasks.measuring.lut import Lut
from tasks.measuring.profile import LUT_FOLDER
from tasks.prediction.calibration import FEWEST_SUBNETS
from tasks.prediction.energy import EnergyPredictor
from tasks.prediction.latency import LatencyPredictor
from tasks.prediction.memory import MemoryPredictor
from tasks.prediction.settings import EnergySettings
from tasks.prediction.settings import ResourceSettings as Settings
from tasks.prediction.sums import mac_sums, parameter_sums
from tasks.prediction.validate import LATENCY_FILE, errors

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
    needs = [
        {"kind": kind, "config": dict(config), "digest": net.space.digest(config)}
        | {name: values[index].item() for name, values in columns.items()}
        for index, (kind, config) in enumerate(zip(("largest", "smallest"), configs, strict=True))
    ]
    rows = tuple(ResourceNeeds.model_validate(row) for row in needs)
    return Resources(**result, subnets=rows).write(out / RESOURCES_FILE)


class _EnergyOrigin(TypedDict, total=False):
    """The fields of `Resources` that state the source of energy values."""

    energy_from: Literal["model", "operators", "sensor"]
    energy_operators: Metered
    energy_calibration: dict[str, Any]
    energy_held_out: RelativeErrors | None


def _of_operators(
    settings: EnergySettings, net: SuperNet, supernet: Path, profiled: Path | None, batch: int
) -> tuple[EnergyPredictor, _EnergyOrigin]:
    """The sum of the operators' energies in the table, or the model if the table has none; and the number of measured ones."""
    energies_mj = {} if profiled is None else Lut.open(profiled / LUT_FOLDER).energies_mj()
    measured = net if batch == 1 else tailor_ir.load(supernet, batch=batch)  # another batch has other operators
    unique = measured.unique_operators()
    known = sum(feature.digest in energies_mj for feature in unique)
    result: _EnergyOrigin = {"energy_from": "operators", "energy_operators": Metered(measured=known, all=len(unique))}
    if known:
        return EnergyPredictor.compile(measured, settings, energies_mj, batch), result
    return EnergyPredictor.compile(net, settings), {**result, "energy_from": "model"}


def _by_sensor(
    net: SuperNet, model: EnergyPredictor, latency: Path, batch: int
) -> tuple[EnergyPredictor, _EnergyOrigin]:
    """The predictor, calibrated if enough fitting SubNets have an energy (None and 0 are unknown), and its origin."""
    rows = [row for row in LatencyValidation.read(latency / VALIDATION_FILE).subnets if row.energy_mj]
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
