"""Settings for timing operators and SubNets, and for comparing the outputs of SubNets."""

from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from profiling_agents.messages import LAYER_RUNS, Capabilities, MeasureSettings, Precision
from tasks.base.artifacts import OutsideKey
from tasks.base.schemas.stored import Strict
from tasks.evaluation.conversion import ConversionLimits
from tasks.measuring.lut.choice import ProfilingMethod

if TYPE_CHECKING:
    from tasks.measuring.lut import Entry

ENOUGH_TIMES = 20
"""Number of SubNets in which each operator is timed."""
FEWEST_TIMES = 5
"""The same for SubNets that run for long: the sums of operators in SubNets of 190 to 250 ms differed by at most 0.2 % from
those by up to `ENOUGH_TIMES` SubNets; those of short SubNets differed by far more.
"""
SLOWEST_MACS_PER_MS = 1e6
"""Multiply-accumulates in a millisecond that any device with an agent reaches."""

HANDLING_MS = 15.0
"""Time for upload, loading and answering of one model; measured on loopback, two busy cores: 10 to 30 ms."""


def enough_times(settings: MeasureSettings, run_ms: float, most: int) -> int:
    """Number of SubNets in which an operator is timed, if one run of a SubNet takes `run_ms`: `most` for short SubNets.

    Layers of a long SubNet are timed for longer than `layers_ms`. In fewer of them an operator is timed as long in all.
    """
    lasts_ms = LAYER_RUNS * run_ms
    if lasts_ms <= settings.layers_ms:
        return most
    return min(most, max(FEWEST_TIMES, ceil(most * settings.layers_ms / lasts_ms)))


class TimingSettings(Strict):
    """Settings for timing a whole SubNet once on a device, and limits of its conversion for the device."""

    measure: MeasureSettings = MeasureSettings(warmup_ms=20.0, min_blocks=5, time_cap_ms=150.0)
    # Both count in the key, unlike those of operators (`ProfileSettings`): a SubNet that failed by a limit stays in the stage's
    # result as a failure, and no setting measures failed SubNets again.
    conversion_wall_s: float = Field(120.0, gt=0)
    conversion_memory_mib: int = Field(8192, ge=512)

    @property
    def limits(self) -> ConversionLimits:
        """The limits of one conversion."""
        return ConversionLimits(wall_s=self.conversion_wall_s, memory_mib=self.conversion_memory_mib)


class RepeatedTimingSettings(TimingSettings):
    """Settings for timing a whole SubNet on a device several times."""

    rounds: int = Field(2, ge=1, le=100, description="times that each SubNet is measured at least")

    def device_s(self, subnets: int) -> float:
        """Time [s] that a calm device spends on this many SubNets; up to twice as long if rounds differ."""
        once = HANDLING_MS + self.measure.warmup_ms + self.measure.time_cap_ms + self.measure.energy_ms
        return 1e-3 * subnets * self.rounds * once


class Tolerance(Strict):
    """Largest difference over the largest torch output, by the precision of the runtime."""

    fp32: float = Field(1e-4, gt=0)
    bf16: float = Field(2e-2, gt=0)
    fp16: float = Field(2e-2, gt=0)
    int8: float = Field(0.25, gt=0, description="to onnxruntime here, not to torch: runtimes round at other places")

    def of(self, precision: Precision) -> float:
        """The tolerance of one precision."""
        name = "fp16" if precision == "fp16_storage" else precision
        return float(getattr(self, name))


def _folder(value: Any) -> Any:
    if isinstance(value, str) and "://" in value:
        raise ValueError("got an address; allowed: a folder of this machine; with output_dir=URL null has them there")
    return value


class ProfileSettings(Strict):
    """Settings for measuring operators, and for storing and writing their table.

    `measure`: of an operator alone; `subnet`: of a SubNet and its layers, in situ. `subnets_per_operator`: SubNets in which
    each operator is timed, in situ, if fewer than 150 SubNets have all operators. `store`: folder of the tables that networks
    and runs share; None: one of the stage's own. `remeasure`: known entries that are measured again. `other_settings`: entries
    that were measured with another `measure` count, too.
    """

    method: ProfilingMethod = "in situ"
    measure: MeasureSettings = MeasureSettings(samples_per_block=6, min_blocks=2, time_cap_ms=12.0)
    subnet: MeasureSettings = MeasureSettings(warmup_ms=10.0, min_blocks=2, time_cap_ms=100.0, layers_ms=150.0)
    subnets_per_operator: int = Field(default=ENOUGH_TIMES, ge=1, le=1000)
    store: Annotated[
        Path | None, BeforeValidator(_folder), OutsideKey("where entries are, not how they are measured")
    ] = None
    remeasure: Annotated[
        tuple[Literal["noisy", "failed", "all"], ...], OutsideKey("the stage is worked anew whatever its key is")
    ] = ()
    other_settings: bool = False
    batch_operators: Annotated[int, OutsideKey("how many are made at a time")] = Field(default=100, ge=1, le=200)
    flush_s: Annotated[float, OutsideKey("what a killed run loses, not what is measured")] = Field(default=2.0, gt=0)
    conversion_wall_s: Annotated[float, OutsideKey("for what it made fail there is remeasure=[failed]")] = Field(
        default=120.0, gt=0
    )
    conversion_memory_mib: Annotated[int, OutsideKey("for what it made fail there is remeasure=[failed]")] = Field(
        default=8192, ge=512
    )

    @property
    def limits(self) -> ConversionLimits:
        """The limits of one conversion."""
        return ConversionLimits(wall_s=self.conversion_wall_s, memory_mib=self.conversion_memory_mib)

    def measured_with(self, method: ProfilingMethod) -> str:
        """The `settings` text of entries that are measured with these settings."""
        settings = self.measure if method == "alone" else self.subnet
        from tasks.measuring.lut import json_text

        return json_text(settings.model_dump(mode="json"))

    def meters(self, capabilities: Capabilities) -> bool:
        """Whether operators are measured alone for their energy, independent of their latency's method."""
        return self.measure.energy_ms > 0 and bool(capabilities.power_sensors)

    @property
    def methods(self) -> tuple[ProfilingMethod, ...]:
        """The methods of the table, in order of trust."""
        return ("in situ", "alone") if self.method == "in situ" else ("alone",)

    def measures(self, entry: "Entry | None", since: str = "") -> bool:
        """Whether an operator with this entry is measured; `since`: not if it was measured since then (UTC, ISO 8601)."""
        if entry is None:
            return True
        wanted = {"all": True, "noisy": entry.noisy, "failed": entry.state == "failed"}
        return any(wanted[kind] for kind in self.remeasure) and (not since or entry.measured_at < since)
