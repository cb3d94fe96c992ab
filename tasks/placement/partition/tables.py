"""The tables of devices in the output folder of a finished run, in the form that the search reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tailor_ir import OperatorFeature, SubnetDataflow
from tasks.base.artifacts import RESULT_FILE
from tasks.base.errors import UserError
from tasks.measuring.lut import Lut
from tasks.measuring.profile import LUT_FOLDER
from tasks.prediction.correction import Correction
from tasks.prediction.latency import NEXT_STEP, LatencyPredictor, operator_ms
from tasks.prediction.layers import title
from tasks.prediction.validate import LATENCY_FILE

STAGES = "stages"
LATENCY_STAGE, PROFILE_STAGE = "latency", "profile"
SUPERNET_FOLDER = "supernet"
SUPERNET_STAGES = ("finetune", "compile")
"""Stages with a trained SuperNet, the preferred one first."""


class RunOffset(Protocol):
    """A device. offset_ms: time of a run without its operators [ms]."""

    @property
    def name(self) -> str: ...

    @property
    def offset_ms(self) -> float: ...


class FeatureTimes(RunOffset, Protocol):
    """Times of operators on one device."""

    def operator_ms(self, feature: OperatorFeature) -> float:
        """Latency of an operator [ms]; NaN if it has none on the device."""
        ...


class DeviceTimes(RunOffset, Protocol):
    """Times of the operators of SubNets on one device."""

    def compute_ms(self, dataflow: SubnetDataflow) -> NDArray[np.float64]: ...

    def energy_mj(self, dataflow: SubnetDataflow) -> NDArray[np.float64]: ...


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """Latencies and energies of operators on one device."""

    name: str
    lut: Lut
    correction: Correction

    @property
    def offset_ms(self) -> float:
        """Time of a run without its operators [ms]."""
        return self.correction.offset_ms

    def operator_ms(self, feature: OperatorFeature) -> float:
        """Latency of one operator [ms]; NaN if it has none on the device."""
        return operator_ms(self.lut, feature, self.correction)

    def compute_ms(self, dataflow: SubnetDataflow) -> NDArray[np.float64]:
        """Latency (n,) of each operator [ms]. UserError: an operator has no latency on the device."""
        found = np.asarray([self.operator_ms(one.feature) for one in dataflow.operators])
        unknown = np.flatnonzero(np.isnan(found))
        if len(unknown):
            feature = dataflow.operators[int(unknown[0])].feature
            got = f"{len(unknown)} operators have no latency, the first is {title(feature)} {feature.digest}"
            raise UserError(f"device '{self.name}'", got, next_step=NEXT_STEP)
        return found

    def energy_mj(self, dataflow: SubnetDataflow) -> NDArray[np.float64]:
        """Energy (n,) of each operator [mJ]. UserError: the energy of an operator is unknown."""
        known = self.lut.energies_mj()
        found = [known.get(one.feature.digest) for one in dataflow.operators]
        missing = found.count(None)
        if missing:
            got = f"the energy of {missing} operators is not known"
            raise UserError("partition.energy_mj", f"{got} on '{self.name}'", next_step="leave it out")
        return np.asarray(found, float)


def open_tables(output_dir: Path, devices: Sequence[str]) -> tuple[DeviceTable, ...]:
    """The tables of devices by their names in the run. UserError: a device has none."""
    return tuple(_table(output_dir, name) for name in devices)


def table_of(name: str, profile: Path, latency: Path | None) -> DeviceTable:
    """The table of a device from the folders of its stages; without a latency predictor, latencies are as measured."""
    correction = Correction() if latency is None else LatencyPredictor.load(latency / LATENCY_FILE).correction
    return DeviceTable(name, Lut.open(profile / LUT_FOLDER), correction)


def stages_of(devices: Sequence[str]) -> tuple[str, ...]:
    """The stages of an output folder that a partition over these devices reads."""
    return (*SUPERNET_STAGES, *(f"{stage}/{name}" for stage in (PROFILE_STAGE, LATENCY_STAGE) for name in devices))


def find_supernet(output_dir: Path) -> Path:
    """The folder of the latest SuperNet, preferably a trained one. UserError: there is none."""
    for stage in SUPERNET_STAGES:
        newest = _newest(output_dir / STAGES / stage)
        if newest is not None:
            return newest / SUPERNET_FOLDER
    next_step = "name one, supernet=FOLDER, or the folder of a run, output_dir=FOLDER"
    raise UserError(f"output folder '{output_dir}'", "has no SuperNet", next_step=next_step)


def _table(output_dir: Path, name: str) -> DeviceTable:
    stages = output_dir / STAGES
    known = _names(stages / PROFILE_STAGE)
    profiled = _newest(stages / PROFILE_STAGE / name) if name in known else None
    if profiled is None:
        allowed = ", ".join(known) or "none, since nothing was measured"
        next_step = f"measure it: autotailor predict output_dir={output_dir} device=[{name}]"
        raise UserError(f"device '{name}'", f"has no table in '{output_dir}'", allowed=allowed, next_step=next_step)
    return table_of(name, profiled, _newest(stages / LATENCY_STAGE / name))


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _newest(folder: Path) -> Path | None:
    """The complete stage in a folder that was completed last; None if there is none."""
    made: Mapping[Path, float] = {path.parent: path.stat().st_mtime for path in folder.glob(f"*/{RESULT_FILE}")}
    return max(made, key=lambda path: (made[path], path.name), default=None)
