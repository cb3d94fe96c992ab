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


class _Given:
    """What a device is searched with: files, of which the energies' only where these have a limit, and rules for memory."""

    def __init__(self, config: CommonConfig, device: str, latency: Output, needs: Output) -> None:
        limits = config.search.limits_of(device)
        self.device, self.rules = device, config.resources_of(device).rules
        self.files = [latency.folder / tasks.predict.validate.LATENCY_FILE]
        if limits.energy_mj is not None:
            self.files.append(needs.folder / tasks.predict.resources.ENERGY_FILE)
        self.settings = {} if limits.memory_mib is None else {device: asdict(self.rules)}

    def target(self) -> tasks.search.Target:
        """From the files."""
        latency, energy = LatencyPredictor.load(self.files[0]), [EnergyPredictor.load(file) for file in self.files[1:]]
        return tasks.search.Target(name=self.device, latency=latency, energy=next(iter(energy), None), rules=self.rules)


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
    front = tasks.search.FRONT_FILE
    given = [_Given(config, name, latency[name], needs[name]) for name in devices]
    settings = config.search.of_devices(devices).model_dump(mode="json")
    rules = {name: own for one in given for name, own in one.settings.items()}
    if rules:
        settings["rules"] = rules
    if len(devices) > 1:
        settings["devices"] = list(devices)
    evaluated = config.search.accuracy == "measured"
    if evaluated:
        settings["predict"] = config.predict.model_dump(mode="json", include=OF_IMAGES)
    fronts = [f"{name}/{front}" for name in devices] if len(devices) > 1 else [front]
    whole = [tasks.search.WHOLE_FRONT_FILE] if config.search.lists_whole_front(devices) else []
    stage = Stage(
        name=f"search/{devices[0] if len(devices) == 1 else 'together'}",
        modules=("tasks.search",),
        settings=settings,
        inputs=(
            supernet,
            accuracy_file,
            *(file for one in given for file in one.files),
            *([data_key(config.data)] if evaluated else []),
        ),
        artifacts=(*fronts, *whole),
    )

    def body(out: Path, progress: Progress) -> dict[str, Any]:
        predictor = AccuracyPredictor.load(accuracy_file)
        images = tasks.predict.sensitivity.images_of(config.predict, config.data) if evaluated else None
        targets = [one.target() for one in given]
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
    run: Run,
    config: CommonConfig,
    device: str,
    supernet: Path,
    accuracy: Output,
    predictor: Output,
    needs: Output,
    found: Output,
) -> Output:
    """The winners of one device by measurement; with one candidate for each budget, those of the search as they are."""
    if config.refine.candidates == 1:
        return found
    accuracy_file = accuracy.folder / tasks.predict.sensitivity.SENSITIVITIES_FILE
    given = _Given(config, device, predictor, needs)
    batch = config.device[device].batch
    stage = Stage(
        name=f"refine/{device}",
        modules=("tasks.refine",),
        settings={
            **config.refine.model_dump(mode="json"),
            "rules": given.settings,
            "predict": config.predict.model_dump(mode="json", include=OF_IMAGES | OF_TIMING),
        },
        inputs=(
            run.devices.fingerprint(device),
            data_key(config.data),
            supernet,
            accuracy_file,
            *given.files,
            found.folder / tasks.search.FRONT_FILE,
        ),
        artifacts=(tasks.search.FRONT_FILE, tasks.refine.MEASURED_FILE),
    )

    def body(out: Path, progress: Progress) -> dict[str, Any]:
        target, predicted = given.target(), AccuracyPredictor.load(accuracy_file)
        images = tasks.predict.sensitivity.images_of(config.predict, config.data)
        given_all = (supernet, found.folder, target, predicted, images)
        with run.devices.exclusive(device, alone=True) as client:
            tasks.refine.measure(config.refine, config.predict, *given_all, client, out, progress, batch)
        return tasks.refine.choose(config.refine, supernet, found.folder, predicted, images, out, progress)

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
