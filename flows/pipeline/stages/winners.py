"""The best SubNets: searched, measured, placed over several devices, and exported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tasks.export
from adaptive_runtime.base.files import sha256_of
from flows.config import FlowConfig, RunConfig, sharing
from flows.pipeline import pages
from flows.pipeline.pages import exported_rows, front_rows
from flows.pipeline.results import of
from flows.pipeline.run import Output
from flows.pipeline.stages.spec import DEVICES, Context, Outputs, Scope, StageSpec, labelled_key
from flows.storage import EXPORTS_FOLDER
from importing import later_names
from tasks.base.artifacts import digest_of, key_settings
from tasks.base.progress import Progress
from tasks.base.schemas.exports import LABELLED, Exports
from tasks.base.schemas.placed import LUT_FOLDER, ChosenImplementations
from tasks.base.schemas.predictions import ENERGY_FILE, LATENCY_FILE, LATENCY_VALIDATION_FILE
from tasks.base.schemas.stored import StageResult
from tasks.base.schemas.winners import FRONT_FILE, MEASURED_FILE, WHOLE_FRONT_FILE, Candidates, Front
from tasks.evaluation.models import origin_of, weights_source
from tasks.evaluation.settings import EvaluationSettings
from tasks.exits.policies import POLICIES_FILE, Policies, SubnetPolicy
from tasks.export.operating_points import LEVELS_FILE, Levels
from tasks.measuring.runtime_options.settings import RUNTIME_OPTIONS_FILE, ChosenEngine
from tasks.measuring.settings import RepeatedTimingSettings

if TYPE_CHECKING:
    from profiling_agents.client import AgentClient
    from tasks import search
    from tasks.data.loading import load_labelled, load_splits
    from tasks.evaluation.subnets import EvaluationData, EvaluationResources
    from tasks.export.adapted import read_side_files
    from tasks.export.bundles import BundleContents, FurtherFormat, further_formats
    from tasks.export.operating_points import latency_error_of
    from tasks.placement.bundled import BundlePlacements, OtherDevices
    from tasks.placement.partition.planning import DeviceTable, table_of
    from tasks.prediction.accuracy import AccuracyPredictor
    from tasks.prediction.latency import LatencyPredictor
    from tasks.prediction.resources import EnergyPredictor
    from tasks.prediction.sensitivity import images_of
    from tasks.search.refine import stage as refine
else:
    globals().update(later_names(__file__))

TOGETHER = "together"
"""Label of the search that covers all devices."""


class _Given:
    """The inputs of a search on one device: files (with energies only if energy has a limit) and memory rules."""

    def __init__(self, at: Context, device: str) -> None:
        limits = at.config.search.limits_of(device)
        self.device, self.rules = device, at.config.limited_memory_of(device)
        self.files = [at.file("latency", LATENCY_FILE, device)]
        if limits.energy_mj is not None:
            self.files.append(at.file("resources", ENERGY_FILE, device))
        self.settings = {} if limits.memory_mib is None else {device: asdict(self.rules)}

    def target(self) -> search.Target:
        """The search target, loaded from the files."""
        latency, energy = LatencyPredictor.load(self.files[0]), [EnergyPredictor.load(file) for file in self.files[1:]]
        return search.Target(name=self.device, latency=latency, energy=next(iter(energy), None), rules=self.rules)


def target_of(at: Context) -> search.Target:
    """The search target for the device of a stage."""
    return _Given(at, at.device).target()


def _searches(config: FlowConfig) -> Sequence[str]:
    """One label for all devices together, or one for each device."""
    return (TOGETHER,) if config.search.together and len(config.device) > 1 else tuple(config.device)


SEARCHES = Scope(labels=_searches, side_by_side=True)


def _searched(at: Context) -> tuple[str, ...]:
    """The devices of one search."""
    return tuple(at.config.device) if at.label == TOGETHER else (at.label,)


def _given(at: Context) -> list[_Given]:
    return [_Given(at, device) for device in _searched(at)]


def _accuracy(at: Context) -> Path:
    return at.sensitivities(_searched(at)[0])


def searched_supernet(at: Context, device: str) -> search.SearchedSuperNet:
    """The trained SuperNet after a search, with its predictor and images in the precision of a device."""
    return search.SearchedSuperNet(
        supernet=at.trained,
        accuracy=AccuracyPredictor.load(at.sensitivities(device)),
        images=_images_of(at, device),
        store=at.store,
    )


def _images_of(at: Context, device: str) -> EvaluationData:
    """The images for evaluating accuracies, in the precision of a device."""
    precision = at.config.precision_of(device)
    return images_of(at.config.predict, at.config.data, at.run.workers).in_precision(precision)


def evaluation_settings(at: Context, device: str) -> dict[str, Any]:
    """The settings that accuracies depend on, in the precision of a device."""
    precision = at.config.precision_of(device)
    return {**key_settings(at.config.predict, EvaluationSettings), **({} if precision is None else precision.key)}


def _rules(at: Context) -> dict[str, Any]:
    """The rules of limited memory by device."""
    return {name: own for one in _given(at) for name, own in one.settings.items()}


def _search_settings(at: Context) -> dict[str, Any]:
    devices, rules = _searched(at), _rules(at)
    return {
        **key_settings(at.config.search.of_devices(devices)),
        **({"rules": rules} if rules else {}),
        **({"devices": list(devices)} if len(devices) > 1 else {}),
        **({"predict": evaluation_settings(at, devices[0])} if _evaluates(at) else {}),
    }


def _evaluates(at: Context) -> bool:
    return at.config.search.accuracy == "measured"


def _search_artifacts(at: Context) -> tuple[str, ...]:
    devices = _searched(at)
    whole = [WHOLE_FRONT_FILE] if at.config.search.lists_whole_front(devices) else []
    return (*_of_devices(devices, FRONT_FILE), *whole)


def _of_devices(devices: Sequence[str], *files: str) -> tuple[str, ...]:
    """Files of a stage; with several devices they are in one folder per device."""
    return tuple(f"{name}/{file}" for name in devices for file in files) if len(devices) > 1 else files


def _search(at: Context, out: Path, progress: Progress) -> StageResult:
    names = _searched(at)
    request = search.SearchRequest(
        supernet=at.trained,
        accuracy=AccuracyPredictor.load(_accuracy(at)),
        images=_images_of(at, names[0]) if _evaluates(at) else None,
        targets=[one.target() for one in _given(at)],
        settings=at.config.search,
        uncertainty=at.uncertainty(names[0]),
        given_accuracy=at.given_accuracy,
    )
    found = search.run(request, out, progress)
    return found if len(names) > 1 else found[names[0]]


def _by_device(config: FlowConfig, outputs: Mapping[str, Output]) -> Mapping[str, Output]:
    """The outputs of a search over several devices, split by device."""
    if TOGETHER not in outputs:
        return outputs
    whole = outputs[TOGETHER]
    stage = whole.stage.removesuffix(TOGETHER)
    return {
        name: replace(whole, stage=f"{stage}{name}", folder=whole.folder / name, result=whole.result[name])
        for name in config.device
    }


SEARCH = StageSpec(
    name="search",
    body=_search,
    scope=SEARCHES,
    needs=("finetune", "sensitivities", "latency", "resources"),
    reads=("compile", "base", "given", "int8"),
    modules=("tasks.search",),
    settings=_search_settings,
    inputs=lambda at: (
        at.trained,
        _accuracy(at),
        at.uncertainty(_searched(at)[0]).to_json(),
        *([] if (given := at.given_accuracy) is None else [{"as given": given}]),
        *(file for one in _given(at) for file in one.files),
        *([at.data] if _evaluates(at) else []),
    ),
    artifacts=_search_artifacts,
    by_device=_by_device,
    facts=of(Front, pages.front),
    details=of(Front, pages.searched),
    winners=of(Front, front_rows),
    known="as predicted",
    ends="search",
)
"""The best SubNet for every latency budget: of one device, or one for several devices together."""


def _refine(at: Context, out: Path, progress: Progress) -> StageResult:
    config, names = at.config, _searched(at)
    searched = searched_supernet(at, names[0])
    searches = {name: at.output("search", name).folder for name in names}
    with _timed(at) as devices:
        refine.measure(config.refine, config.predict, searched, devices, out, progress)
    found = refine.choose(config.refine, searched, searches, out, progress)
    return found if len(names) > 1 else found[names[0]]


@contextmanager
def _timed(at: Context) -> Iterator[list[refine.SearchedDevice]]:
    """The devices of one search. A single one is held until the block ends; several take turns, as they may share a machine."""

    def device(one: _Given, agent: Callable[[], AbstractContextManager[AgentClient]]) -> refine.SearchedDevice:
        batch = at.config.device[one.device].batch
        own = ChosenImplementations.read(at.implementations(one.device))
        return refine.SearchedDevice(one.target(), at.output("search", one.device).folder, agent, batch, own)

    given, exclusive = _given(at), partial(at.run.devices.exclusive, alone=True)
    if len(given) > 1:
        yield [device(one, partial(exclusive, one.device, at.engine_of(one.device))) for one in given]
        return
    with exclusive(given[0].device, at.engine_of(given[0].device)) as client:
        yield [device(given[0], lambda: nullcontext(client))]


def _refine_device_s(at: Context) -> float:
    """Time for the candidates of all budgets, assuming that all differ; re-timing the winners takes twice as long."""
    config, asked = at.config, (at.config.search.budgets_of(name) for name in _searched(at))
    budgets = sum(config.search.budget_count if budgets_ms is None else len(budgets_ms) for budgets_ms in asked)
    return config.predict.device_s(budgets * (config.refine.candidates + 2))


REFINE = StageSpec(
    name="refine",
    body=_refine,
    scope=SEARCHES,
    needs=("finetune", "profile", "sensitivities", "latency", "resources", "search"),
    reads=("runtime_options", "int8"),
    modules=("tasks.search.refine.stage",),
    settings=lambda at: {
        **key_settings(at.config.refine),
        "devices": list(_searched(at)),
        "rules": _rules(at),
        "predict": {
            **evaluation_settings(at, _searched(at)[0]),
            **key_settings(at.config.predict, RepeatedTimingSettings),
        },
    },
    inputs=lambda at: (
        at.data,
        at.trained,
        _accuracy(at),
        *(at.fingerprint_of(name) for name in _searched(at)),
        *(file for one in _given(at) for file in one.files),
        *(at.file("search", FRONT_FILE, name) for name in _searched(at)),
        *(at.implementations(name) for name in _searched(at)),
    ),
    artifacts=lambda at: _of_devices(_searched(at), FRONT_FILE, MEASURED_FILE),
    by_device=_by_device,
    device_s=_refine_device_s,
    wanted=lambda config, until: config.refine.candidates > 1,
    facts=of(Front, pages.refined),
    winners=of(Front, front_rows),
    known="as candidates were measured",
    agent=True,
)
"""The winners of a search by measurement; with one candidate per budget, the winners of the search are kept."""


def chosen(at: Context) -> Mapping[str, Output]:
    """The winners by device: refined, or as found by the search."""
    return at.outputs("refine" if at.has("refine") else "search")


def front_of(at: Context) -> Path:
    """The file with the winners of a stage's device."""
    return chosen(at)[at.device].folder / FRONT_FILE


