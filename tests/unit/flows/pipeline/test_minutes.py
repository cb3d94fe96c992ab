"""Plans of `minutes=N`: they keep the time and the user's settings, and the clock chooses once, by the time that is left."""

from functools import cache
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from flows.pipeline.stages import PIPELINE, minutes
from flows.pipeline.stages.costs import Costs, DeviceCosts
from flows.pipeline.stages.minutes import LEVELS, Pace, Plan, measured_first, planned, told, with_settings
from flows.pipeline.stages.spec import rows
from tasks.base.errors import UserError
from tasks.base.pages.text import PlainConsole

TABLE = measured_first(PIPELINE)
COVERS = {level[3]: 10 * int(level[3]) for level in LEVELS}


@cache
def composed(*options: str) -> RunConfig:
    return validate(RunConfig, compose_config("config", ["device=[onnxruntime,ncnn]", *options]))


def config_of(asked: float, *options: str) -> RunConfig:
    return composed(*options).model_copy(update={"minutes": asked})


def costs_of(step_s: float = 0.1, make_s: float = 0.1, **others: Any) -> Costs:
    device = DeviceCosts(make_s=make_s, run_s=0.01, choices=4, implementations=False, here=True, subnets=COVERS)
    usual: dict[str, Any] = {
        "compile_s": 3.0, "image_s": 1e-4, "start_s": 5.0, "steps": 20, "base_steps": 20, "modifications": 40,
        "distinct": 10_000, "weights_mib": 10.0, "samples": {"train": 1280, "validation": 200, "test": 200},
    }  # fmt: skip
    return Costs(step_s=step_s, devices={"onnxruntime": device, "ncnn": device}, **{**usual, **others})


def level_of(plan: Plan) -> int:
    return next(at for at, level in enumerate(LEVELS) if level[4:6] == (
        plan.settings["search.budget_count"], plan.settings["refine.candidates"]
    ))  # fmt: skip


TIMES_S = st.floats(1e-3, 3.0)


@given(TIMES_S, TIMES_S, st.integers(1, 500), st.sampled_from([0, 40]), st.floats(0.5, 120), st.floats(1, 60))
def test_a_plan_keeps_the_time_or_says_the_least(
    step_s: float, make_s: float, steps: int, base_steps: int, asked: float, begun_s: float
) -> None:
    costs = costs_of(step_s, make_s, steps=steps, base_steps=base_steps)
    try:
        plan = planned(costs, config_of(asked), TABLE, begun_s)
    except UserError as error:
        least = float(str(error).partition("allowed: ")[2].split()[0])
        assert least > asked
        assert planned(costs, config_of(least), TABLE, begun_s).seconds <= 60 * least
        return
    assert plan.seconds <= 60 * asked
    assert plan.settings["finetune.most_steps"] >= minutes.LEAST_STEPS
    assert Plan.of_json(plan.to_json(), "plan") == plan


@given(TIMES_S, st.floats(1, 60), st.floats(1, 60))
def test_more_time_gives_no_less_thorough_a_run(step_s: float, first: float, second: float) -> None:
    assume(first < second)
    costs = costs_of(step_s)
    try:
        less = planned(costs, config_of(first), TABLE, 10)
    except UserError:
        return
    assert level_of(planned(costs, config_of(second), TABLE, 10)) >= level_of(less)


def test_a_plan_has_each_stage_with_its_steps_budgets_and_candidates() -> None:
    config = config_of(30)
    plan = planned(costs_of(), config, TABLE, 12.5)
    changed = with_settings(config, plan.settings)
    assert isinstance(changed, RunConfig)
    assert [one.stage for one in plan.stages] == [
        "begin",
        *(spec.name for spec in rows(TABLE, changed, "report")),
        "report",
    ]
    does = {one.stage: one.does for one in plan.stages}
    assert f"{changed.finetune.most_steps} steps" in does["finetune"]
    assert (
        does["refine"] == f"{changed.refine.candidates} candidates of each budget in {changed.refine.candidates} rounds"
    )
    assert does["export"] == f"{changed.search.budget_count} budgets"
    shown = StringIO()
    PlainConsole(width=100, file=shown).print(told(plan, again=False))
    assert f"{plan.seconds:.0f} s" in shown.getvalue()


