"""A night against the one before: regressions beyond the tolerance, and both nights' results by device."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from tasks.operations.nightly import noise
from tasks.operations.nightly.records import (
    DeviceNight,
    Finding,
    FindingKind,
    Night,
    OperatorRounds,
    Settings,
    SubNetRounds,
)

REMEMBERED = 14
"""Nights from which a device's usual random change is estimated."""
USUAL_SHARE = 0.9
"""Quantile, over operators and SubNets, of their change in one night."""
LEAST_CHANGES = 3
"""Least number of nights with changes for an estimate."""
AnyRounds = OperatorRounds | SubNetRounds


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedDevice:
    """A device in both nights.

    areas: mean accuracy over all budgets up to the largest SubNet's latency before; None: no front. at_equal_accuracy: latency
    now over latency before, with its 90 % interval. timed: operators and SubNets that both nights have; slower, faster: numbers
    of these that changed by more than `tolerated`, as measured. notes: lines for parts that are not compared.
    """

    areas: tuple[float, float] | None
    at_equal_accuracy: tuple[float, float, float] | None
    timed: int
    slower: int
    faster: int
    tolerated: float
    latency_errors: tuple[float | None, float | None]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NightComparison:
    """Findings, the gravest first; devices by name; number of tests; notes: lines for parts that are not compared."""

    findings: tuple[Finding, ...]
    devices: Mapping[str, ComparedDevice]
    tests: int
    notes: tuple[str, ...]


def compare(settings: Settings, earlier: Sequence[Night], before: Night | None, now: Night) -> NightComparison:
    """Tonight against a night before; None: there is nothing to compare with. earlier: nights in order, `before` among them.
    All tests of a night share `false_alarms`, so that more tests do not cause more alarms.
    """
    if before is None:
        note = f"no earlier night of {now.network} in this output folder: nothing to compare with"
        return NightComparison(findings=(), devices={}, tests=0, notes=(note,))
    found = [_Device(settings, earlier, before, now, name) for name in now.devices if name in before.devices]
    tests = [test for device in found for test in device.tests()]
    first, second = list(before.accuracy_errors.values()), list(now.accuracy_errors.values())
    if first and second and first != second:
        means, p_value = (
            (float(np.mean(first)), float(np.mean(second))),
            noise.p_larger(first, second, settings.error_points),
        )
        what = "mean error on held-out SubNets"
        tests.append(_finding("", "accuracy predictor", what, "", means, "points", p_value))
    rejected = noise.holm([test.p_value for test in tests], settings.false_alarms)
    findings = [test for test, is_worse in zip(tests, rejected, strict=True) if is_worse]
    notes = [f"{name}: was not in the night before: not compared" for name in now.devices if name not in before.devices]
    notes += [f"{name}: is no device of tonight's run" for name in before.devices if name not in now.devices]
    return NightComparison(
        findings=tuple(sorted(findings, key=_gravity)),
        devices={device.name: device.described() for device in found},
        tests=len(tests),
        notes=tuple(notes),
    )


def _gravity(finding: Finding) -> tuple[int, float]:
    order: tuple[FindingKind, ...] = ("front", "SubNet", "operator", "latency predictor", "accuracy predictor")
    ratio = finding.now / finding.before if finding.now and finding.before else math.inf
    return order.index(finding.kind), -ratio


def _finding(
    device: str, kind: FindingKind, what: str, name: str, pair: tuple[float, float | None], unit: str, p_value: float
) -> Finding:
    """pair: the values of both nights."""
    return Finding.model_validate(
        {
            "device": device, "kind": kind, "what": what, "name": name,
            "before": pair[0], "now": pair[1], "unit": unit, "p_value": p_value,
        }
    )  # fmt: skip


