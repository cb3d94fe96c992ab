"""Stage "runtime_options": the options with which a device's runtime runs whole networks, chosen by measurement.

The largest SubNet, the smallest and a few random SubNets are timed under every choice of every option, each beside the
current engine. Later stages run all models with the chosen engine. A check compares the outputs of a model under both
engines.

The choice is a greedy descent: in each step, the choice that gains most changes the engine. Clearly slower choices are
not timed to the end. The best choice is kept if it gains enough; its option is settled, and the other options are tried
again with the new engine, since the gain of one option may depend on another. The descent ends when no choice gains
enough.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

import tailor_ir
from profiling_agents.client import AgentClient, ModelJob, RunError
from profiling_agents.messages import DEFAULT_ENGINE, MIB, AgentError, Capabilities, Engine, EngineOption
from tailor_ir import SuperNet
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.stored import StageResult
from tasks.evaluation.conversion import ConversionError
from tasks.measuring.runtime_options.settings import (
    RUNTIME_OPTIONS_FILE,
    ChosenEngine,
    LeftOut,
    Settings,
    TimedSubNet,
    TriedChoice,
)
from tasks.measuring.runtime_options.timing import LEAST_ROUNDS, Comparison, EngineTimer, compare, step_of
from tasks.measuring.subnets import LeasedDevice, Subject, jobs_of, validation_configs

SLOWER = 0.1
"""A choice that costs more than this share of the time in the first round is not timed again."""

Choice = tuple[str, str]
"""An option and one of its choices."""
WHOLE: Choice = ("", "")
"""Placeholder instead of a choice, for an engine that differs in more than one choice."""


@dataclass(slots=True)
class Descent:
    """The search for an engine. difference: reason why an engine's outputs differ from those of the defaults, or None.

    by_operator: leave out options that can be chosen for single operators. tried, left_out: results so far.
    """

    settings: Settings
    options: Sequence[EngineOption]
    timer: EngineTimer
    difference: Callable[[Engine], str | None]
    by_operator: bool = False
    tried: list[TriedChoice] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def tuned(self, start: Engine) -> Engine:
        """An engine that no further choice improves. Options for which `start` has choices stay unchanged."""
        engine, open_options = start, self._open(start)
        while open_options:
            present = engine.settled(self.options)
            others = {
                (option.name, choice): engine.changed(option.name, choice)
                for option in open_options
                for choice in option.choices
                if choice != present[option.name]
            }
            kept = self._best(engine, others)
            if kept is None:
                break
            engine = others[kept]
            open_options = [option for option in open_options if option.name != kept[0]]
        return engine if engine == start else self._confirmed(start, engine)

    def _open(self, start: Engine) -> list[EngineOption]:
        """The options to be tried; the left-out ones are recorded."""
        free = [one for one in self.options if one.name not in start.choices]
        for option in free:
            if self.by_operator and option.by_operator:
                reason = "chosen for each operator while operators are measured"
                choices = (choice for choice in option.choices if choice != option.default)
                self.left_out += [LeftOut(option=option.name, choice=choice, reason=reason) for choice in choices]
        return [one for one in free if not (self.by_operator and one.by_operator)]

    def beside(self, base: Engine, engine: Engine) -> Comparison | None:
        """Compare an engine with another, timed anew in as many rounds as the settings have; None if it cannot be timed."""
        found = self._screened(step_of(base, engine), base, {WHOLE: engine}, whole=True)
        self.left_out = [one for one in self.left_out if one.option]
        return found.get(WHOLE)

    def _confirmed(self, start: Engine, engine: Engine) -> Engine:
        """The engine if new times confirm its gain, else `start`: the best of many choices looks better than it is."""
        found = self.beside(start, engine)
        reason = "it has no time" if found is None else found.rejection(self.settings.minimal_gain)
        if reason is None:
            return engine
        not_confirmed = {"reason": f"not confirmed: {reason}"}
        self.tried = [one if one.reason else one.model_copy(update=not_confirmed) for one in self.tried]
        return start

    def _best(self, base: Engine, others: Mapping[Choice, Engine]) -> Choice | None:
        """The choice that is kept, if any; records all tried choices."""
        found = self._screened(step_of(base), base, others)
        reasons = {choice: one.rejection(self.settings.minimal_gain) for choice, one in found.items()}
        kept: Choice | None = None
        for choice in sorted(found, key=lambda one: found[one].ratio):
            if kept is not None:
                reasons[choice] = reasons[choice] or f"{'='.join(kept)} gains more"
            elif reasons[choice] is None:
                reasons[choice] = self.difference(others[choice])
                kept = choice if reasons[choice] is None else None
        for choice, comparison in found.items():
            self.tried.append(
                TriedChoice(
                    option=choice[0], choice=choice[1], beside=base.choices, gain=comparison, reason=reasons[choice]
                )
            )
        return kept

    def _screened(
        self, step: str, base: Engine, others: Mapping[Choice, Engine], *, whole: bool = False
    ) -> dict[Choice, Comparison]:
        """Comparisons with `base` of the engines that could be timed. whole: all rounds, whatever their results and times."""
        log_ratios: dict[Choice, dict[str, list[float]]] = {choice: {} for choice in others}
        found: dict[Choice, Comparison] = {}
        left = dict(others)
        for number in range(self.settings.rounds):
            if not left or (not whole and self.timer.spent_s >= self.settings.limit_s):
                break
            pairs = self.timer.pairs(step, number, base, list(left.values()))
            for choice, engine in tuple(left.items()):
                for digest, value in pairs.log_ratios[engine.text].items():
                    log_ratios[choice].setdefault(digest, []).append(value)
                reason = pairs.failures.get(engine.text)
                if reason is None and not log_ratios[choice]:
                    reason = "the engine beside it has no time"
                if reason:
                    self.left_out.append(LeftOut(option=choice[0], choice=choice[1], reason=reason))
                    found.pop(choice, None)
                    del left[choice]
                    continue
                found[choice] = compare([np.array(one) for one in log_ratios[choice].values()], self.settings.seed)
                if not whole and self._decided(found[choice], number):
                    del left[choice]
        for option, name in set(left) - set(found):
            reason = f"{self.settings.limit_s:g} s were over"
            self.left_out.append(LeftOut(option=option, choice=name, reason=reason))
        return found

    def _decided(self, comparison: Comparison, number: int) -> bool:
        """Whether further rounds could not change the decision."""
        needed, low, high = 1 - self.settings.minimal_gain, comparison.low, comparison.high
        if number + 1 < LEAST_ROUNDS:
            return comparison.slower(SLOWER)
        return (low is not None and low > needed) or (high is not None and high < needed)


Outputs = list[list[np.ndarray]]


class CheckedModel(NamedTuple):
    """A whole SubNet with its weights. inputs: draws a batch of each of its inputs."""

    job: ModelJob
    inputs: Callable[[np.random.Generator], Sequence[np.ndarray]]


@dataclass(slots=True)
class OutputCheck:
    """Runs models with weights on random inputs; the caller holds the lease. tolerance: of differences, relative."""

    client: AgentClient
    models: Sequence[CheckedModel]
    tolerance: float
    seed: int
    _expected: Outputs = field(default_factory=list)

    def difference(self, engine: Engine) -> str | None:
        """The reason why the outputs differ from those of the runtime's defaults; None if they do not."""
        try:
            if not self._expected:
                self._expected = self._run(DEFAULT_ENGINE)
            found = self._run(engine)
        except RunError as error:
            return f"no outputs: {error}"
        largest = max(map(_difference, found, self._expected), default=0.0)
        if largest <= self.tolerance:
            return None
        return f"outputs differ from those of the defaults by {largest:.3g}; allowed: {self.tolerance:g}"

    def _run(self, engine: Engine) -> Outputs:
        rng = np.random.default_rng(self.seed)
        return [self.client.run(replace(job, engine=engine), draw(rng)) for job, draw in self.models]


