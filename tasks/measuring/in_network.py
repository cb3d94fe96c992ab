"""Operators timed in situ: layer by layer inside a few SubNets that together contain all operators.

A runtime that times a layer reads a clock and writes an event, which adds a few microseconds to the layer's time. SubNets
that are timed as a whole have no such overhead. The ratio of the sum of a SubNet's layers to its whole time grows with the
number of layers per millisecond, and the slope is the overhead of one layer.

Every SubNet is written to a file as soon as it is measured, so that a killed run resumes with the next one.
"""

from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np

from profiling_agents.client import ModelJob
from profiling_agents.messages import LAYER_RUNS, Measurement, MeasureSettings
from tailor_ir import Config, OperatorFeature, SuperNet
from tasks.base.artifacts import append_line, read_lines
from tasks.base.progress import Progress
from tasks.base.schemas.placed import ChosenImplementations
from tasks.evaluation.conversion import ConversionLimits
from tasks.measuring.fleet import Meter
from tasks.measuring.jobs import ahead, pieces
from tasks.measuring.lut import Entry, json_text, now
from tasks.measuring.lut.choice import TimedImplementation, position_of_chosen
from tasks.measuring.networks import ForeignLayersError, WholeSubNet
from tasks.measuring.operators import covering_codes
from tasks.measuring.settings import ENOUGH_TIMES, SLOWEST_MACS_PER_MS, enough_times
from tasks.measuring.trials import CandidateNames, Example, ImplementationRules, SubNetBuilder, Trial, mixed, studied

LayerTimes = Sequence[tuple[str, float]]  # digest of an operator, and its time in a SubNet [ms]
OperatorTimes = Sequence[tuple[str, float, int]]  # digest of an operator, time in a SubNet [ms], layers that ran for it


class MeasuredLine(TypedDict):
    """A SubNet in `subnets.jsonl`: its config, its latency [ms] or the reason of a failure, and the times of its operators.

    `implementations`: digest -> implementation of operators that did not run by the runtime's own choice. `checks`: the rules
    leave these implementations out.
    """

    key: str
    state: Literal["ok", "failed"]
    reason: str | None
    p50_ms: float | None
    spread: float | None
    noisy: bool
    config: Config
    implementations: Mapping[str, str]
    checks: bool
    operators: OperatorTimes


LEAST_SUBNETS = 5
KEPT = 0.1  # share of its time that an operator keeps in any case


def layer_overhead_ms(lines: Sequence[MeasuredLine]) -> float:
    """Overhead of one layer [ms]; 0 without enough SubNets. Robust slope: Theil and Sen (J. Am. Stat. Assoc. 63, 1968)."""
    found = [
        (
            sum(time_ms for _, time_ms, _ in line["operators"]),
            sum(layers for _, _, layers in line["operators"]),
            line["p50_ms"],
        )
        for line in lines
        if line["state"] == "ok" and line["operators"]
    ]
    if len(found) < LEAST_SUBNETS:
        return 0.0
    sums_ms, layers, p50_ms = np.array(found, np.float64).T
    if np.ptp(layers / p50_ms) == 0:
        return 0.0
    from scipy.stats import theilslopes  # takes a second

    return max(0.0, float(theilslopes(sums_ms / p50_ms, layers / p50_ms).slope))


def without_overhead(operators: OperatorTimes, overhead_ms: float) -> LayerTimes:
    """The times of a SubNet's operators [ms], minus the overhead of their layers."""
    return [(digest, max(ms - overhead_ms * layers, KEPT * ms)) for digest, ms, layers in operators]


USUAL = 0.25  # quantile of an operator's times
SUBNETS_AT_ONCE = 8
"""Number of SubNets that are made while the device measures as many others."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The time of an operator [ms] in one SubNet, without overhead. noisy: the SubNet's timing was noisy."""

    time_ms: float
    noisy: bool


@dataclass(frozen=True, slots=True)
class Bench:
    """A device and its settings for timing SubNets. `text`: the `settings` of entries. `file`: one line per trial.

    subnets_per_operator: number of SubNets in which each operator is timed, if so many SubNets are timed; fewer of SubNets
    that run for long (`enough_times`), unless operators have several implementations.
    """

    meter: Meter
    settings: MeasureSettings
    text: str
    limits: ConversionLimits
    file: Path
    progress: Progress
    subnets_per_operator: int = ENOUGH_TIMES


