"""The best SubNets: searched, measured, exported, and shown in the report."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import tasks.export
import tasks.predict.resources
import tasks.predict.sensitivity
import tasks.predict.validate
import tasks.refine
import tasks.report
import tasks.search
from flows.artifacts import publish_report, publish_winners
from flows.config import CommonConfig, RunConfig
from flows.inputs import data_key
from flows.run import Output, Run, Stage
from flows.stages.common import OF_IMAGES, OF_TIMING, finish, stage_task
from tasks.artifacts import digest_of
from tasks.data import load_splits
from tasks.evaluate import EvaluationData
from tasks.models import weights_source
from tasks.predict.accuracy import AccuracyPredictor
from tasks.predict.energy import EnergyPredictor
from tasks.predict.latency import LatencyPredictor
from tasks.progress import Progress


@stage_task("search")
def search(
    run: Run,
    config: CommonConfig,
    devices: Sequence[str],
    supernet: Path,
    accuracy: Output,
    latency: Mapping[str, Output],
    needs: Mapping[str, Output],
) -> dict[str, Output]:
    """For every latency budget the best SubNet: of one device, or one for several devices together."""
    accuracy_file = accuracy.folder / tasks.predict.sensitivity.SENSITIVITIES_FILE
    latency_files = [latency[name].folder / tasks.predict.validate.LATENCY_FILE for name in devices]
    limits, front = config.search.limits, tasks.search.FRONT_FILE
    limited = [] if limits.energy_mj is None else devices
    energy_files = [needs[name].folder / tasks.predict.resources.ENERGY_FILE for name in limited]
    rules = [config.resources_of(name).rules for name in devices]
    settings = config.search.model_dump(mode="json") | {"device_budgets_ms": config.search.budgets_by(devices)}
    if limits.memory_mib is not None:
        settings["rules"] = [asdict(one) for one in rules]
    if len(devices) > 1:
        settings["devices"] = list(devices)
    evaluated = config.search.accuracy == "measured"
    if evaluated:
        settings["predict"] = config.predict.model_dump(mode="json", include=OF_IMAGES)
    fronts = [f"{name}/{front}" for name in devices] if len(devices) > 1 else [front]
    whole = [tasks.search.WHOLE_FRONT_FILE] if config.search.lists_whole_front(len(devices)) else []
    stage = Stage(
        name=f"search/{devices[0] if len(devices) == 1 else 'together'}",
        modules=("tasks.search",),
        settings=settings,
        inputs=(
            supernet,
            accuracy_file,
            *latency_files,
            *energy_files,
            *([data_key(config.data)] if evaluated else []),
        ),
        artifacts=(*fronts, *whole),
    )

    def body(out: Path, progress: Progress) -> dict[str, Any]:
        energies: list[EnergyPredictor | None] = [None] * len(devices)
        if energy_files:
            energies = [EnergyPredictor.load(file) for file in energy_files]
        targets = [
            tasks.search.Target(name=name, latency=LatencyPredictor.load(file), energy=energy, rules=own)
            for name, file, energy, own in zip(devices, latency_files, energies, rules, strict=True)
        ]
        predictor = AccuracyPredictor.load(accuracy_file)
        images = tasks.predict.sensitivity.images_of(config.predict, config.data) if evaluated else None
        found = tasks.search.run(supernet, targets, predictor, config.search, out, progress, images)
        return found if len(devices) > 1 else found[devices[0]]

    output = finish(run.execute(stage, body))
    if len(devices) == 1:
        found = {devices[0]: output}
    else:
        found = {
            name: replace(output, stage=f"search/{name}", folder=output.folder / name, result=output.result[name])
            for name in devices
        }
    for name, one in found.items():
        publish_winners(name, one.result["winners"])
    return found


@stage_task("refine", agent=True)
def refine(
    run: Run, config: CommonConfig, device: str, supernet: Path, accuracy: Output, predictor: Output, found: Output
) -> Output:
    """The winners of one device by measurement; with one candidate for each budget, those of the search as they are."""
    if config.refine.candidates == 1:
        return found
    accuracy_file = accuracy.folder / tasks.predict.sensitivity.SENSITIVITIES_FILE
    latency_file = predictor.folder / tasks.predict.validate.LATENCY_FILE
    batch = config.device[device].batch
    stage = Stage(
        name=f"refine/{device}",
        modules=("tasks.refine",),
        settings={
            **config.refine.model_dump(mode="json"),
            "predict": config.predict.model_dump(mode="json", include=OF_IMAGES | OF_TIMING),
        },
        inputs=(
            run.devices.fingerprint(device),
            data_key(config.data),
            supernet,
            accuracy_file,
            latency_file,
            found.folder / tasks.search.FRONT_FILE,
        ),
        artifacts=(tasks.search.FRONT_FILE, tasks.refine.MEASURED_FILE),
    )

    def body(out: Path, progress: Progress) -> dict[str, Any]:
        predictors = LatencyPredictor.load(latency_file), AccuracyPredictor.load(accuracy_file)
        with run.devices.exclusive(device) as client:
            tasks.refine.measure(
                config.refine, config.predict, supernet, found.folder, predictors, client, out, progress, batch
            )
        images = tasks.predict.sensitivity.images_of(config.predict, config.data)
        return tasks.refine.choose(config.refine, supernet, found.folder, predictors[1], images, out, progress)

    output = run.execute(stage, body)
    publish_winners(device, output.result["winners"])
    return finish(output)


@stage_task("export", agent=True)
def export(
    run: Run, config: CommonConfig, device: str, supernet: Path, found: Output, sources: Mapping[str, Path]
) -> Output:
    """Files of the winners of one device, checked and measured there; sources: by name what their model cards are to name."""
    network = {"name": "a given SuperNet", "weights": "those of the SuperNet", "licence": "unknown"}
    provenance = tasks.export.Provenance(
        network=weights_source(config.model) if isinstance(config, RunConfig) else network,
        data=config.data.title,
        digests={name: digest_of(path) for name, path in {"SuperNet": supernet, **sources}.items()},
    )
    batch = config.device[device].batch
    stage = Stage(
        name=f"export/{device}",
        modules=("tasks.export",),
        settings={**config.export.model_dump(mode="json"), "recalibration_images": config.predict.recalibration_images},
        inputs=(
            run.devices.fingerprint(device),
            data_key(config.data),
            supernet,
            found.folder / tasks.search.FRONT_FILE,
            dict(provenance.network),
            dict(provenance.digests),
        ),
        artifacts=(tasks.export.EXPORTS_FILE,),
    )

    def body(out: Path, progress: Progress) -> dict[str, Any]:
        with run.devices.exclusive(device, alone=True) as client:
            data = _evaluation_data(config)
            return tasks.export.run(
                config.export, supernet, found.folder, data, client, out, progress, batch, provenance
            )

    return finish(run.execute(stage, body))


def _evaluation_data(config: CommonConfig) -> dict[str, EvaluationData]:
    splits = load_splits(config.data)
    validation = EvaluationData(
        splits["validation"],
        splits["train"],
        recalibration_images=config.predict.recalibration_images,
        features_mib=config.predict.features_mib,
    )
    return {"validation": validation, "test": validation.of(splits["test"])}


@stage_task("report")
def report(run: Run, config: CommonConfig, sources: tasks.report.Sources, folder: Path) -> dict[str, Any]:
    """report.html and report.json of this run; made anew each time, it costs about a second."""
    result = tasks.report.run(sources, config.report, folder)
    publish_report(folder / tasks.report.PAGE_FILE)
    return result