def _difference(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference over the largest expected value; infinite if a value is not finite."""
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        difference = float(np.abs(one - other).max() / max(float(np.abs(other).max()), np.finfo(np.float32).tiny))
        worst = max(worst, difference if np.isfinite(difference) else np.inf)
    return worst


TIMES_FILE = "runtime_options.jsonl"
KINDS = ("largest", "smallest")


def run(
    settings: Settings,
    supernet: Path,
    device: LeasedDevice,
    out: Path,
    progress: Progress,
    *,
    by_operator: bool = False,
) -> StageResult:
    """Choose the engine of a device, whose client has the runtime's defaults; writes and returns `runtime_options.json`.

    by_operator: options that can be chosen for single operators are not tried, since a later stage chooses them per operator.
    A second call resumes from the times in `out`. UserError for a fixed choice that the device lacks, or that changes outputs.
    """
    client = device.client
    found = client.capabilities()
    fixed = _fixed(settings, device.name, found)
    if not found.engine_options or not settings.wanted:
        return _file(device.name, found, fixed, fixed).write(out / RUNTIME_OPTIONS_FILE)
    builder = ModelsOfSubNets(tailor_ir.load(supernet, batch=device.batch), settings, found)
    jobs, failed = builder.timed()
    check = OutputCheck(client, builder.whole(tuple(jobs)), settings.tolerance.of(found.precision), settings.seed)
    if fixed != DEFAULT_ENGINE and (reason := check.difference(fixed)):
        raise UserError(_where(device.name), f"{fixed.text}: {reason}", next_step="leave it to the runtime's default")
    choices = sum(len(one.choices) + 1 for one in found.engine_options)
    with progress.bar("runtime_options", choices * settings.rounds * len(jobs)) as bar:
        timer = EngineTimer(client, jobs, settings.measure, out / TIMES_FILE, bar)
        failed |= timer.drop_failures()
        descent = Descent(settings, found.engine_options, timer, check.difference, by_operator)
        chosen, gain = _chosen(settings, fixed, descent, found)
    measured = {
        "gain": gain,
        "tried": tuple(descent.tried),
        "left_out": tuple(descent.left_out),
        "subnets": tuple(_timed(builder.kinds, timer, chosen)),
        "failed": failed,
        "measured_s": round(timer.spent_s, 3),
    }
    return _file(device.name, found, chosen, fixed).model_copy(update=measured).write(out / RUNTIME_OPTIONS_FILE)


def _where(device: str) -> str:
    return f"runtime options of device '{device}'"


def _fixed(settings: Settings, device: str, found: Capabilities) -> Engine:
    """The fixed choices; UserError if the device lacks one."""
    engine = Engine(choices=settings.fixed)
    try:
        engine.settled(found.engine_options)
    except AgentError as error:
        next_step = f"change runtime_options.fixed or device.{device}.runtime_options"
        raise UserError(_where(device), str(error), next_step=next_step) from error
    return engine


def _chosen(
    settings: Settings, fixed: Engine, descent: Descent, found: Capabilities
) -> tuple[Engine, Comparison | None]:
    """The engine and its comparison with the runtime's defaults; None if it equals these, or nothing could be timed."""
    timed = bool(descent.timer.jobs)
    engine = descent.tuned(fixed) if settings.tune and timed else fixed
    chosen = engine.without_defaults(found.engine_options)
    return chosen, descent.beside(DEFAULT_ENGINE, chosen) if chosen != DEFAULT_ENGINE and timed else None


def _timed(kinds: Mapping[str, str], timer: EngineTimer, chosen: Engine) -> Iterator[TimedSubNet]:
    """The SubNets' median latencies in the comparison of the chosen engine with the defaults."""
    for digest in timer.jobs:
        default_ms, chosen_ms = (timer.median_ms(digest, one, chosen) for one in (DEFAULT_ENGINE, chosen))
        if default_ms is not None and chosen_ms is not None:
            yield TimedSubNet(digest=digest, kind=kinds[digest], default_ms=default_ms, chosen_ms=chosen_ms)


def _file(device: str, found: Capabilities, chosen: Engine, fixed: Engine) -> ChosenEngine:
    """The content of `runtime_options.json` for an engine without measurements."""
    options = {
        one.name: (one.default, *(choice for choice in one.choices if choice != one.default))
        for one in found.engine_options
    }
    return ChosenEngine(
        device=device,
        chosen=chosen.without_defaults(found.engine_options).choices,
        fixed=fixed.choices,
        gain=None,
        tried=(),
        left_out=(),
        options=options,
        subnets=(),
        failed={},
        measured_s=0.0,
    )


class ModelsOfSubNets:
    """SubNets as jobs in the device's format: without weights for timing, with weights for running."""

    def __init__(self, net: SuperNet, settings: Settings, device: Capabilities) -> None:
        self._net, self._settings, self._device = net, settings, device
        configs = validation_configs(net, settings.random_subnets, settings.seed)
        names = (*KINDS, *["random"] * len(configs))
        self._configs = {net.space.digest(config): config for config in configs}
        self.kinds = dict(zip(self._configs, names, strict=False))

    def timed(self) -> tuple[dict[str, ModelJob], dict[str, str]]:
        """Jobs by digest, the largest SubNet's first; and the reasons of failed conversions, by digest."""
        outcomes = self._outcomes(self._configs, weights=False)
        jobs = {digest: job for digest, job in outcomes.items() if isinstance(job, ModelJob)}
        return jobs, {digest: reason for digest, reason in outcomes.items() if isinstance(reason, str)}

    def whole(self, digests: Sequence[str]) -> list[CheckedModel]:
        """The largest and smallest of these SubNets with weights, unless too large for the device. ConversionError."""
        ends = {digests[0], *(one for one in digests if self.kinds[one] == "smallest")} if digests else set[str]()
        models = []
        for digest, job in self._outcomes(sorted(ends), weights=True).items():
            if isinstance(job, str):
                raise ConversionError(job)
            if max(map(len, job.files)) <= self._device.max_model_mib * MIB:
                models.append(CheckedModel(job, partial(self._net.sample_inputs, self._configs[digest])))
        return models

    def _outcomes(self, digests: Iterable[str], *, weights: bool) -> dict[str, ModelJob | str]:
        subjects = [Subject(digest, self._net, self._configs[digest]) for digest in digests]
        return jobs_of(subjects, self._device, self._settings.limits, weights=weights)