def test_settings_of_the_user_stay() -> None:
    plan = planned(costs_of(), config_of(20, "finetune.epochs=3", "refine.candidates=5", "base.epochs=2"), TABLE, 10)
    assert not {"finetune.epochs", "base.epochs", "refine.candidates"} & plan.settings.keys()
    trained = {one.stage: one.does for one in plan.stages}
    assert trained["finetune"] == "60 steps, 3 x the samples"
    assert trained["base"] == "40 steps, 2 x the samples"


def test_stages_that_need_no_training_come_first_and_none_before_its_needs() -> None:
    names = [spec.name for spec in TABLE]
    assert sorted(names) == sorted(spec.name for spec in PIPELINE)
    assert names.index("latency") < names.index("finetune") < names.index("sensitivities")
    for spec in TABLE:
        assert all(names.index(need) < names.index(spec.name) for need in spec.needs if need in names)


def run_in(folder: Path) -> Any:
    return SimpleNamespace(folder=folder, bars=SimpleNamespace(console=PlainConsole(file=StringIO())))


def test_the_clock_chooses_once_and_a_later_call_keeps_its_choices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, now = config_of(10), [1000.0]
    monkeypatch.setattr(minutes, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(minutes, "measured", lambda *_: costs_of(base_steps=0))
    pace = Pace(run_in(tmp_path), config, PIPELINE, now[0])
    before = pace.before("profile", {})
    now[0] += 200  # longer than planned: fewer steps
    found = pace.before("finetune", {})
    assert isinstance(before, RunConfig)
    assert isinstance(found, RunConfig)
    assert minutes.LEAST_STEPS <= (found.finetune.most_steps or 0) < (before.finetune.most_steps or 0)
    now[0] += 360
    searched = pace.before("search", {})
    assert searched.search.budget_count < before.search.budget_count
    assert pace.before("finetune", {}) == searched  # chosen once
    monkeypatch.setattr(minutes, "measured", lambda *_: pytest.fail("measured again"))
    again = Pace(run_in(tmp_path), config, PIPELINE, now[0])
    assert again.config == searched
    assert again.before("finetune", {}) == searched


def test_a_plan_counts_for_the_network_that_it_was_made_for(tmp_path: Path) -> None:
    config = config_of(10, f"output_dir={tmp_path}")
    plan = planned(costs_of(), config, TABLE, 10)
    folder = config.run_folder("report")
    folder.mkdir(parents=True)
    plan.write(folder / minutes.PLAN_FILE)
    found = minutes.decided(config, "report")
    assert isinstance(found, RunConfig)
    assert found.finetune.most_steps == plan.settings["finetune.most_steps"]
    plan.model_copy(update={"network": "another"}).write(folder / minutes.PLAN_FILE)
    assert minutes.decided(config, "report") == config


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["minutes=0"], "minutes"),
        (["minutes=ten"], "minutes"),
        (["minutes=5", "baselines=all"], "minutes=5 with baselines"),
        (["minutes=5", "search.accuracy=measured"], "minutes=5 with search.accuracy=measured"),
        (["minutes=5", "output_dir=s3://bucket/a"], "minutes=5 with an output_dir at a URL"),
    ],
)
def test_minutes_that_cannot_be_planned_are_refused(options: list[str], line: str) -> None:
    with pytest.raises(UserError) as refused:
        validate(RunConfig, compose_config("config", options))
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_minutes_are_of_whole_runs() -> None:
    with pytest.raises(UserError, match="up to 'search'"):
        minutes.check_minutes(config_of(5), "search")
