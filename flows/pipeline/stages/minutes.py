"""`minutes=N`: a plan of a whole run by costs that are measured here first, and the clock by which the run keeps it.

The plan chooses the most thorough of a few levels of measuring, searching and refining whose stages leave half of the time for
training. Stages that need no trained weights are worked first. Epochs are then chosen by the time that is left, later the
number of budgets and candidates, at most those of the plan. All choices are in a file of the run's folder: the same call has
the same keys of stages, and goes on. Settings that differ from their defaults are the user's, and stay.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from rich.table import Table

from flows.config import FlowConfig, RetargetConfig, RunConfig
from flows.pipeline.run import Run
from flows.pipeline.stages.costs import Costs, Forecast, PlannedStage, measured
from flows.pipeline.stages.spec import Outputs, StageSpec, data_key, model_key, rows
from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError
from tasks.base.schemas.stored import Stored

PLAN_FILE = "minutes.json"
REPORT = "report"
TIMES = "profile.subnets_per_operator"
KNOBS = (
    "predict.random_subnets",
    "predict.fit_subnets",
    "predict.rounds",
    TIMES,
    "search.budget_count",
    "refine.candidates",
    "runtime_options.limit_s",
)
LEVELS = (
    (4, 2, 1, 1, 3, 1, 1.0),
    (6, 3, 1, 2, 4, 1, 5.0),
    (8, 4, 2, 4, 6, 2, 10.0),
    (12, 6, 2, 10, 8, 2, 20.0),
    (24, 12, 2, 20, 12, 3, 60.0),
    (24, 12, 2, 20, 12, 6, 60.0),
    (24, 12, 2, 20, 12, 12, 60.0),
)
"""Values of the knobs, from the quickest run to the most thorough; the fifth level has the defaults."""
RESERVE = 0.05
"""Share of the time that a plan leaves free."""
TRAINING = 0.5
"""Least share of the time for training, but on the first level."""
MOST_EPOCHS, MOST_STEPS = 100, 5000
"""A training is no longer than both."""
LEAST_STEPS = 50
WARM_UP = 0.1
"""Largest share of a training in which its learning rate rises."""
BASE_SHARE = 0.5
"""A step of the base network over one of the SuperNet, which has several SubNets."""
BEGUN_S, REPORT_S = 6.0, 3.0
"""Seconds of the start of a command and its server, and of the report."""
LEAST_RATIO, MOST_RATIO = 0.5, 4.0
"""Limits of the factor by which measured stages correct later ones."""


class Plan(Stored):
    """A plan as it is told, and all choices so far.

    network: digest of network and data. chosen: stages whose choice is made.
    """

    STAGE: ClassVar[str] = "run"
    KIND: ClassVar[str] = "plan"

    network: str
    minutes: float
    settings: dict[str, Any]
    stages: tuple[PlannedStage, ...]
    costs: Costs
    chosen: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Expected seconds of the whole run."""
        return sum(stage.seconds for stage in self.stages)


