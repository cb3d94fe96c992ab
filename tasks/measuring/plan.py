"""A dry run of stage "profile": known operators of one device, operators to measure, and the time that takes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal, TypedDict

import numpy as np

import tailor_ir
from profiling_agents.messages import Capabilities, MeasureSettings
from tasks.measuring.enumerate import read_operators
from tasks.measuring.in_network.cover import covering_codes
from tasks.measuring.lut import Entry, Lut
from tasks.measuring.profile import STORE_FOLDER, FeaturesByDigest, Settings, open_table, unknown, unknown_alone
from tasks.measuring.settings import HANDLING_MS

TRIALS = 1.5
"""Trials of a SubNet on a runtime with several implementations; measured: 1.2 to 1.5 (`benchmarks.kernels`)."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The device time for one operator [ms]: means of timed ones, by operator type; else a guess."""

    by_operator: dict[str, float]
    overall: float | None
    guess: float

    @classmethod
    def of(cls, lut: Lut, settings: MeasureSettings) -> "Costs":
        """The costs in a table's entries, and in the settings as fallback for a device without any."""
        timed = [entry for entry in lut.entries() if entry.cost_ms is not None]
        by_operator = {name: _mean(entry for entry in timed if entry.operator == name) for name in _names(timed)}
        guess = HANDLING_MS + settings.warmup_ms + settings.time_cap_ms + settings.energy_ms
        return cls(by_operator, _mean(timed) if timed else None, guess)

    def ms(self, operator: str) -> float:
        """The expected time of one operator of this type."""
        fallback = self.guess if self.overall is None else self.overall
        return self.by_operator.get(operator, fallback)


class ProfilePlan(TypedDict):
    """The operators of a network on one device, and the device time [s] for those to measure.

    subnets: SubNets to measure in situ; None for method "alone". known_noisy, known_failed: among the known operators.
    """

    description: str
    store: str
    operators: int
    known: int
    known_noisy: int
    known_failed: int
    to_measure: int
    to_measure_by_operator: dict[str, int]
    subnets: int | None
    estimated_s: float
    estimated_from: Literal["settings", "earlier measurements"]


def plan(
    settings: Settings, operators_folder: Path, capabilities: Capabilities, supernet: Path | None = None, batch: int = 1
) -> ProfilePlan:
    """The plan of `tasks.measuring.profile.run` for these operators on this device; nothing is measured or written.

    estimated_s: device time [s]. For operators measured alone it comes from earlier costs on this device under the same
    settings; otherwise, and for SubNets, from the settings (warm-up, time cap, layers, energy). Conversion is not included.
    Operators timed in SubNets are measured alone, too, if their energy is requested.
    """
    operators = read_operators(operators_folder)
    lut = open_table(settings, settings.store or operators_folder / STORE_FOLDER, capabilities)
    known = [entry for digest in operators if (entry := lut.get(digest))]
    missing = unknown(settings, lut, operators)
    metered = unknown_alone(settings, lut, operators, capabilities) if settings.meters(capabilities) else {}
    todo = [feature.operator for feature in {**missing, **metered}.values()]
    costs = Costs.of(lut, settings.measure)
    subnets = _subnets(settings, missing, supernet, batch) if settings.method == "in situ" else None
    alone = [feature.operator for feature in (missing if subnets is None else metered).values()]
    trials = (subnets or 0) * (TRIALS if "ncnn" in capabilities.formats else 1.0)
    estimated_ms = sum(map(costs.ms, alone)) + trials * _subnet_ms(settings.subnet)
    return {
        "description": lut.device.description,
        "store": str(lut.folder),
        "operators": len(operators),
        "known": len(known),
        "known_noisy": sum(entry.noisy for entry in known),
        "known_failed": sum(entry.state == "failed" for entry in known),
        "to_measure": len(todo),
        "to_measure_by_operator": dict(Counter(todo).most_common()),
        "subnets": subnets,
        "estimated_s": round(estimated_ms / 1e3, 3),
        "estimated_from": "settings" if costs.overall is None or subnets is not None else "earlier measurements",
    }


def _subnets(settings: Settings, missing: FeaturesByDigest, supernet: Path | None, batch: int) -> int:
    """The number of SubNets that together contain all of the operators."""
    assert supernet is not None
    if not missing:
        return 0
    net, rng = tailor_ir.load(supernet, batch=batch), np.random.default_rng(settings.subnet.seed)
    return len(covering_codes(net, set(missing.values()), rng, settings.subnets_per_operator))


def _subnet_ms(settings: MeasureSettings) -> float:
    return settings.warmup_ms + settings.time_cap_ms + settings.layers_ms + settings.energy_ms


def _names(entries: Iterable[Entry]) -> set[str]:
    return {entry.operator for entry in entries}


def _mean(entries: Iterable[Entry]) -> float:
    return fmean(entry.cost_ms for entry in entries if entry.cost_ms is not None)