def entries(net: SuperNet, todo: Mapping[str, OperatorFeature], bench: Bench) -> tuple[list[Entry], dict[str, Any]]:
    """An entry for each operator (by digest) and implementation: the lower quartile of its times in the SubNets that have it.

    The lower quartile is used since disturbances only slow the device, and most operators occur in many SubNets, timed at
    different moments. State "fused": the device runs no layer for the operator, and its neighbours' times include it. State
    "failed": no SubNet with the operator could be measured. AgentError when the device is gone; call again with the same file.
    """
    device = bench.meter.capabilities()
    builder = SubNetBuilder(net, device.formats[0], bench.limits, device.precision)
    candidates = builder.implementations(todo)
    times = bench.subnets_per_operator if candidates else _times(builder, todo, bench)
    configs = _covering(net, todo, bench, times)
    lines = _measured(builder, configs, candidates, bench)
    seen = _seen(lines)
    reasons: dict[str, str] = {}
    for line in lines:
        if line["state"] == "failed":
            config = net.space.decode(net.space.row(line["config"]))
            reasons |= {feature.digest: line["reason"] or "" for feature in net.operators(config)}
    found: list[Entry] = []
    for digest, feature in todo.items():
        reason = reasons.get(digest, "no SubNet that has it could be measured")
        names = [name for name in ("", *candidates.get(digest, ())) if seen.get((digest, name))]
        found += [_entry(feature, seen.get((digest, name), ()), bench, name, reason) for name in names or ("",)]
    return found, _summary(found, candidates, lines, len(configs))


def _covering(net: SuperNet, todo: Mapping[str, OperatorFeature], bench: Bench, times: int) -> list[Config]:
    """SubNets in which each operator is timed so often; fewer times give the first of the same SubNets."""
    codes = covering_codes(net, set(todo.values()), np.random.default_rng(bench.settings.seed), times)
    return [net.space.decode(code) for code in codes]


def _times(builder: SubNetBuilder, todo: Mapping[str, OperatorFeature], bench: Bench) -> int:
    """Number of SubNets in which each operator is timed, by the latencies of SubNets that are timed in any case; without
    timing for networks that run briefly on any device.
    """
    if builder.net.macs(builder.net.max_config) * LAYER_RUNS < bench.settings.layers_ms * SLOWEST_MACS_PER_MS:
        return bench.subnets_per_operator
    lines = _measured(builder, _covering(builder.net, todo, bench, 1), {}, bench)
    found_ms = [line["p50_ms"] for line in lines if line["p50_ms"] is not None]
    run_ms = float(np.median(found_ms)) if found_ms else 0.0
    return enough_times(bench.settings, run_ms, bench.subnets_per_operator)


def chosen_in(net: SuperNet, bench: Bench) -> ChosenImplementations:
    """The chosen implementations for a SuperNet whose operators are in no table, such as a network without variables."""
    found, _ = entries(net, {feature.digest: feature for feature in net.unique_operators()}, bench)
    chosen = {digest: own[position_of_chosen(own)].implementation for digest, own in _timed(found).items()}
    return ChosenImplementations(operators={digest: name for digest, name in chosen.items() if name})


def _timed(found: Sequence[Entry]) -> dict[str, list[TimedImplementation]]:
    """The implementations of each operator, by digest."""
    by_operator: dict[str, list[TimedImplementation]] = {}
    for entry in found:
        by_operator.setdefault(entry.digest, []).append(entry.timed)
    return by_operator


def _measured(
    builder: SubNetBuilder, configs: Sequence[Config], candidates: CandidateNames, bench: Bench
) -> list[MeasuredLine]:
    """The lines of all trials; without candidates, each SubNet is one trial."""
    if not candidates:
        return measure_trials(builder, [Trial(config) for config in configs], bench, "profile in situ")
    net = builder.net
    order = np.random.default_rng(bench.settings.seed).permutation(len(configs))
    trials, others = studied(net, [configs[at] for at in order], candidates)
    lines = measure_trials(builder, trials, bench, "profile implementations")
    features = {feature.digest: feature for trial in trials for feature in net.operators(trial.config)}
    seen = _seen(lines)
    rules = ImplementationRules(_examples(features, seen, candidates))
    times = Counter({key: len(found) for key, found in seen.items()})
    more = list(mixed(net, others, candidates, rules, times))
    return lines + measure_trials(builder, more, bench, "profile in situ")


def _examples(
    features: Mapping[str, OperatorFeature], seen: Mapping[tuple[str, str], Sequence[Seen]], candidates: CandidateNames
) -> list[Example]:
    """Examples from operators that were measured with the runtime's own choice and with other implementations."""
    medians = {key: float(np.median([one.time_ms for one in found])) for key, found in seen.items()}
    return [
        Example(feature, name, medians[digest, name] / own_ms)
        for digest, feature in features.items()
        if (own_ms := medians.get((digest, ""), 0.0)) > 0
        for name in candidates.get(digest, ())
        if medians.get((digest, name), 0.0) > 0
    ]


