"""Timing operators inside whole SubNets, and the entries of the look-up table that follow.

Every SubNet is a line of a file as soon as it is measured, so that a killed run goes on with the next.
"""

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tailor_ir
from profiling_agents.client import ModelJob
from profiling_agents.messages import Cache, Measurement, MeasureSettings
from tailor_ir import Config, OperatorFeature, SuperNet
from tasks.artifacts import append_line, read_lines
from tasks.insitu.cover import covering_codes
from tasks.insitu.networks import WholeSubNet, ncnn_subnet, onnx_subnet
from tasks.insitu.overhead import MeasuredLine, layer_overhead_ms, without_overhead
from tasks.lut import Entry, feature_text, now
from tasks.measuring.ahead import ahead, pieces
from tasks.measuring.fleet import Meter
from tasks.ncnn.conversion import ConversionError, ConversionLimits, convert_operators
from tasks.ncnn.files import NcnnFiles
from tasks.progress import Progress

USUAL = 0.25  # quantile of an operator's times
SUBNETS_AT_ONCE = 8
"""SubNets that are made while the device measures as many."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The time of an operator [ms] in one SubNet, without overhead. It is noisy where the SubNet's timing was."""

    time_ms: float
    noisy: bool


def entries(
    net: SuperNet,
    todo: Mapping[str, OperatorFeature],
    meter: Meter,
    settings: MeasureSettings,
    settings_text: str,
    limits: ConversionLimits,
    file: Path,
    progress: Progress,
) -> Iterator[Entry]:
    """An entry for each operator (by digest): the lower quartile of its times in the SubNets that have it.

    What disturbs a device only makes it slower, and most operators are in many SubNets, at different times.
    State "fused" where the device runs no layer for it: its time is in its neighbours'. State "failed" where no SubNet
    that has it could be measured. AgentError when the device is gone; call again with the same file.
    """
    codes = covering_codes(net, set(todo.values()), np.random.default_rng(settings.seed))
    configs = [net.space.decode(code) for code in codes]
    lines = measure_subnets(net, configs, meter, settings, limits, file, progress)
    seen: dict[str, list[Seen]] = {digest: [] for digest in todo}
    reasons: dict[str, str] = {}
    overhead_ms = layer_overhead_ms(lines)
    for line in lines:
        for digest, time_ms in without_overhead(line["operators"], overhead_ms):
            if digest in seen:
                seen[digest].append(Seen(time_ms, line["noisy"]))
        if line["state"] == "failed":
            config = net.space.decode(net.space.row(line["config"]))
            reasons |= {feature.digest: line["reason"] or "" for feature in net.operators(config)}
    for digest, feature in todo.items():
        reason = reasons.get(digest, "no SubNet that has it could be measured")
        yield _entry(feature, seen[digest], settings.cache, settings_text, reason)


def measure_subnets(
    net: SuperNet,
    configs: Sequence[Config],
    meter: Meter,
    settings: MeasureSettings,
    limits: ConversionLimits,
    file: Path,
    progress: Progress,
) -> list[MeasuredLine]:
    """The lines of `file`, one for each SubNet."""
    by_key = {net.space.digest(config): config for config in configs}
    known = {line["key"]: line for line in read_lines(file) if line["key"] in by_key}
    capabilities = meter.capabilities()
    maker = _SubNetMaker(net, "ncnn" in capabilities.formats, limits)
    todo = [(key, config) for key, config in by_key.items() if key not in known]
    made: dict[str, WholeSubNet] = {}
    failed: deque[Measurement] = deque()

    def jobs() -> Generator[ModelJob, None, None]:
        """The jobs, made as devices get free, in the thread of any device."""
        for subnets, failures in ahead(pieces(todo, SUBNETS_AT_ONCE), maker.make, capabilities):
            failed.extend(failures)
            for subnet in subnets:
                made[subnet.job.key] = subnet
                yield subnet.job

    with progress.bar("profile in situ", len(by_key), len(known)) as bar, closing(jobs()) as stream:
        for measurement in _with_failures(meter.measure(stream, settings), failed):
            line = _line(measurement, by_key[measurement.key], made.pop(measurement.key, None))
            append_line(file, line)
            known[measurement.key] = line
            bar.advance()
    return [known[key] for key in by_key]


