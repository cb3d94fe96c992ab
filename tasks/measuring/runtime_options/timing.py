"""Engines timed side by side on a device, and the comparison whether one engine is faster than another.

Each row of times is a JSON line, so that a killed stage can resume. Both engines run a SubNet within seconds of each
other, so that disturbances of the device slow both; the ratio of their times is a pair. The result is the geometric
mean over SubNets of the median over rounds. The interval comes from a bootstrap within each SubNet (Efron and
Tibshirani 1993, chapter 13), because the set of compared SubNets is fixed.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from profiling_agents.client import AgentClient, ModelJob
from profiling_agents.messages import DEFAULT_ENGINE, Engine, MeasureSettings
from solvers.tables import Values
from tasks.base.artifacts import append_line, read_lines
from tasks.base.progress import Bar
from tasks.base.schemas.stored import Record
from tasks.measuring.runtime_options.settings import Gain

DRAWS = 1000
INTERVAL = (0.025, 0.975)
LEAST_ROUNDS = 3
"""Smallest number of rounds from which the noise can be estimated."""


class Comparison(Gain):
    """Time with a choice over time without it. largest: the ratio of the largest SubNet."""

    largest: float

    def slower(self, share: float) -> bool:
        """Whether the choice costs more than this share of the time, judged by the interval's lower end if it is known."""
        return (self.ratio if self.low is None else self.low) > 1 + share

    def rejection(self, share: float) -> str | None:
        """The reason why the choice is not kept; None if it saves this share of the time and the gain exceeds the noise.

        A choice that slows the largest SubNet by more than this share is not kept either.
        """
        if self.high is None:
            return "timed too few times to tell"
        if self.ratio > 1 - share:
            if self.ratio > 1:
                return f"takes {self.ratio - 1:.1%} more time; needed: {share:.0%} less"
            return f"saves {1 - self.ratio:.1%} of the time; needed: {share:.0%}"
        if self.high >= 1:
            return "its gain is within the noise"
        if self.largest > 1 + share:
            return f"slows the largest SubNet by {self.largest - 1:.1%}"
        return None


def compare(log_ratios: Sequence[Values], seed: int) -> Comparison:
    """The comparison from logarithms of ratios: one sequence per SubNet, the largest first, with one value per round."""
    rng = np.random.default_rng(seed)
    medians = np.array([np.median(one) for one in log_ratios])
    low = high = None
    if min(map(len, log_ratios)) >= LEAST_ROUNDS:
        drawn = [np.median(rng.choice(one, (DRAWS, len(one))), axis=1) for one in log_ratios]
        low, high = (float(np.exp(value)) for value in np.quantile(np.mean(drawn, axis=0), INTERVAL))
    return Comparison(
        ratio=float(np.exp(medians.mean())),
        low=low,
        high=high,
        largest=float(np.exp(medians[0])),
        pairs=sum(map(len, log_ratios)),
    )


RowKey = tuple[str, int, str, tuple[str, ...]]


class TimedRow(Record):
    """One SubNet timed under several engines in turn: latencies [ms], or None and the reason of the failure."""

    step: str
    round: int
    subnet: str
    engines: tuple[str, ...]
    p50_ms: tuple[float | None, ...]
    reasons: tuple[str | None, ...]
    seconds: float

    @property
    def key(self) -> RowKey:
        """The key by which a second call finds the row."""
        return self.step, self.round, self.subnet, self.engines


def step_of(base: Engine, engine: Engine | None = None) -> str:
    """The name of a step: an engine, or the choices of all options (engine=None), timed beside the engine `base`."""
    name = "choices" if engine is None else engine.text or "defaults"
    return f"{name} beside {base.text or 'defaults'}"


@dataclass(frozen=True, slots=True)
class Pairs:
    """Times of a round. log_ratios: engine (its text) -> SubNet -> logarithm of its time over the base engine's time.

    failures: engine (its text) -> reason why it has no time on some SubNet.
    """

    log_ratios: Mapping[str, Mapping[str, float]]
    failures: Mapping[str, str]


