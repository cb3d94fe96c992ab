"""The flows of a run, from a network to files for every device, or from an existing SuperNet without training.

Both walk through their table of stages, and end with the result that the command needs. The report is made anew each
time, since it costs about a second.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE

import tailor_ir
from flows.config import FlowConfig, RetargetConfig, RetargetStage, RunConfig, RunStage, leveled
from flows.pipeline.complete import remember
from flows.pipeline.pages import plan_rows
from flows.pipeline.pages.publish import publish_plan, publish_report
from flows.pipeline.refusals import check_given, check_places
from flows.pipeline.results import speed_ups
from flows.pipeline.run import Run
from flows.pipeline.session import EXPORTING, REPORT, open_run
from flows.pipeline.stages import PIPELINE, RETARGETING
from flows.pipeline.stages.levels import readable_policies
from flows.pipeline.stages.minutes import BEGUN_S, Pace, check_minutes
from flows.pipeline.stages.predictors import plan
from flows.pipeline.stages.questions import answer
from flows.pipeline.stages.spec import ALONE, Outputs, StageSpec, trained_supernet
from flows.pipeline.stages.streams import check_streams
from flows.pipeline.stages.walk import results, walk
from flows.pipeline.stages.winners import check_adapted, readable_exports
from flows.pipeline.tracking import headline_lines
from flows.pipeline.tracking.models import log_winners
from flows.pipeline.versions import library_versions
from tasks.base.schemas.placed import PartitionAnswer
from tasks.report import DATA_FILE, PAGE_FILE, DeviceSources, PretrainingSources, Sources
from tasks.report import run as write_report
from tasks.search.choose import Question


def report(run: Run, config: FlowConfig, outputs: Outputs) -> dict[str, Any]:
    """Write the report to the run's folder, and a copy, the latest report, to the output folder."""
    result, tracker = _write(run, config, _sources(run, config, outputs)), run.tracker

    def tell() -> None:
        tracker.log_series(tracker.run_id, speed_ups(result, config.report.accuracy_points))
        tracker.describe("\n".join(headline_lines(result)))

    tracker.once("report", tell)
    return {"report_html": str(config.folder / PAGE_FILE), "run": str(run.folder), **result}


@task(name="report", task_run_name="report", persist_result=False, cache_policy=NO_CACHE)
def _write(run: Run, config: FlowConfig, sources: Sources) -> dict[str, Any]:
    result, tracker = write_report(sources, config.report, run.folder), run.tracker
    for name in (PAGE_FILE, DATA_FILE):
        shutil.copyfile(run.folder / name, config.folder / name)
        tracker.client.log_artifact(tracker.run_id, str(run.folder / name))
    for card in result["headline"]:
        get_run_logger().info("%s: %s, %s", card["label"], card["value"], card["note"])
    publish_report(result, run.folder / PAGE_FILE, tracker.page_of(PAGE_FILE))
    return result


def _sources(run: Run, config: FlowConfig, outputs: Outputs) -> Sources:
    return Sources(
        model=config.name,
        data=config.data.kind,
        problem=config.data.problem,
        metric=config.data.metric,
        supernet=trained_supernet(config, outputs),
        base=_folder(outputs, "base"),
        finetune=_folder(outputs, "finetune"),
        given=_folder(outputs, "given"),
        pretraining=_pretraining(config, outputs),
        enumerate=outputs["enumerate"][ALONE].folder,
        sensitivities=outputs["sensitivities"][ALONE].folder,
        partition=_partition(config, outputs),
        devices=[_device_sources(config, outputs, name) for name in config.device],
        streams=[output.folder for output in outputs.get("stream", {}).values()],
        stages=[output.row() for output in run.outputs],
        config=config.plain(),
        versions=library_versions(),
    )


def _partition(config: FlowConfig, outputs: Outputs) -> PartitionAnswer | None:
    """The largest SubNet over several devices; None if this is not requested. UserError: as `autotailor partition`."""
    if not config.partition.asked:
        return None
    from tasks.placement.partition import plan_partition, table_of  # few runs split a SubNet

    net, folders = tailor_ir.load(trained_supernet(config, outputs)), (outputs["profile"], outputs["latency"])
    tables = [table_of(name, *(stage[name].folder for stage in folders)) for name in config.partition.devices]
    return plan_partition(net, net.max_config, tables, config.partition)