class _Device:
    """One device in both nights."""

    def __init__(self, settings: Settings, earlier: Sequence[Night], before: Night, now: Night, name: str) -> None:
        self.name = name
        self._settings = settings
        self._before, self._now = before.devices[name], now.devices[name]
        same_weights = (before.supernet, before.inputs.get("data")) == (now.supernet, now.inputs.get("data"))
        images = (None, None) if same_weights else (before.test_images, now.test_images)
        alike = self._before.times.measured_with == self._now.times.measured_with
        self._pairs = list(_shared(self._before, self._now)) if alike else []
        self._scatters = {kind: _scatters(self._pairs, kind) for kind in (OperatorRounds, SubNetRounds)}
        self._fronts = [_front(one, count) for one, count in zip((self._before, self._now), images, strict=True)]
        times = self._before.times
        largest = next((one.rounds_ms for one in times.subnets if one.digest == times.largest), ())
        self._reference_ms = noise.typical_ms(largest) if largest else None
        self._tolerated = max(settings.slower, _usual_change(earlier, name, settings.false_alarms))
        self._notes = [] if alike else ["latencies were measured otherwise the night before: not compared"]
        if alike and not self._pairs:
            self._notes.append("no operator or SubNet was timed in both nights: latencies are not compared")

    def tests(self) -> Iterator[Finding]:
        """Findings for everything that is tested, each with its p-value."""
        for one, other in self._pairs:
            yield self._slower(one, other)
        if areas := self._areas():
            first, second = (float(one.mean()) for one in areas)
            p_value = noise.p_smaller(*areas, self._settings.smaller_front)
            yield _finding(self.name, "front", "area under the front", "", (first, second), "area", p_value)
        before, now = self._errors
        if before and now and before != now:
            p_value, what = noise.p_larger(before, now, self._settings.error_points), "median error on held-out SubNets"
            yield _finding(self.name, "latency predictor", what, "", (median(before), median(now)), "%", p_value)

    def described(self) -> ComparedDevice:
        """Both nights of this device, with or without findings."""
        ratios = [
            noise.typical_ms(now.rounds_ms) / noise.typical_ms(before.rounds_ms)
            for before, now in self._pairs
            if not now.reason
        ]
        most = 1 + self._tolerated
        areas, fronts = self._areas(), self._fronts
        ratio = noise.ratio_at_equal_accuracy(fronts[0], fronts[1]) if fronts[0] and fronts[1] and self._pairs else None
        first, second = (median(errors) if errors else None for errors in self._errors)
        return ComparedDevice(
            areas=None if areas is None else (float(areas[0].mean()), float(areas[1].mean())),
            at_equal_accuracy=ratio,
            timed=len(ratios),
            slower=sum(one > most for one in ratios),
            faster=sum(one < 1 / most for one in ratios),
            tolerated=self._tolerated,
            latency_errors=(first, second),
            notes=tuple(self._notes),
        )

    def _areas(self) -> tuple[np.ndarray, np.ndarray] | None:
        first, second = self._fronts
        if first is None or second is None or self._reference_ms is None or not self._pairs:
            return None
        return first.areas(self._reference_ms), second.areas(self._reference_ms)

    def _slower(self, before: AnyRounds, now: AnyRounds) -> Finding:
        kind: FindingKind = "operator" if isinstance(now, OperatorRounds) else "SubNet"
        first = noise.typical_ms(before.rounds_ms)
        if now.reason:
            what = f"{now.title} fails: {now.reason}"
            return _finding(self.name, kind, what, now.digest, (first, None), "ms", 0.0)
        p_value = noise.p_slower(before.rounds_ms, now.rounds_ms, self._tolerated, self._scatters[type(now)])
        times = first, noise.typical_ms(now.rounds_ms)
        return _finding(self.name, kind, now.title, now.digest, times, "ms", p_value)

    @property
    def _errors(self) -> tuple[list[float], list[float]]:
        """Errors in both nights, in percent."""
        before, now = self._before.latency_errors, self._now.latency_errors
        return [100 * error for error in before.values()], [100 * error for error in now.values()]


def _shared(before: DeviceNight, now: DeviceNight) -> Iterator[tuple[AnyRounds, AnyRounds]]:
    """Pairs of operators and SubNets that were timed in both nights, or fail now."""
    for first, second in ((before.times.operators, now.times.operators), (before.times.subnets, now.times.subnets)):
        known: dict[str, AnyRounds] = {one.digest: one for one in first if len(one.rounds_ms) >= noise.LEAST_ROUNDS}
        for one in second:
            if one.digest in known and (one.reason or len(one.rounds_ms) >= noise.LEAST_ROUNDS):
                yield known[one.digest], one


def _scatters(
    pairs: Sequence[tuple[AnyRounds, AnyRounds]], kind: type[AnyRounds]
) -> tuple[noise.Scatter, noise.Scatter]:
    """Scatter of the rounds of operators, or of SubNets: in the night before and tonight."""
    known = [(before, now) for before, now in pairs if isinstance(now, kind) and not now.reason]
    return noise.Scatter.fit(before.rounds_ms for before, _ in known), noise.Scatter.fit(
        now.rounds_ms for _, now in known
    )


def _front(device: DeviceNight, images: int | None) -> noise.DrawnFront | None:
    rows = [(one.rounds_ms, one.accuracy) for one in device.times.subnets if len(one.rounds_ms) >= noise.LEAST_ROUNDS]
    points = [(rounds, accuracy) for rounds, accuracy in rows if accuracy is not None]
    if not points:
        return None
    return noise.DrawnFront.draw([rounds for rounds, _ in points], [accuracy for _, accuracy in points], images)


def _usual_change(nights: Sequence[Night], name: str, level: float) -> float:
    """Share by which a device's latencies rise without a cause in one night of 1 / level; 0 if too little is known.

    By Student's t, from the root mean square of the changes over earlier nights: nights without a finding on the device, and
    with the same device and way of measuring as the night before.
    """
    changes = []
    for before, now in pairwise([night for night in nights if name in night.devices][-REMEMBERED:]):
        first, second = before.devices[name], now.devices[name]
        alike = (first.fingerprint, first.times.measured_with) == (second.fingerprint, second.times.measured_with)
        if not alike or any(finding.device == name for finding in now.findings):
            continue
        logs = [
            abs(math.log(noise.typical_ms(other.rounds_ms) / noise.typical_ms(one.rounds_ms)))
            for one, other in _shared(first, second)
            if not other.reason
        ]
        if logs:
            changes.append(float(np.quantile(logs, USUAL_SHARE)))
    return math.expm1(noise.largest_of(changes, level)) if len(changes) >= LEAST_CHANGES else 0.0
