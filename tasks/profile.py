"""Stage "profile": measure every unique operator once on one device, into its look-up table.

What is already in the table is not measured again, so a killed run goes on. While the device measures one
batch, the next is made and converted to the format that the device takes.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

import tailor_ir
from profiling_agents.client import AgentClient, ModelJob
from profiling_agents.messages import Capabilities, Measurement, MeasureSettings
from tailor_ir import OperatorFeature
from tasks.ahead import ahead
from tasks.convert import ConversionError, Limits, convert_operators
from tasks.enumerate import read_operators
from tasks.jobs import ncnn_job, onnx_job
from tasks.lut import DeviceKey, Entry, Lut, feature_text
from tasks.progress import Bar, Progress

LUT_FOLDER = "lut"


class Settings(BaseModel):
    """How operators are measured and how often the table is written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    measure: MeasureSettings = MeasureSettings(samples_per_block=6, min_blocks=2, time_cap_ms=12.0)
    batch_operators: int = Field(default=100, ge=1, le=200)
    flush_s: float = Field(default=2.0, gt=0)
    conversion_wall_s: float = Field(default=120.0, gt=0)
    conversion_memory_mib: int = Field(default=8192, ge=512)

    @property
    def limits(self) -> Limits:
        """What one conversion may use."""
        return Limits(wall_s=self.conversion_wall_s, memory_mib=self.conversion_memory_mib)


def device_key(capabilities: Capabilities) -> DeviceKey:
    """What the entries of this device are filed under."""
    return DeviceKey(
        backend=capabilities.backend,
        build=capabilities.build,
        precision=capabilities.precision,
        threads=capabilities.threads,
        fingerprint=capabilities.fingerprint,
    )


def run(
    settings: Settings, operators_folder: Path, client: AgentClient, out_folder: Path, progress: Progress
) -> dict[str, Any]:
    """Fill `out_folder/lut` with every operator of `operators_folder`; returns the summary.

    The caller holds the lease. An operator that fails is an entry with its reason. AgentError when the device
    is gone; call again.
    """
    operators = read_operators(operators_folder)
    capabilities = client.capabilities()
    lut = Lut.open(out_folder / LUT_FOLDER, device_key(capabilities))
    todo = {digest: operators[digest] for digest in lut.missing(operators)}
    start = time.perf_counter()
    with progress.bar("profile", total=len(operators), done=len(operators) - len(todo)) as bar:
        fill(settings, lut, todo, capabilities, client, bar)
    wall_s = time.perf_counter() - start
    return {
        "device": capabilities.model_dump(mode="json"),
        "measured_now": len(todo),
        "wall_s": round(wall_s, 3),
        "operators_per_s": round(len(todo) / wall_s, 2) if todo else None,
        "lut": lut.summary(),
    }


def fill(
    settings: Settings,
    lut: Lut,
    operators: Mapping[str, OperatorFeature],
    capabilities: Capabilities,
    client: AgentClient,
    bar: Bar,
) -> None:
    """Measure `operators` (by digest) and append them to the table at least every `flush_s`."""
    writer = _Writer(lut, settings.flush_s)
    try:
        for jobs, failures in ahead(
            _batches(list(operators.values()), settings.batch_operators),
            lambda batch: _jobs(batch, "ncnn" in capabilities.formats, settings.limits),
        ):
            measurements = client.measure(jobs, settings.measure) if jobs else iter(())
            for measurement in chain(failures, measurements):
                writer.add(_entry(operators[measurement.key], measurement))
                bar.advance()
    finally:
        writer.flush()


class _Writer:
    """Collects entries and writes a part when the oldest has waited long enough."""

    def __init__(self, lut: Lut, flush_s: float) -> None:
        self._lut = lut
        self._flush_s = flush_s
        self._waiting: list[Entry] = []
        self._last_s = time.monotonic()

    def add(self, entry: Entry) -> None:
        self._waiting.append(entry)
        if time.monotonic() - self._last_s >= self._flush_s:
            self.flush()

    def flush(self) -> None:
        self._lut.append(self._waiting)
        self._waiting = []
        self._last_s = time.monotonic()


def _entry(feature: OperatorFeature, measurement: Measurement) -> Entry:
    return Entry(
        digest=feature.digest,
        operator=feature.operator,
        feature=feature_text(feature.to_json()),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        **measurement.model_dump(include={"state", "reason", "p50_ms", "p90_ms", "spread", "n", "noisy"}),
    )


def _jobs(features: Sequence[OperatorFeature], ncnn: bool, limits: Limits) -> tuple[list[ModelJob], list[Measurement]]:
    """Models of these operators for the device, and a failure for each that has none."""
    models = [tailor_ir.operator_model(feature) for feature in features]
    if not ncnn:
        return [onnx_job(feature.digest, model) for feature, model in zip(features, models, strict=True)], []
    jobs: list[ModelJob] = []
    failures: list[Measurement] = []
    for feature, model, outcome in zip(features, models, convert_operators(models, limits), strict=True):
        if isinstance(outcome, ConversionError):
            failures.append(Measurement.failed(feature.digest, str(outcome)))
        else:
            jobs.append(ncnn_job(feature.digest, model, outcome))
    return jobs, failures


def _batches(items: Sequence[OperatorFeature], size: int) -> Iterator[Sequence[OperatorFeature]]:
    return (items[first : first + size] for first in range(0, len(items), size))
