"""The report of a run. It is made anew each time, since it costs about a second."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

import tailor_ir
from flows.config import AdaptConfig, FlowConfig, leveled
from flows.pipeline.pages.publish import publish_report
from flows.pipeline.run import Run
from flows.pipeline.stages.spec import ALONE, Outputs, trained_supernet
from flows.pipeline.tracking.metrics import speed_ups
from flows.pipeline.tracking.overview import headline_lines
from flows.pipeline.versions import library_versions
from tasks.base.schemas.partition import PartitionAnswer
from tasks.report import DATA_FILE, PAGE_FILE, DeviceSources, PretrainingSources, Sources
from tasks.report import run as write_report


def report(run: Run, config: FlowConfig, outputs: Outputs) -> dict[str, Any]:
    """Write the report to the run's folder, and a copy, the latest report, to the output folder."""
    result = _write(run, config, _sources(run, config, outputs))
    run.tracker.once("report", partial(_tell, run, config, result))
    return {"report_html": str(config.folder / PAGE_FILE), "run": str(run.folder), **result}


def _tell(run: Run, config: FlowConfig, result: dict[str, Any]) -> None:
    run.tracker.log_series(run.tracker.run_id, speed_ups(result, config.report.accuracy_points))
    run.tracker.describe("\n".join(headline_lines(result)))


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
    if isinstance(config, AdaptConfig) or config.pretraining.backbone is None:
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
        engine=_folder(outputs, "engine", name),
        policy=_folder(outputs, "policy", name),
        levels=_folder(outputs, "front", name) if name in leveled(config.export, config.partition) else None,
    )


def _folder(outputs: Outputs, stage: str, label: str = ALONE) -> Path | None:
    """Folder of a stage that some runs leave out; None if this run has."""
    return outputs[stage][label].folder if stage in outputs else None
