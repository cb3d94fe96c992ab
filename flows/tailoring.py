"""What both flows share: from a SuperNet to checked files for every device, and the report."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from prefect.futures import PrefectFuture, wait

from flows import stages
from flows.choosing import Searched, answer
from flows.config import AdaptConfig, RunConfig
from flows.run import Output, Run
from flows.session import plain_config
from flows.versions import library_versions
from tasks.choose import Question
from tasks.plan import plan
from tasks.predict.sensitivity import SENSITIVITIES_FILE
from tasks.predict.validate import LATENCY_FILE
from tasks.profile import LUT_FOLDER
from tasks.report import DATA_FILE, PAGE_FILE, DeviceSources, Sources

DeviceStage = Literal["enumerate", "plan", "profile", "predict", "search", "export", "report"]
STOP_SECONDS = 30.0
Result = TypeVar("Result")


def tailor(
    run: Run,
    config: RunConfig | AdaptConfig,
    compiled: Path,
    trained: Path,
    until: str,
    training: Mapping[str, Path],
    question: Question | None = None,
) -> dict[str, Any]:
    """Stages from enumerate on. compiled, trained: SuperNet folders, equal but for their weights. question: to a search."""
    enumerated = stages.enumerate(run, compiled)
    if until == "enumerate":
        return run.results(enumerated)
    batches = {profile.batch for profile in config.device.values()} - {1}
    by_batch = {1: enumerated} | {batch: stages.enumerate(run, compiled, batch) for batch in sorted(batches)}
    operators = {name: by_batch[profile.batch] for name, profile in config.device.items()}
    if until == "plan":
        return {**run.results(enumerated), "plan": _plan(run, config, compiled, operators)}
    profiled = _on_devices(
        run, config, lambda name: stages.profile.submit(run, config, name, compiled, operators[name])
    )
    if until == "profile":
        return run.results(*profiled.values())
    accuracy = stages.sensitivities(run, config, trained)
    latency = _on_devices(run, config, lambda name: stages.latency.submit(run, config, name, compiled, profiled[name]))
    needs = _on_devices(
        run, config, lambda name: stages.resources.submit(run, config, name, compiled, profiled[name], latency[name])
    )
    if until == "predict":
        return run.results(accuracy, *latency.values(), *needs.values())
    found = _found(run, config, trained, accuracy, latency, needs)
    if until == "search":
        searched = Searched(
            trained=trained,
            accuracy=accuracy,
            profiled=profiled,
            latency=latency,
            needs=needs,
            found=found,
            base=training.get("base"),
        )
        return run.results(*found.values()) | (answer(run, config, question, searched) if question else {})
    chosen = _on_devices(
        run,
        config,
        lambda name: stages.refine.submit(
            run, config, name, trained, accuracy, latency[name], needs[name], found[name]
        ),
    )
    exported = _on_devices(
        run,
        config,
        lambda name: stages.export.submit(
            run, config, name, trained, chosen[name], _sources(profiled[name], latency[name], accuracy)
        ),
    )
    if until == "export":
        return run.results(*exported.values())
    compared = _compared(run, config, trained, accuracy, chosen)
    devices = [
        DeviceSources(
            name=name,
            batch=config.device[name].batch,
            profile=profiled[name].folder,
            latency=latency[name].folder,
            search=chosen[name].folder,
            export=exported[name].folder,
            compared=compared[name].folder if name in compared else None,
        )
        for name in config.device
    ]
    sources = Sources(
        model=config.name,
        data=config.data.kind,
        supernet=trained,
        base=training.get("base"),
        finetune=training.get("finetune"),
        enumerate=enumerated.folder,
        sensitivities=accuracy.folder,
        devices=devices,
        stages=[output.row() for output in run.outputs],
        config=plain_config(config),
        versions=library_versions(),
    )
    return _report(run, config, sources)


def _sources(profiled: Output, latency: Output, accuracy: Output) -> dict[str, Path]:
    """What the winners of a device were found with."""
    return {
        "look-up table": profiled.folder / LUT_FOLDER,
        "latency predictor": latency.folder / LATENCY_FILE,
        "accuracy predictor": accuracy.folder / SENSITIVITIES_FILE,
    }


def _found(
    run: Run,
    config: RunConfig | AdaptConfig,
    trained: Path,
    accuracy: Output,
    latency: Mapping[str, Output],
    needs: Mapping[str, Output],
) -> dict[str, Output]:
    """The fronts of all devices: each searched by itself, or all together."""
    if config.search.together and len(config.device) > 1:
        return stages.search(run, config, list(config.device), trained, accuracy, latency, needs)
    found = _on_devices(
        run, config, lambda name: stages.search.submit(run, config, [name], trained, accuracy, latency, needs)
    )
    return {name: one[name] for name, one in found.items()}


def _compared(
    run: Run, config: RunConfig | AdaptConfig, trained: Path, accuracy: Output, chosen: Mapping[str, Output]
) -> dict[str, Output]:
    """The winners of each device against the baselines; nothing without baselines."""
    if not config.baselines.wanted:
        return {}
    siblings: list[Output] = []
    if isinstance(config, RunConfig):
        siblings = [stages.sibling(run, config, number) for number in range(len(config.baselines.siblings))]
    baselines = stages.baselines(run, config, trained, accuracy, chosen, siblings)
    return _on_devices(run, config, lambda name: stages.compared.submit(run, config, name, trained, baselines))


def _plan(
    run: Run, config: RunConfig | AdaptConfig, compiled: Path, operators: Mapping[str, Output]
) -> dict[str, dict[str, Any]]:
    """What profiling would do on each device; nothing is measured."""
    return {
        name: plan(
            config.profile_of(name), operators[name].folder, run.devices.capabilities(name), compiled, profile.batch
        )
        for name, profile in config.device.items()
    }


def _on_devices(
    run: Run, config: RunConfig | AdaptConfig, submit: Callable[[str], PrefectFuture[Result]]
) -> dict[str, Result]:
    """One task per device, side by side; the first failure counts once all have ended."""
    futures = {name: submit(name) for name in config.device}
    try:
        wait(list(futures.values()))
    except KeyboardInterrupt:
        run.stopped.set()
        wait(list(futures.values()), timeout=STOP_SECONDS)
        raise
    return {name: future.result() for name, future in futures.items()}


def _report(run: Run, config: RunConfig | AdaptConfig, sources: Sources) -> dict[str, Any]:
    """The report in the run's folder, and a copy in the output folder: the latest."""
    result: dict[str, Any] = stages.report(run, config, sources, run.folder)
    for name in (PAGE_FILE, DATA_FILE):
        shutil.copyfile(run.folder / name, config.output_dir / name)
        run.tracker.client.log_artifact(run.tracker.run_id, str(run.folder / name))
    return {"report_html": str(config.output_dir / PAGE_FILE), "run": str(run.folder), **result}