def policies_of(at: Context) -> Sequence[SubnetPolicy]:
    """Thresholds of SubNets on a device, for their chains; empty if the run has no stage "exits"."""
    return Policies.read(at.file("exits", POLICIES_FILE)).subnets if at.has("exits") else ()


def is_placed(at: Context) -> bool:
    """Whether the bundle of a stage's device has SubNets that offload to other devices."""
    return at.config.export.offload and at.device == at.config.partition.devices[0]


def placed_settings(at: Context) -> dict[str, Any]:
    """The settings that plans depend on besides tables; empty if there are no plans."""
    return {"partition": at.config.partition.model_dump(mode="json")} if is_placed(at) else {}


def placed_files(at: Context) -> tuple[Path, ...]:
    """The files of earlier stages from which plans are made."""
    if not is_placed(at):
        return ()
    return tuple(
        at.file(stage, file, name)
        for name in at.config.partition.devices
        for stage, file in (("profile", LUT_FOLDER), ("latency", LATENCY_FILE), ("latency", LATENCY_VALIDATION_FILE))
    )


def other_devices(at: Context) -> OtherDevices | None:
    """The devices that may take part; None if the bundle does not offload."""
    if not is_placed(at):
        return None
    partition = at.config.partition
    folders = (at.output("latency", name).folder for name in partition.devices)
    return OtherDevices(_tables(at), partition, max(map(latency_error_of, folders)))


