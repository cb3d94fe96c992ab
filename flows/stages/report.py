"""The report of a run: made anew where a stage was worked, or it is of another run; else it is there already."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

import tasks.pages
import tasks.report
from adaptive_runtime.files import sha256_of
from flows.config import AdaptConfig, FlowConfig, leveled
from flows.pages.publish import publish_report
from flows.run import Run
from flows.session import plain_config
from flows.stages.spec import ALONE, Outputs, trained_supernet
from flows.tracking.metrics import speed_ups
from flows.versions import code_version, library_versions
from tasks.artifacts import digest_of
from tasks.report import DATA_FILE, PAGE_FILE, DeviceSources, PretrainingSources, Sources, known, renewed
from tasks.report import run as write_report


def report(run: Run, config: FlowConfig, outputs: Outputs) -> dict[str, Any]:
    """The report in the run's folder, and a copy in the output folder: the latest."""
    result = _write(run, config, _sources(run, config, outputs))
    if not run.tracker.has_told("report", run.key):
        run.tracker.log_series(run.tracker.run_id, speed_ups(result, config.report.accuracy_points))
        run.tracker.set_told("report", run.key)
    return {"report_html": str(config.folder / PAGE_FILE), "run": str(run.folder), **result}


@task(name="report", task_run_name="report", persist_result=False, cache_policy=NO_CACHE)
def _write(run: Run, config: FlowConfig, sources: Sources) -> dict[str, Any]:
    made_from, tracker = _made_from(run, config, sources), run.tracker
    found = known(run.folder, made_from) if all(output.cached for output in run.outputs) else None
    if found is None:
        result = write_report(sources, config.report, run.folder, made_from)
    else:
        result = renewed(found, sources.stages, run.folder)
    for name in (PAGE_FILE, DATA_FILE):
        shutil.copyfile(run.folder / name, config.folder / name)
        tracker.client.log_artifact(tracker.run_id, str(run.folder / name))
    for card in result["headline"]:
        get_run_logger().info("%s: %s, %s", card["label"], card["value"], card["note"])
    publish_report(result, run.folder, tracker.page_of(PAGE_FILE), anew=found is None)
    return result


def _made_from(run: Run, config: FlowConfig, sources: Sources) -> str:
    """A digest of what the report tells, but for which stages were found complete: their keys, results, settings, the code."""
    plain = {**asdict(sources), "partition": None, "stages": None}
    stages = [(output.stage, output.key, output.result) for output in run.outputs]
    code = code_version("tasks.report.gather", "tasks.report.page"), *_texts()
    return digest_of(json.loads(json.dumps([plain, stages, config.report.model_dump(mode="json"), code], default=str)))


def _texts() -> list[str]:
    """Templates, styles and scripts of pages, by content."""
    folders = (Path(tasks.report.__file__).parent, Path(tasks.pages.__file__).parent)
    files = (file for folder in folders for end in ("html", "css", "js") for file in sorted(folder.rglob(f"*.{end}")))
    return [sha256_of(file) for file in files]


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
        partition=config.partition if config.partition.asked else None,
        devices=[_device_sources(config, outputs, name) for name in config.device],
        streams=[output.folder for output in outputs.get("stream", {}).values()],
        stages=[output.row() for output in run.outputs],
        config=plain_config(config),
        versions=library_versions(),
    )


def _pretraining(config: FlowConfig, outputs: Outputs) -> PretrainingSources | None:
    """Of a run that is trained in two stages."""
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
    """Folder of a stage that some runs leave out."""
    return outputs[stage][label].folder if stage in outputs else None