@dataclass(slots=True)
class EngineTimer:
    """Times SubNets (jobs by digest) under engines; the caller holds the lease. spent_s: time spent on the rows so far.

    A row begins and ends with the base engine; the geometric mean of both times is its time, so that a gradual slowdown of the
    device cancels. Every second round runs in reverse order.
    """

    client: AgentClient
    jobs: dict[str, ModelJob]
    settings: MeasureSettings
    file: Path
    bar: Bar
    spent_s: float = 0.0
    _used: dict[RowKey, TimedRow] = field(default_factory=dict)
    _known: dict[RowKey, TimedRow] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = map(TimedRow.model_validate, read_lines(self.file))
        self._known = {row.key: row for row in rows}

    def drop_failures(self) -> dict[str, str]:
        """Drop SubNets that cannot be timed with the runtime's defaults; returns digest -> reason."""
        failed = {}
        for digest in self.jobs:
            row = self._row(step_of(DEFAULT_ENGINE, DEFAULT_ENGINE), 0, digest, [DEFAULT_ENGINE, DEFAULT_ENGINE])
            if not any(row.p50_ms):
                failed[digest] = next((reason for reason in row.reasons if reason), "no time")
        self.jobs = {digest: job for digest, job in self.jobs.items() if digest not in failed}
        return failed

    def median_ms(self, digest: str, engine: Engine, chosen: Engine) -> float | None:
        """The median [ms] of a SubNet's times with an engine, in the comparison of `chosen` with the runtime's defaults."""
        rows = [
            row for row in self._used.values() if row.step == step_of(DEFAULT_ENGINE, chosen) and row.subnet == digest
        ]
        times_ms = [
            one for row in rows for text, one in zip(row.engines, row.p50_ms, strict=True) if text == engine.text
        ]
        known = [one for one in times_ms if one is not None]
        return float(np.median(known)) if known else None

    def pairs(self, step: str, number: int, base: Engine, engines: Sequence[Engine]) -> Pairs:
        """One round of the named step: every SubNet under every engine, compared with `base`."""
        order = engines if number % 2 == 0 else engines[::-1]
        log_ratios: dict[str, dict[str, float]] = {engine.text: {} for engine in engines}
        failures: dict[str, str] = {}
        for digest in self.jobs:
            row = self._row(step, number, digest, [base, *order, base])
            ends = [row.p50_ms[0], row.p50_ms[-1]]
            base_ms = math.exp(np.mean([math.log(one) for one in ends if one])) if any(ends) else None
            for text, took_ms, reason in zip(row.engines, row.p50_ms, row.reasons, strict=True):
                if took_ms is None:
                    failures.setdefault(text, reason or "no time")
                elif text != base.text and base_ms is not None:
                    log_ratios[text][digest] = math.log(took_ms / base_ms)
        return Pairs(log_ratios, failures)

    def _row(self, step: str, number: int, digest: str, engines: Sequence[Engine]) -> TimedRow:
        texts = tuple(engine.text for engine in engines)
        key = step, number, digest, texts
        if key in self._used:
            return self._used[key]
        row = self._known.get(key)
        if row is None:
            start_s = time.monotonic()
            jobs = [replace(self.jobs[digest], engine=engine) for engine in engines]
            found = list(self.client.measure(jobs, self.settings))
            row = TimedRow(
                step=step,
                round=number,
                subnet=digest,
                engines=texts,
                p50_ms=tuple(one.p50_ms for one in found),
                reasons=tuple(one.reason for one in found),
                seconds=round(time.monotonic() - start_s, 3),
            )
            append_line(self.file, row.to_json())
        self._used[key] = row
        self.spent_s += row.seconds
        self.bar.advance(len(engines))
        return row