def placements(at: Context) -> BundlePlacements | None:
    """The offloaded SubNets in the device's bundle, if some state prefers them; None if the bundle does not offload."""
    if not is_placed(at):
        return None
    tables, kept = _tables(at), Levels.read(at.file("front", LEVELS_FILE)).placed
    return BundlePlacements(
        tables,
        at.config.partition,
        {digest: row.latency_error for digest, row in kept.items()},
        threads=tables[0].lut.device.threads,
        ncnn=any(table.lut.device.backend == "ncnn" for table in tables),
    )


def _tables(at: Context) -> tuple[DeviceTable, ...]:
    return tuple(
        table_of(name, at.output("profile", name).folder, at.output("latency", name).folder)
        for name in at.config.partition.devices
    )


def _provenance(at: Context) -> tasks.export.Provenance:
    """The origin of SubNets, as listed in model cards: network, initial weights, data, and the stages' files."""
    config = at.config
    network = (
        weights_source(config.model)
        if isinstance(config, RunConfig)
        else origin_of(config.supernet).model_dump(exclude={"version"})
    )
    sources = {
        "SuperNet": at.trained,
        "look-up table": at.file("profile", LUT_FOLDER),
        "latency predictor": at.file("latency", LATENCY_FILE),
        "accuracy predictor": _accuracy(at),
    }
    engine = None
    if at.has("runtime_options"):
        sources["runtime options"] = at.file("runtime_options", RUNTIME_OPTIONS_FILE)
        engine = ChosenEngine.read(sources["runtime options"])
    return tasks.export.Provenance(
        network=network,
        data=config.data.title,
        digests={name: digest_of(path) for name, path in sources.items()},
        engine=engine,
    )