def _seen(lines: Sequence[MeasuredLine]) -> dict[tuple[str, str], list[Seen]]:
    """The times of operators by digest and implementation, without overhead."""
    overhead_ms = layer_overhead_ms(lines)
    seen: dict[tuple[str, str], list[Seen]] = {}
    for line in lines:
        for digest, time_ms in without_overhead(line["operators"], overhead_ms):
            key = digest, line["implementations"].get(digest, "")
            seen.setdefault(key, []).append(Seen(time_ms, line["noisy"]))
    return seen


def _summary(
    found: Sequence[Entry], candidates: CandidateNames, lines: Sequence[MeasuredLine], subnets: int
) -> dict[str, Any]:
    """Counts about implementations besides the runtime's own choice. `operators`: operators that have any.

    `subnets`: SubNets that together contain all operators. `trials`: timings of these SubNets. `measured`, `left_out`:
    implementations that were measured, and that the rules left out. `checked`: measured implementations that the rules would
    have left out. `lost`: share of the latency of their operators that leaving them out would have cost.
    """
    measured = {(entry.digest, entry.implementation) for entry in found if entry.implementation}
    checked = {pair for line in lines if line["checks"] for pair in line["implementations"].items()} & measured
    before_ms = after_ms = 0.0
    timed = _timed(found)
    for digest in {digest for digest, _ in checked}:
        every = timed[digest]
        without = [one for one in every if (digest, one.implementation) not in checked]
        before_ms += without[position_of_chosen(without)].ms or 0.0 if without else 0.0
        after_ms += every[position_of_chosen(every)].ms or 0.0 if without else 0.0
    return {
        "operators": len(candidates),
        "subnets": subnets,
        "trials": len(lines),
        "measured": len(measured),
        "left_out": sum(map(len, candidates.values())) - len(measured),
        "checked": len(checked),
        "lost": 1 - after_ms / before_ms if before_ms else None,
    }


def measure_trials(builder: SubNetBuilder, trials: Sequence[Trial], bench: Bench, name: str) -> list[MeasuredLine]:
    """The lines of the bench's file, one per trial; trials that have a line are not measured again."""
    by_key = {trial.key(builder.net): trial for trial in trials}
    known = {line["key"]: line for line in read_lines(bench.file) if line["key"] in by_key}
    todo = [(key, trial) for key, trial in by_key.items() if key not in known]
    made: dict[str, WholeSubNet] = {}
    failed: deque[Measurement] = deque()

    def jobs() -> Generator[ModelJob, None, None]:
        """The jobs, made when devices become free, in the thread of any device."""
        for subnets, failures in ahead(pieces(todo, SUBNETS_AT_ONCE), builder.make, bench.meter.capabilities()):
            failed.extend(failures)
            for subnet in subnets:
                made[subnet.job.key] = subnet
                yield subnet.job

    with bench.progress.bar(name, len(by_key), len(known)) as bar, closing(jobs()) as stream:
        for measurement in _with_failures(bench.meter.measure(stream, bench.settings), failed):
            line = _line(measurement, by_key[measurement.key], made.pop(measurement.key, None))
            append_line(bench.file, line)
            known[measurement.key] = line
            bar.advance()
    return [known[key] for key in by_key]


def _with_failures(measured: Iterator[Measurement], failed: deque[Measurement]) -> Iterator[Measurement]:
    """Measurements, interleaved with the failures of SubNets that could not be converted."""
    for measurement in measured:
        yield measurement
        while failed:
            yield failed.popleft()
    while failed:
        yield failed.popleft()


def _line(measurement: Measurement, trial: Trial, subnet: WholeSubNet | None) -> MeasuredLine:
    operators: list[tuple[str, float, int]] = []
    if subnet is not None and measurement.state == "ok":
        features = [placed.feature.digest for placed in subnet.placed.operators]
        try:
            attributed = subnet.attribute(measurement.layers)
            operators = [(digest, *found) for digest, found in zip(features, attributed, strict=True)]
        except ForeignLayersError as error:
            measurement = Measurement.failed(measurement.key, str(error))
    return {
        "key": measurement.key,
        "state": measurement.state,
        "reason": measurement.reason,
        "p50_ms": measurement.p50_ms,
        "spread": measurement.spread,
        "noisy": measurement.noisy,
        "config": dict(trial.config),
        "implementations": dict(trial.implementations),
        "checks": trial.checks,
        "operators": operators,
    }


def _entry(feature: OperatorFeature, seen: Sequence[Seen], bench: Bench, implementation: str, reason: str) -> Entry:
    calm = [one.time_ms for one in seen if not one.noisy]
    times_ms = calm or [one.time_ms for one in seen]
    common: dict[str, Any] = {
        "digest": feature.digest,
        "operator": feature.operator,
        "feature": json_text(feature.to_json()),
        "settings": bench.text,
        "implementation": implementation,
        "method": "in situ",
        "cache": bench.settings.cache,
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
