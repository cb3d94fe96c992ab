"""The baselines, and the winners' gain over them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flows.config import FlowConfig, RunConfig
from flows.pipeline import pages
from flows.pipeline.results import of
from flows.pipeline.stages.spec import ALONE, DEVICES, Context, Scope, StageSpec, model_key
from flows.pipeline.stages.winners import chosen, evaluation_settings, searched_supernet
from importing import later_names
from tasks.base.artifacts import key_settings
from tasks.base.progress import Progress
from tasks.base.schemas.results import WEIGHTS_FILE, BaseResult
from tasks.base.schemas.stored import StageResult
from tasks.base.schemas.winners import BASELINES_FILE, COMPARED_FILE, FRONT_FILE, Baselines, Compared
from tasks.evaluation.models import ModelSettings
from tasks.measuring.settings import RepeatedTimingSettings
from tasks.search.settings import Sibling
from tasks.training.finetune.settings import BaseSettings

if TYPE_CHECKING:
    from tasks.search.baselines import stage as baselines
    from tasks.training import base_network as base
else:
    globals().update(later_names(__file__))


def _sibling_of(at: Context) -> Sibling:
    return at.config.baselines.siblings[int(at.label)]


def _training(at: Context) -> BaseSettings:
    """Train a sibling for as many epochs as the base network and the SuperNet together."""
    config = at.training
    return config.base.model_copy(update={"epochs": config.base.epochs + config.finetune.epochs})


SIBLING = StageSpec(
    name="sibling",
    body=lambda at, out, progress: base.run(
        _training(at), _sibling_of(at).model, at.config.data, out, progress, f"training {_sibling_of(at).name}"
    ),
    scope=Scope(
        # numbers as labels: names are not unique, since two siblings may differ in options alone
        labels=lambda config: (
            [str(number) for number in range(len(config.baselines.siblings))] if isinstance(config, RunConfig) else []
        ),
        suffix=lambda config, label: config.baselines.siblings[int(label)].name,
    ),
    modules=("tasks.training.base_network", "tasks.training.finetune.worker"),
    settings=lambda at: key_settings(_training(at)),
    inputs=lambda at: (model_key(_sibling_of(at).model), at.data),
    epochs=lambda at: _training(at).epochs,
    facts=of(BaseResult, pages.base),
    wanted=lambda config, until: config.baselines.wanted,
)
"""One of the smaller baseline networks, trained for as many epochs as the base network and the SuperNet together."""


INT8 = "int8"
"""Label of the baselines for devices in int8; baselines for other devices have no label."""


def _precisions(config: FlowConfig) -> Sequence[str]:
    """Labels of the precisions in which baselines and winners are evaluated, one per precision of the devices."""
    others = [ALONE] if len(config.in_int8) < len(config.device) else []
    return [*others, *([INT8] if config.in_int8 else [])]


def _devices(at: Context) -> list[str]:
    return [name for name in at.config.device if (name in at.config.in_int8) == (at.label == INT8)]


def _fronts(at: Context) -> dict[str, Path]:
    fronts = chosen(at)
    return {name: fronts[name].folder / FRONT_FILE for name in _devices(at)}


def _weights(at: Context) -> list[Path]:
    trained = at.outputs("sibling") if at.has("sibling") else {}
    return [one.folder / WEIGHTS_FILE for one in trained.values()]


def _files(at: Context) -> list[tuple[str, Path]]:
    return [(name, path) for name, paths in at.config.baselines.files.items() for path in paths]


def _baselines(at: Context, out: Path, progress: Progress) -> StageResult:
    config = at.config
    trained = [
        baselines.Trained(baseline="siblings", name=one.title, model=one.model, weights=file)
        for one, file in zip(config.baselines.siblings, _weights(at), strict=True)
    ]
    given = [
        baselines.Trained(baseline=name, name=path.name, model=ModelSettings(kind="onnx", name=path.name, path=path))
        for name, path in _files(at)
    ]
    request = baselines.BaselineRequest(
        settings=config.baselines,
        search=config.search,
        searched=searched_supernet(at, _devices(at)[0]),
        data=config.data,
        networks=trained + given,
        fronts=_fronts(at),
    )
    return baselines.choose(request, out, progress)


BASELINES = StageSpec(
    name="baselines",
    body=_baselines,
    scope=Scope(labels=_precisions),
    needs=("finetune", "sensitivities", "search"),
    reads=("int8", "refine", "sibling"),
    modules=("tasks.search.baselines.stage",),
    settings=lambda at: {
        **key_settings(at.config.baselines),
        "files": [[name, path.name] for name, path in _files(at)],
        "search": key_settings(at.config.search),
        "predict": evaluation_settings(at, _devices(at)[0]),
    },
    inputs=lambda at: (
        at.data,
        at.trained,
        at.sensitivities(_devices(at)[0]),
        _devices(at),
        *_fronts(at).values(),
        *_weights(at),
        *(path for _, path in _files(at)),
    ),
    artifacts=lambda at: (BASELINES_FILE,),
    facts=of(Baselines, pages.baselines),
    wanted=lambda config, until: config.baselines.wanted,
)
"""The networks of all baselines and the winners of all devices, with their accuracies in one precision."""


def _chosen_for(at: Context) -> Path:
    """The folder with the baselines of a device."""
    return at.output("baselines", INT8 if at.device in at.config.in_int8 else ALONE).folder


def _compare(at: Context, out: Path, progress: Progress) -> StageResult:
    profile = at.config.profile_of(at.device)
    request = baselines.ComparisonRequest(
        supernet=at.trained,
        baselines=_chosen_for(at),
        timing=at.config.predict,
        in_situ=profile.subnet if profile.method == "in situ" else None,
        store=at.store,
    )
    with at.leased() as device:
        return baselines.compare_on(device, request, out, progress)


COMPARED = StageSpec(
    name="compared",
    body=_compare,
    scope=DEVICES,
    needs=("finetune", "profile", "baselines"),
    reads=("runtime_options",),
    modules=("tasks.search.baselines.stage",),
    settings=lambda at: {
        **key_settings(at.config.predict, RepeatedTimingSettings),
        "profile": key_settings(at.config.profile_of(at.device)),
    },
    inputs=lambda at: (at.fingerprint, at.device, at.trained, _chosen_for(at) / BASELINES_FILE, at.implementations()),
    artifacts=lambda at: (COMPARED_FILE,),
    facts=of(Compared, pages.compared),
    wanted=lambda config, until: config.baselines.wanted,
    agent=True,
    ends="report",
)
"""The baselines and the winners of one device, timed there side by side, and the winners' gain."""