def check_adapted(config: FlowConfig) -> None:
    """UserError for side files that no export accepts, whatever its winners; raised before anything is trained."""
    if config.export.adapted:
        read_side_files(config.export.adapted)


def _export_inputs(at: Context) -> tuple[Any, ...]:
    provenance, others = _provenance(at), tuple[Path, ...]()
    if at.config.export.replacements:
        others = (at.file("refine", MEASURED_FILE),) if at.has("refine") else tuple(_Given(at, at.device).files)
    return (
        at.fingerprint,
        at.data,
        at.trained,
        front_of(at),
        dict(provenance.network),
        dict(provenance.digests),
        *others,
        *((at.supernet,) if at.is_given else ()),
        at.implementations(),
        *((at.file("exits", POLICIES_FILE),) if at.has("exits") else ()),
        *((at.file("front", LEVELS_FILE),) if _others(at) or is_placed(at) else ()),
        *map(at.fingerprint_of, _others(at)),
        *placed_files(at),
        *sorted(map(sha256_of, at.config.export.adapted)),
    )


def _others(at: Context) -> tuple[str, ...]:
    """The devices whose formats the bundle of this device also contains."""
    return at.config.export.shared_bundle.get(at.device, ())


def _formats(at: Context) -> tuple[FurtherFormat, ...]:
    """Further formats of the bundle, by the capabilities of the run's devices that represent them."""
    if not _others(at):
        return ()
    client_of = at.run.devices.client
    found = {name: client_of(name).with_engine(at.engine_of(name)).capabilities() for name in _others(at)}
    return further_formats(Levels.read(at.file("front", LEVELS_FILE)), found)