def with_settings(config: FlowConfig, settings: Mapping[str, Any]) -> FlowConfig:
    """The config with values in the place of others, by dotted names."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        section, _, field = name.partition(".")
        sections.setdefault(section, {})[field] = value
    own = {name: getattr(config, name).model_copy(update=fields) for name, fields in sections.items()}
    return config.model_copy(update=own)


def decided(config: FlowConfig, until: str) -> FlowConfig:
    """The config with all choices that an earlier call of the same run has made."""
    plan = _known(config, config.run_folder(until) / PLAN_FILE)
    return config if plan is None else with_settings(config, plan.settings)


def _known(config: FlowConfig, file: Path) -> Plan | None:
    """The plan of an earlier call for the same network and data."""
    if config.minutes is None or not file.is_file():
        return None
    plan = Plan.read(file)
    return plan if plan.network == _network(config) else None


def _network(config: FlowConfig) -> str:
    given = model_key(config.model) if isinstance(config, RunConfig) else config.supernet
    return digest_of(data_key(config.data), given)


def check_minutes(config: FlowConfig, until: str) -> None:
    """UserError for minutes of a command that ends before the report."""
    if config.minutes is not None and until != REPORT:
        raise UserError(
            "minutes", f"{config.minutes:g} up to '{until}'", allowed="for run, tailor, report, retarget and nightly"
        )


def _is_default(config: FlowConfig, name: str) -> bool:
    section, _, field = name.partition(".")
    own = getattr(config, section)
    return bool(getattr(own, field) == type(own).model_fields[field].default)


def measured_first(table: Sequence[StageSpec]) -> tuple[StageSpec, ...]:
    """The table with the stages that need no trained weights before all others."""
    late, early, after = {"finetune"}, list[StageSpec](), list[StageSpec]()
    for spec in table:
        waits = spec.name in late or not late.isdisjoint((*spec.needs, *spec.reads))
        late |= {spec.name} if waits else set()
        (after if waits else early).append(spec)
    return (*early, *after)


class _Training(NamedTuple):
    """Settings of trainings that fit into a time, their steps, and their seconds."""

    settings: dict[str, Any]
    seconds: float
    base_s: float


def training_for(costs: Costs, config: FlowConfig, left_s: float) -> _Training:
    """Trainings of as many epochs for the base network and for the SuperNet, in `left_s` at most; at least a few steps."""
    if isinstance(config, RetargetConfig) or not costs.steps:
        return _Training({}, 0.0, 0.0)
    trained = {"finetune": (costs.steps, costs.step_s)}
    if costs.base_steps:
        trained["base"] = (costs.base_steps, BASE_SHARE * costs.step_s)
    fixed = {
        name
        for name in trained
        if not (_is_default(config, f"{name}.epochs") and _is_default(config, f"{name}.most_steps"))
    }
    seconds = {name: step_s * getattr(config, name).steps_of(steps) for name, (steps, step_s) in trained.items()}
    free = {name: own for name, own in trained.items() if name not in fixed}
    spent_s = sum(seconds[name] for name in fixed)
    epoch_s = sum(steps * step_s for steps, step_s in free.values())
    least_s = sum(LEAST_STEPS * step_s for _, step_s in free.values())
    settings: dict[str, Any] = {}
    for name, (steps, step_s) in free.items():
        epochs = min(max(0.0, left_s - spent_s - least_s) / epoch_s, max(MOST_EPOCHS, MOST_STEPS / steps))
        settings |= _epochs(name, getattr(config, name), LEAST_STEPS + math.floor(epochs * steps), steps)
        seconds[name] = step_s * settings[f"{name}.most_steps"]
    return _Training(settings, sum(seconds.values()), seconds.get("base", 0.0))


def _epochs(name: str, settings: Any, count: int, steps: int) -> dict[str, Any]:
    """The settings of a training of so many steps, of which an epoch has `steps`; whole epochs if it has several phases."""
    phases = len(getattr(settings, "strategies", ()))
    if phases > 1:
        count = steps * max(phases, count // steps)
    return {
        f"{name}.epochs": math.ceil(count / steps),
        f"{name}.most_steps": count,
        f"{name}.warmup_epochs": round(min(settings.warmup_epochs, WARM_UP * count / steps), 4),
    }


def planned(costs: Costs, config: FlowConfig, table: Sequence[StageSpec], begun_s: float) -> Plan:
    """The plan of a run that began `begun_s` ago. UserError with the least number of minutes if they are too few."""
    assert config.minutes is not None
    asked_s = 60 * config.minutes
    usable_s = (1 - RESERVE) * asked_s - begun_s
    for level in reversed(LEVELS):
        own = {name: value for name, value in zip(KNOBS, level, strict=True) if _is_default(config, name)}
        stages = _stages(costs, with_settings(config, own), table)
        left_s = usable_s - sum(stage.seconds for stage in stages)
        training = training_for(costs, config, left_s)
        wanted_s = min(TRAINING * asked_s, training_for(costs, config, math.inf).seconds)
        if left_s >= max(wanted_s, training.seconds):
            break
    if training.seconds > left_s + 1e-6:
        least_s = (begun_s + usable_s - left_s + training_for(costs, config, 0.0).seconds) / (1 - RESERVE)
        raise UserError(
            "minutes",
            f"got {config.minutes:g}",
            allowed=f"{math.ceil(least_s / 6) / 10:g} or more with this network, these devices and settings, by a trial here",
        )
    told = (
        PlannedStage(stage="begin", seconds=begun_s),
        *(_trained(stage, costs, config, training) for stage in stages),
    )
    settings = {**own, **training.settings}
    return Plan(network=_network(config), minutes=config.minutes, settings=settings, stages=told, costs=costs)


def _stages(costs: Costs, config: FlowConfig, table: Sequence[StageSpec]) -> list[PlannedStage]:
    forecast = Forecast(costs, config)
    return [*map(forecast.of, rows(table, config, REPORT)), PlannedStage(stage=REPORT, seconds=REPORT_S)]


def _trained(stage: PlannedStage, costs: Costs, config: FlowConfig, training: _Training) -> PlannedStage:
    """A stage that trains, with its steps."""
    own_s = {"base": training.base_s, "finetune": training.seconds - training.base_s}.get(stage.stage, 0.0)
    if not own_s:
        return stage
    settings = getattr(with_settings(config, training.settings), stage.stage)
    steps = costs.base_steps if stage.stage == "base" else costs.steps
    count = settings.steps_of(steps)
    does = f"{count} steps, {count / steps:.3g} x the samples"
    return PlannedStage(stage=stage.stage, seconds=stage.seconds + own_s, does=does)


class Pace:
    """The clock of a run with a plan: the config at each stage, with what was chosen by the time that is left then."""

    def __init__(self, run: Run, config: FlowConfig, table: Sequence[StageSpec], began_s: float) -> None:
        """Read the plan of an earlier call, or make one, and show it. began_s: of the call, by `time.monotonic`."""
        assert config.minutes is not None
        self.table = measured_first(table)
        self._file, self._given, self._until_s = run.folder / PLAN_FILE, config, began_s + 60 * config.minutes
        known = _known(config, self._file)
        self.plan = known or self._made(run, began_s)
        self.config = with_settings(config, self.plan.settings)
        self._begun_s: dict[str, float] = {}
        run.bars.console.print(told(self.plan, again=known is not None))

    def _made(self, run: Run, began_s: float) -> Plan:
        folder = run.folder / "trial"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            costs = measured(self._given, run, folder, [int(level[KNOBS.index(TIMES)]) for level in LEVELS])
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        plan = planned(costs, self._given, self.table, time.monotonic() - began_s)
        plan.write(self._file)
        return plan

    def before(self, stage: str, outputs: Outputs) -> FlowConfig:
        """The config for a stage that can begin now. What depends on the time that is left is chosen once, and written."""
        self._begun_s.setdefault(stage, time.monotonic())
        choose = {"finetune": self._epochs, "search": self._budgets, "refine": self._candidates}.get(stage)
        if choose is not None and stage not in self.plan.chosen:
            settings = {**self.plan.settings, **choose(self._until_s - time.monotonic(), self._ratio(outputs))}
            chosen = (*self.plan.chosen, stage)
            self.plan = self.plan.model_copy(update={"settings": settings, "chosen": chosen})
            self.plan.write(self._file)
            self.config = with_settings(self._given, settings)
        return self.config

    def _ratio(self, outputs: Outputs) -> float:
        """Seconds of the stages that have timed SubNets here over those that were expected."""
        expected = {stage.stage: stage.seconds for stage in self.plan.stages}
        timed = [name for name in ("profile", "latency") if name in outputs]
        fresh = [name for name in timed if not any(output.cached for output in outputs[name].values())]
        if not fresh:
            return 1.0
        ends_s = [*self._begun_s.values(), time.monotonic()]
        order = list(self._begun_s)
        took_s = sum(ends_s[order.index(name) + 1] - self._begun_s[name] for name in fresh)
        return min(max(took_s / sum(expected[name] for name in fresh), LEAST_RATIO), MOST_RATIO)

    def _later_s(self, config: FlowConfig, stage: str, ratio: float) -> float:
        """Expected seconds of a stage and all later ones, without the steps of a training."""
        stages = _stages(self.plan.costs, config, self.table)
        first = [one.stage for one in stages].index(stage)
        of_devices = {"refine", "export"}
        return sum(one.seconds * (ratio if one.stage in of_devices else 1.0) for one in stages[first:])

    def _epochs(self, left_s: float, ratio: float) -> dict[str, Any]:
        left_s -= self._later_s(self.config, "finetune", ratio) + RESERVE * 60 * self.plan.minutes
        costs = self.plan.costs.model_copy(update={"base_steps": 0})
        return training_for(costs, self._given, left_s).settings

    def _budgets(self, left_s: float, ratio: float) -> dict[str, Any]:
        fewest = {"refine.candidates": min(2, self.config.refine.candidates)}
        return self._first("search", "search.budget_count", self.config.search.budget_count, left_s, ratio, fewest)

    def _candidates(self, left_s: float, ratio: float) -> dict[str, Any]:
        return self._first("refine", "refine.candidates", self.config.refine.candidates, left_s, ratio, {})

    def _first(
        self, stage: str, knob: str, most: int, left_s: float, ratio: float, others: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The largest value of a knob, at least 2, with which a stage and all later ones fit into the time."""
        if not _is_default(self._given, knob):
            return {}
        for value in range(most, 2, -1):
            if self._later_s(with_settings(self.config, {**others, knob: value}), stage, ratio) <= left_s:
                return {knob: value}
        return {knob: min(2, most)}


def told(plan: Plan, *, again: bool) -> Table:
    """The plan as a table. again: it is that of an earlier call."""
    title = f"plan for {plan.minutes:g} minutes" + (", made by an earlier call, which goes on" if again else "")
    table = Table("stage", title=title, title_justify="left", show_footer=True)
    table.columns[0].footer = "together"
    table.add_column("expected", justify="right", footer=f"{plan.seconds:.0f} s")
    table.add_column("does")
    for stage in plan.stages:
        table.add_row(stage.stage, f"{stage.seconds:.1f} s", stage.does)
    return table
