"""The stages as Prefect tasks: one per stage and per device; a body is one call into `tasks`.

Results live in our own store and are found there by key, so Prefect neither persists nor caches anything. Only stages
that talk to an agent are retried, with back-off; what they have measured stays, so a retry goes on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.states import State
from prefect.tasks import Task, exponential_backoff

import tasks.base
import tasks.baselines
import tasks.compile
import tasks.enumerate
import tasks.export
import tasks.finetune
import tasks.predict.resources
import tasks.predict.sensitivity
import tasks.predict.validate
import tasks.profile
import tasks.refine
import tasks.report
import tasks.search
from flows.artifacts import publish_report, publish_stage, publish_winners
from flows.config import CommonConfig, RunConfig
from flows.inputs import data_key, model_key
from flows.run import Output, Run, Stage
from profiling_agents.messages import AgentError
from tasks.artifacts import digest_of
from tasks.data import load_splits
from tasks.evaluate import EvaluationData
from tasks.models import ModelSettings, weights_source
from tasks.predict.accuracy import AccuracyPredictor
from tasks.predict.energy import EnergyPredictor
from tasks.predict.latency import LatencyPredictor
from tasks.progress import Progress

P = ParamSpec("P")
R = TypeVar("R")
RETRIES = 5
SUPERNET = "supernet"
NOT_IN_KEY = {"checkpoint_every_s", "restarts", "rendezvous"}
SENSITIVITY_SETTINGS = {"random_subnets", "seed", "validation_images", "recalibration_images", "interactions"}
OF_IMAGES = {"validation_images", "recalibration_images"}
OF_TIMING = {"measure", "rounds", "conversion_wall_s", "conversion_memory_mib"}
NOT_OF_LATENCY = {"validation_images", "recalibration_images", "interactions", "features_mib"}


def _is_agents_fault(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    return isinstance(state.data, AgentError)


def _stage(name: str, *, agent: bool = False) -> Callable[[Callable[P, R]], Task[P, R]]:
    """A Prefect task that persists nothing; `agent`: one per device, retried when its agent is lost or busy."""
    retried: dict[str, Any] = {
        "retries": RETRIES,
        "retry_delay_seconds": exponential_backoff(backoff_factor=2),
        "retry_jitter_factor": 0.2,
        "retry_condition_fn": _is_agents_fault,
    }
    return task(name=name, persist_result=False, cache_policy=NO_CACHE, **(retried if agent else {}))


def _finish(output: Output) -> Output:
    publish_stage(output)
    return output


@_stage("base")
def base(run: Run, config: RunConfig) -> Output:
    """The base network, trained when it has no weights."""
    stage = Stage(
        name="base",
        modules=("tasks.base", "tasks.finetune.worker"),
        settings=config.base.model_dump(mode="json", exclude=NOT_IN_KEY),
        inputs=(model_key(config.model), data_key(config.data)),
    )
    return _finish(
        run.execute(stage, lambda out, progress: tasks.base.run(config.base, config.model, config.data, out, progress))
    )


@_stage("compile")
def compile(run: Run, config: RunConfig, trained: Output | None) -> Output:
    """The SuperNet of the network; `trained`: the base stage (None: an .onnx file, or weights do not matter)."""
    weights = trained.folder / tasks.base.WEIGHTS_FILE if trained else None
    stage = Stage(
        name="compile",
        modules=("tasks.compile",),
        settings={"space": dict(config.space), **config.compile.model_dump(mode="json")},
        inputs=(model_key(config.model), data_key(config.data), *([weights] if weights else [])),
        artifacts=(SUPERNET,),
    )
    return _finish(
        run.execute(
            stage,
            lambda out, _: tasks.compile.run(config.compile, config.model, config.data, weights, config.space, out),
        )
    )


@_stage("finetune")
def finetune(run: Run, config: RunConfig, compiled: Output) -> Output:
    """The SuperNet, trained; registered as a model in MLflow."""
    supernet = compiled.folder / SUPERNET
    stage = Stage(
        name="finetune",
        modules=("tasks.finetune", "tasks.finetune.worker"),
        settings=config.finetune.model_dump(mode="json", exclude=NOT_IN_KEY),
        inputs=(data_key(config.data), supernet),
        artifacts=(SUPERNET, "history.jsonl"),
        registered=f"autotailor-{config.name}",
    )
    return _finish(
        run.execute(
            stage,
            lambda out, progress: tasks.finetune.run(config.finetune, config.data, supernet, out, progress),
        )
    )


@_stage("enumerate")
def enumerate(run: Run, supernet: Path, batch: int = 1) -> Output:
    """Every unique operator of a SuperNet, of a batch of samples."""
    stage = Stage(
        name="enumerate",
        modules=("tasks.enumerate",),
        settings={} if batch == 1 else {"batch": batch},
        inputs=(supernet,),
        artifacts=(tasks.enumerate.OPERATORS_FILE,),
    )
    return _finish(run.execute(stage, lambda out, progress: tasks.enumerate.run(supernet, out, progress, batch)))


@_stage("profile", agent=True)
def profile(run: Run, config: CommonConfig, device: str, supernet: Path, enumerated: Output) -> Output:
    """The look-up table of one device."""
    settings = config.profile_of(device)
    stage = Stage(
        name=f"profile/{device}",
        modules=("tasks.profile",),
        settings=settings.model_dump(mode="json", include={"method", "measure", "subnet", "other_settings"}),
        inputs=(run.devices.fingerprint(device), supernet, enumerated.folder / tasks.enumerate.OPERATORS_FILE),
        artifacts=(tasks.profile.LUT_FOLDER,),
        anew=bool(settings.remeasure),
    )

    def body(out: Path, progress: Progress) -> dict[str, Any]:
        with run.devices.meter(device) as meter:
            batch = config.device[device].batch
            return tasks.profile.run(settings, enumerated.folder, meter, out, progress, supernet, batch)

    return _finish(run.execute(stage, body))


@_stage("sensitivities")
def sensitivities(run: Run, config: CommonConfig, supernet: Path) -> Output:
    """The accuracy predictor and its error."""
    stage = Stage(
        name="sensitivities",
        modules=("tasks.predict.sensitivity",),
        settings=config.predict.model_dump(mode="json", include=SENSITIVITY_SETTINGS),
        inputs=(data_key(config.data), supernet),
        artifacts=(tasks.predict.sensitivity.SENSITIVITIES_FILE, tasks.predict.sensitivity.VALIDATION_FILE),
    )
    return _finish(
        run.execute(
            stage,
            lambda out, progress: tasks.predict.sensitivity.run(config.predict, config.data, supernet, out, progress),
        )
    )


@_stage("latency", agent=True)
def latency(run: Run, config: CommonConfig, device: str, supernet: Path, profiled: Output) -> Output:
    """The latency predictor of one device and its error on whole SubNets."""
    stage = Stage(
        name=f"latency/{device}",
        modules=("tasks.predict.validate",),
        settings=config.predict.model_dump(mode="json", exclude=NOT_OF_LATENCY),
        inputs=(run.devices.fingerprint(device), supernet, profiled.folder / tasks.profile.LUT_FOLDER),
        artifacts=(tasks.predict.validate.LATENCY_FILE, tasks.predict.validate.VALIDATION_FILE),
    )

    def body(out: Path, progress: Progress) -> dict[str, Any]:
        with run.devices.exclusive(device) as client:
            batch = config.device[device].batch
            return tasks.predict.validate.run(config.predict, supernet, profiled.folder, client, out, progress, batch)

    return _finish(run.execute(stage, body))


@_stage("resources")
def resources(run: Run, config: CommonConfig, device: str, supernet: Path, profiled: Output, timed: Output) -> Output:
    """Memory, multiply-accumulates, parameters and energy of SubNets on one device, on which `timed` measured some."""
    settings = config.resources_of(device)
    batch = config.device[device].batch
    stage = Stage(
        name=f"resources/{device}",
        modules=("tasks.predict.resources",),
        settings=settings.model_dump(mode="json") | ({} if batch == 1 else {"batch": batch}),
        inputs=(
            supernet,
            profiled.folder / tasks.profile.LUT_FOLDER,
            timed.folder / tasks.predict.validate.LATENCY_FILE,
            timed.folder / tasks.predict.validate.VALIDATION_FILE,
        ),
        artifacts=(tasks.predict.resources.RESOURCES_FILE,),
    )
    return _finish(
        run.execute(
            stage,
            lambda out, _: tasks.predict.resources.run(settings, supernet, out, timed.folder, batch, profiled.folder),
        )
    )


@_stage("search")
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
    stage = Stage(
        name=f"search/{devices[0] if len(devices) == 1 else 'together'}",
        modules=("tasks.search",),
        settings=settings,
        inputs=(supernet, accuracy_file, *latency_files, *energy_files),
        artifacts=tuple(f"{name}/{front}" for name in devices) if len(devices) > 1 else (front,),
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
        found = tasks.search.run(supernet, targets, predictor, config.search, out, progress)
        return found if len(devices) > 1 else found[devices[0]]

    output = _finish(run.execute(stage, body))
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


@_stage("refine", agent=True)
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
    return _finish(output)


@_stage("export", agent=True)
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

    return _finish(run.execute(stage, body))


def _evaluation_data(config: CommonConfig) -> dict[str, EvaluationData]:
    splits = load_splits(config.data)
    validation = EvaluationData(
        splits["validation"],
        splits["train"],
        recalibration_images=config.predict.recalibration_images,
        features_mib=config.predict.features_mib,
    )
    return {"validation": validation, "test": validation.of(splits["test"])}


@_stage("sibling")
def sibling(run: Run, config: RunConfig, number: int) -> Output:
    """One of the smaller networks of the baselines, trained as long as base network and SuperNet together."""
    one = config.baselines.siblings[number]
    settings = config.base.model_copy(update={"epochs": config.base.epochs + config.finetune.epochs})
    stage = Stage(
        name=f"sibling/{one.name}",
        modules=("tasks.base", "tasks.finetune.worker"),
        settings=settings.model_dump(mode="json", exclude=NOT_IN_KEY),
        inputs=(model_key(one.model), data_key(config.data)),
    )

    def body(out: Path, progress: Progress) -> dict[str, Any]:
        return tasks.base.run(settings, one.model, config.data, out, progress, f"training {one.name}")

    return _finish(run.execute(stage, body))


@_stage("baselines")
def baselines(
    run: Run,
    config: CommonConfig,
    supernet: Path,
    accuracy: Output,
    found: Mapping[str, Output],
    siblings: Sequence[Output],
) -> Output:
    """Which networks the winners of all devices are held against, and the accuracy of both."""
    accuracy_file = accuracy.folder / tasks.predict.sensitivity.SENSITIVITIES_FILE
    fronts = {name: one.folder / tasks.search.FRONT_FILE for name, one in found.items()}
    weights = [one.folder / tasks.base.WEIGHTS_FILE for one in siblings]
    networks = [
        tasks.baselines.Trained(baseline="siblings", name=one.title, model=one.model, weights=file)
        for one, file in zip(config.baselines.siblings, weights, strict=True)
    ]
    files = [(name, path) for name, paths in config.baselines.files.items() for path in paths]
    networks += [
        tasks.baselines.Trained(
            baseline=name, name=path.name, model=ModelSettings(kind="onnx", name=path.name, path=path)
        )
        for name, path in files
    ]
    stage = Stage(
        name="baselines",
        modules=("tasks.baselines",),
        settings={
            **config.baselines.model_dump(mode="json", exclude={"files"}),
            "files": [[name, path.name] for name, path in files],
            "search": config.search.model_dump(mode="json"),
            "predict": config.predict.model_dump(mode="json", include=OF_IMAGES),
        },
        inputs=(
            data_key(config.data),
            supernet,
            accuracy_file,
            list(fronts),
            *fronts.values(),
            *weights,
            *(path for _, path in files),
        ),
        artifacts=(tasks.baselines.BASELINES_FILE,),
    )

    def body(out: Path, progress: Progress) -> dict[str, Any]:
        predictor = AccuracyPredictor.load(accuracy_file)
        return tasks.baselines.choose(
            config.baselines, config.search, config.predict, supernet, predictor, config.data, networks, fronts, out,
            progress,
        )  # fmt: skip

    return _finish(run.execute(stage, body))


@_stage("compared", agent=True)
def compared(run: Run, config: CommonConfig, device: str, supernet: Path, chosen: Output) -> Output:
    """The baselines and the winners of one device, timed there side by side, and what the winners gain."""
    batch = config.device[device].batch
    stage = Stage(
        name=f"compared/{device}",
        modules=("tasks.baselines",),
        settings=config.predict.model_dump(mode="json", include=OF_TIMING),
        inputs=(run.devices.fingerprint(device), device, supernet, chosen.folder / tasks.baselines.BASELINES_FILE),
        artifacts=(tasks.baselines.COMPARED_FILE,),
    )

    def body(out: Path, progress: Progress) -> dict[str, Any]:
        with run.devices.exclusive(device) as client:
            return tasks.baselines.compare_on(
                device, config.predict, supernet, chosen.folder, client, out, progress, batch
            )

    return _finish(run.execute(stage, body))


@_stage("report")
def report(run: Run, config: CommonConfig, sources: tasks.report.Sources, folder: Path) -> dict[str, Any]:
    """report.html and report.json of this run; made anew each time, it costs about a second."""
    result = tasks.report.run(sources, config.report, folder)
    publish_report(folder / tasks.report.PAGE_FILE)
    return result