def _pretraining(config: FlowConfig, outputs: Outputs) -> PretrainingSources | None:
    """Sources for a run that trains in two stages; None for other runs."""
    if isinstance(config, RetargetConfig) or config.pretraining.backbone is None:
        return None
    first = config.pretraining
    return PretrainingSources(
        part=config.pretraining.backbone,
        data=first.data.kind,
        trained=_folder(outputs, "pretrain"),
        elastic=outputs["backbone"][ALONE].folder,
        distilled=outputs["distill"][ALONE].folder,
        joined=outputs["join"][ALONE].folder,
        epochs=(first.base.epochs, first.finetune.epochs),
    )


def _device_sources(config: FlowConfig, outputs: Outputs, name: str) -> DeviceSources:
    chosen = outputs.get("refine", outputs["search"])
    return DeviceSources(
        name=name,
        batch=config.device[name].batch,
        profile=outputs["profile"][name].folder,
        latency=outputs["latency"][name].folder,
        search=chosen[name].folder,
        export=outputs["export"][name].folder,
        sensitivities=outputs["int8" if name in config.in_int8 else "sensitivities"][ALONE].folder,
        compared=_folder(outputs, "compared", name),
        engine=_folder(outputs, "runtime_options", name),
        policy=_folder(outputs, "exits", name),
        levels=_folder(outputs, "front", name) if name in leveled(config.export, config.partition) else None,
    )


def _folder(outputs: Outputs, stage: str, label: str = ALONE) -> Path | None:
    """Folder of a stage that some runs leave out; None if this run has."""
    return outputs[stage][label].folder if stage in outputs else None


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
    began_s = time.monotonic() - BEGUN_S
    check_given(config)
    check_places(config)
    check_minutes(config, until)
    check_streams(config, until)
    check_adapted(config)
    with open_run(config, until) as run:
        devices, place = ", ".join(config.device), config.folder.resolve()
        get_run_logger().info(f"{config.name} for {devices}, up to '{until}': results in '{place}'")
        if config.minutes is None:
            outputs = walk(table, run, config, until)
        else:
            pace = Pace(run, config, table, began_s)
            outputs = walk(pace.table, run, pace.config, until, pace.before)
            config = pace.config
        with run.locks.own_turn("results"):
            exports = readable_exports(config, outputs) if until in EXPORTING else {}
            readable_policies(config, outputs)
            found = report(run, config, outputs) if until == REPORT else {}
            if until in EXPORTING:
                exported = {device: output.folder for device, output in outputs["export"].items()}
                run.tracker.once("models", partial(log_winners, run.tracker, exported))
            if until == REPORT:
                if run.mirror is None and not run.is_shared:
                    remember(config, run.folder, {one.stage: one.folder for one in run.outputs}, exports)
                return {**found, **exports, **conclude(run, outputs)}
        if until == "plan":
            return {**results(table, run, outputs, "enumerate"), "plan": _plan(run, config, outputs)}
        answered = answer(run, config, question, outputs) if question else {}
        return {**results(table, run, outputs, until), **exports, **answered}


def _plan(run: Run, config: FlowConfig, outputs: Outputs) -> dict[str, dict[str, Any]]:
    if run.mirror is not None:
        run.mirror.tables.fetch()
    found = {name: plan(run, config, name, outputs) for name in config.device}
    rows = plan_rows(found)
    for row in rows:
        get_run_logger().info("; ".join(f"{name} {text}" for name, text in row.items()))
    publish_plan(rows)
    return found


@flow(name="autotailor", flow_run_name="{config.name}", persist_result=False)
def pipeline(config: RunConfig, until: RunStage = "report", question: Question | None = None) -> dict[str, Any]:
    """Compile, fine-tune, enumerate, profile, predict, search, export, report: up to and including `until`.

    Stages that are complete in the output folder under the same settings, inputs and code are not repeated. Up to enumerate,
    plan or profile, nothing is trained: the SuperNet has random weights, or those of the .onnx file. "plan" is a dry run of
    profile: the operators that each device knows already, and the time for the rest. question: to a search.
    """
    return tailor(PIPELINE, config.answering(question), until, question)


@flow(name="autotailor-retarget", flow_run_name="{config.name}", persist_result=False)
def retarget(config: RetargetConfig, until: RetargetStage = "report") -> dict[str, Any]:
    """Enumerate, profile, predict, search, export and report for the SuperNet of folder `config.supernet`."""
    return tailor(RETARGETING, config, until)