def _with_failures(measured: Iterator[Measurement], failed: deque[Measurement]) -> Iterator[Measurement]:
    """Measurements, and between them the failures of SubNets that never came to a device."""
    for measurement in measured:
        yield measurement
        while failed:
            yield failed.popleft()
    while failed:
        yield failed.popleft()


def _line(measurement: Measurement, config: Config, subnet: WholeSubNet | None) -> MeasuredLine:
    operators: list[tuple[str, float, int]] = []
    if subnet is not None and measurement.state == "ok":
        features = [placed.feature.digest for placed in subnet.placed.operators]
        attributed = subnet.attribute(measurement.layers)
        operators = [(digest, *found) for digest, found in zip(features, attributed, strict=True)]
    return {
        "key": measurement.key,
        "state": measurement.state,
        "reason": measurement.reason,
        "p50_ms": measurement.p50_ms,
        "spread": measurement.spread,
        "noisy": measurement.noisy,
        "config": dict(config),
        "operators": operators,
    }


class _SubNetMaker:
    """Makes SubNets for the device; for ncnn it converts each operator once."""

    def __init__(self, net: SuperNet, ncnn: bool, limits: ConversionLimits) -> None:
        self._net, self._ncnn, self._limits = net, ncnn, limits
        self._snippets: dict[OperatorFeature, NcnnFiles | ConversionError] = {}

    def make(self, chunk: Sequence[tuple[str, Config]]) -> tuple[list[WholeSubNet], list[Measurement]]:
        """The SubNets by digest, and a failure for each that the device cannot get."""
        if not self._ncnn:
            return [onnx_subnet(self._net, key, config) for key, config in chunk], []
        self._convert([feature for _, config in chunk for feature in self._net.operators(config)])
        made: list[WholeSubNet] = []
        failures: list[Measurement] = []
        for key, config in chunk:
            outcomes = {feature: self._snippets[feature] for feature in self._net.operators(config)}
            errors = {f: error for f, error in outcomes.items() if isinstance(error, ConversionError)}
            if errors:
                feature, error = next(iter(errors.items()))
                failures.append(Measurement.failed(key, f"{feature.operator} {feature.digest}: {error}"))
            else:
                snippets = {feature: one for feature, one in outcomes.items() if isinstance(one, NcnnFiles)}
                made.append(ncnn_subnet(self._net, key, config, snippets))
        return made, failures

    def _convert(self, features: Sequence[OperatorFeature]) -> None:
        new = [feature for feature in dict.fromkeys(features) if feature not in self._snippets]
        models = [tailor_ir.operator_model(feature) for feature in new]
        self._snippets.update(zip(new, convert_operators(models, self._limits), strict=True))


def _entry(feature: OperatorFeature, seen: Sequence[Seen], cache: Cache, settings_text: str, reason: str) -> Entry:
    calm = [one.time_ms for one in seen if not one.noisy]
    times_ms = calm or [one.time_ms for one in seen]
    common: dict[str, Any] = {
        "digest": feature.digest,
        "operator": feature.operator,
        "feature": feature_text(feature.to_json()),
        "settings": settings_text,
        "method": "in situ",
        "cache": cache,
        "measured_at": now(),
        "n": len(times_ms),
    }
    if not times_ms:
        return Entry(**common, state="failed", reason=reason, noisy=False)
    p10_ms, p50_ms, p90_ms = (float(time_ms) for time_ms in np.quantile(times_ms, (0.1, USUAL, 0.9)))
    if p50_ms == 0.0:
        return Entry(**common, state="fused", noisy=False)
    spread = (p90_ms - p10_ms) / p50_ms
    return Entry(**common, state="ok", p50_ms=p50_ms, p90_ms=p90_ms, spread=spread, noisy=not calm)
