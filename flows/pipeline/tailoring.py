"""The common part of both flows: a walk through their table of stages, and the result that the command needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from prefect import get_run_logger

from flows.config import FlowConfig
from flows.pipeline.complete import remember
from flows.pipeline.pages.publish import publish_plan
from flows.pipeline.pages.tables import plan_rows
from flows.pipeline.refusals import check_given, check_places
from flows.pipeline.run import Run
from flows.pipeline.session import EXPORTING, REPORT, open_run
from flows.pipeline.stages.joint import found_jointly
from flows.pipeline.stages.policies import readable_policies
from flows.pipeline.stages.predictors import plan
from flows.pipeline.stages.questions import answer
from flows.pipeline.stages.report import report
from flows.pipeline.stages.spec import Outputs, StageSpec
from flows.pipeline.stages.streams import check_streams
from flows.pipeline.stages.walk import results, walk
from flows.pipeline.stages.winners import check_adapted, readable_exports
from flows.pipeline.tracking.models import log_winners
from tasks.search.choose import Question

if TYPE_CHECKING:
    from tasks.measuring.plan import ProfilePlan

Conclude = Callable[[Run, Outputs], dict[str, Any]]
"""Work after a report, while the run still has its devices; returns additions to the result."""


def tailor(
    table: Sequence[StageSpec],
    config: FlowConfig,
    until: str,
    question: Question | None = None,
    conclude: Conclude = lambda run, outputs: {},
) -> dict[str, Any]:
    """Work the stages of a table up to command `until`. question: to the search with which the run ends."""
    check_given(config)
    check_places(config)
    check_streams(config, until)
    check_adapted(config)
    with open_run(config, until) as run:
        devices, place = ", ".join(config.device), config.folder.resolve()
        get_run_logger().info(f"{config.name} for {devices}, up to '{until}': results in '{place}'")
        outputs = walk(table, run, config, until)
        joint = found_jointly(outputs)
        with run.locks.own_turn("results"):
            exports = readable_exports(config, outputs) if until in EXPORTING else {}
            readable_policies(config, outputs)
            found = report(run, config, outputs) if until == REPORT else {}
            if until in EXPORTING:
                exported = {device: output.folder for device, output in outputs["export"].items()}
                run.tracker.once("models", partial(log_winners, run.tracker, exported))
            if until == REPORT:
                beside = {**exports, **joint}
                if run.mirror is None and not run.is_shared:
                    remember(config, run.folder, {one.stage: one.folder for one in run.outputs}, beside)
                return {**found, **beside, **conclude(run, outputs)}
        if until == "plan":
            return {**results(table, run, outputs, "enumerate"), "plan": _plan(run, config, outputs)}
        answered = answer(run, config, question, outputs) if question else {}
        return {**results(table, run, outputs, until), **exports, **joint, **answered}


def _plan(run: Run, config: FlowConfig, outputs: Outputs) -> dict[str, ProfilePlan]:
    if run.mirror is not None:
        run.mirror.tables.fetch()
    found = {name: plan(run, config, name, outputs) for name in config.device}
    rows = plan_rows(found)
    for row in rows:
        get_run_logger().info("; ".join(f"{name} {text}" for name, text in row.items()))
    publish_plan(rows)
    return found