def _export(at: Context, out: Path, progress: Progress) -> StageResult:
    settings, formats = at.config.export, _formats(at)
    if at.device in sharing(settings):
        settings = settings.model_copy(update={"bundle": False, "blocks": False, "adaptable": False})
    placed = placements(at)
    with at.run.devices.exclusive(at.device, at.engine, alone=True) as client:
        request = tasks.export.ExportRequest(
            settings=settings,
            supernet=at.trained,
            search=front_of(at).parent,
            data=_images(at),
            batch=at.batch,
            provenance=_provenance(at),
            substitutes=_substitutes(at),
            implementations=ChosenImplementations.read(at.implementations()),
            policies=policies_of(at),
            elsewhere=_elsewhere(at),
            contents=BundleContents(rules=at.config.runtime.rules, formats=formats, placements=placed),
            given=at.supernet if at.is_given else None,
        )
        return tasks.export.run(request, client, at.workspace(out, progress))


def _elsewhere(at: Context) -> frozenset[str]:
    """Digests of other devices' winners; empty without side files, since only these may belong to other devices."""
    others = [one.folder for name, one in chosen(at).items() if name != at.device] if at.config.export.adapted else []
    return frozenset(row.digest for folder in others for row in Front.read(folder / FRONT_FILE).winners)


def _substitutes(at: Context) -> Callable[[], tasks.export.Substitutes] | None:
    """The source of SubNets for budgets that winners miss; None for one search of all devices: it names misses."""
    if len(_searches(at.config)) < len(at.config.device):
        return None
    if at.has("refine"):
        return lambda: tasks.export.MeasuredSubstitutes(Candidates.read(front_of(at).with_name(MEASURED_FILE)))
    return lambda: tasks.export.SearchedSubstitutes(
        at.trained, _Given(at, at.device).target(), AccuracyPredictor.load(_accuracy(at)), Front.read(front_of(at))
    )


def _images(at: Context) -> dict[str, EvaluationData]:
    config, splits = at.config, load_splits(at.config.data)
    validation = EvaluationData(
        splits["validation"],
        splits["train"],
        recalibration_images=config.predict.recalibration_images,
        resources=EvaluationResources(features_mib=config.predict.features_mib, workers=at.run.workers),
    )
    found = {"validation": validation, "test": validation.of(splits["test"])}
    if (known := load_labelled(config.data, splits["train"])) is not None:
        found[LABELLED] = validation.of(known, limited=False)
        found[LABELLED].workers = None  # other processes read splits alone
    return found


EXPORT = StageSpec(
    name="export",
    body=_export,
    scope=DEVICES,
    needs=("finetune", "profile", "latency", "sensitivities", "resources", "search"),
    reads=("compile", "base", "runtime_options", "int8", "refine", "exits", "front"),
    modules=("tasks.export", "tasks.placement.bundled"),
    settings=lambda at: {
        **key_settings(at.config.export),
        "rules": _Given(at, at.device).settings,
        "recalibration_images": at.config.predict.recalibration_images,
        "examples": digest_of(tasks.export.EXAMPLES),
        **labelled_key(at.config.data),
        **placed_settings(at),
        **({"runtime": at.config.runtime.rules} if at.config.export.bundle and at.config.runtime.rules else {}),
    },
    inputs=_export_inputs,
    artifacts=lambda at: (tasks.export.EXPORTS_FILE,),
    facts=of(Exports, pages.exported),
    details=of(Exports, pages.failures),
    winners=of(Exports, exported_rows),
    known="as measured after the export",
    agent=True,
    ends="export",
)
"""Files of the winners of one device, checked and measured there."""


def readable_exports(config: FlowConfig, outputs: Outputs) -> dict[str, dict[str, str]]:
    """Write the exported files of each device under readable names; `exports`: their folders."""
    folders = {name: config.folder / EXPORTS_FOLDER / name for name in config.device}
    for name, folder in folders.items():
        tasks.export.write_readable(outputs["export"][name].folder, folder)
    return {"exports": {name: str(folder) for name, folder in folders.items()}}
