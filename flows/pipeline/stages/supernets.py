"""The stages from a network to its trained SuperNet: base network, compilation, fine-tuning, and its operators.

With two stages of training, the first one trains the backbone on data of its own, and inserts it into the SuperNet.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.config import FlowConfig, RetargetConfig, RunConfig
from flows.pipeline import pages
from flows.pipeline.results import of
from flows.pipeline.stages.spec import SUPERNET, Context, Scope, StageSpec, backbone_key, data_key, model_key
from importing import later_names
from tasks.base.artifacts import key_settings
from tasks.base.progress import Progress
from tasks.base.schemas.placed import OPERATORS_FILE
from tasks.base.schemas.results import (
    HISTORY_FILE,
    WEIGHTS_FILE,
    BaseResult,
    EnumerateResult,
    FinetuneResult,
    JoinResult,
)
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings

if TYPE_CHECKING:
    from tasks.measuring import operators as enumerating
    from tasks.search import check
    from tasks.training import base_network as base
    from tasks.training import compile as compiling
    from tasks.training import evaluate_given as given
    from tasks.training import finetune, pretraining
else:
    globals().update(later_names(__file__))


SHAPES_ALONE = ("enumerate", "plan", "profile")
"""Commands that train nothing: operators and their latencies depend on shapes alone."""

UNSEARCHED = (*SHAPES_ALONE, "compile", "finetune", "predict")
"""Commands that show no front."""


def trains_base(config: FlowConfig, until: str) -> bool:
    """Whether a run reaches the base network."""
    return isinstance(config, RunConfig) and config.model.kind != "onnx" and until not in SHAPES_ALONE


def _checked_early(config: FlowConfig, until: str) -> bool:
    """Whether training, or measuring for limits, would delay the answer."""
    limited = any(config.search.limits_of(name).given for name in config.device)
    return until not in SHAPES_ALONE and (limited or trains_base(config, until))


def _check(at: Context, out: Path, progress: Progress) -> StageResult:
    """Budgets are not part of the key: a run with other budgets repeats nothing; its search reports too low budgets."""
    config = at.config
    rules = {name: config.limited_memory_of(name) for name in config.device}
    if isinstance(config, RetargetConfig):
        return check.supernet(config.supernet, config.search, rules)
    given = check.UncompiledNetwork(
        settings=config.compile,
        model=config.model,
        data=config.data,
        space=config.space,
        first=config.pretraining,
        backbone_space=config.pretraining.space_of(config.space),
    )
    budgeted = [
        check.BudgetedDevice(name, min(budgets_ms), partial(at.run.devices.exclusive, name), profile.batch)
        for name, profile in config.device.items()
        if (budgets_ms := config.search.budgets_of(name)) is not None
    ]
    return check.network(given, config.search, rules, check.BudgetCheck(budgeted, config.predict, out, progress))


def _check_settings(at: Context) -> dict[str, Any]:
    config = at.config
    limits = {name: config.search.limits_of(name).given for name in config.device}
    rules = {name: asdict(config.limited_memory_of(name)) for name in config.device if "memory_mib" in limits[name]}
    bounded = {"limits": limits, "rules": rules, "together": config.search.together} if any(limits.values()) else {}
    return (
        bounded if isinstance(config, RetargetConfig) else {**bounded, **_compile_settings(at), **backbone_key(config)}
    )


def _compile_settings(at: Context) -> dict[str, Any]:
    return {"space": dict(at.training.space), **key_settings(at.training.compile)}


def _weights_of(at: Context, stage: str) -> tuple[Path, ...]:
    """The weights that a stage has trained; none if the run has no such stage."""
    return (at.file(stage, WEIGHTS_FILE),) if at.has(stage) else ()


def _base(at: Context, out: Path, progress: Progress) -> StageResult:
    first, weights = at.training.pretraining.backbone, _weights_of(at, "pretrain")
    begun = base.Pretrained(first, weights[0]) if first and weights else None
    return base.run(at.training.base, at.training.model, at.config.data, out, progress, pretrained=begun)


def _given(at: Context, out: Path, progress: Progress) -> StageResult:
    config = at.config
    if isinstance(config, RetargetConfig):
        return given.evaluate_supernet(config.supernet, config.data, config.predict.recalibration_images)
    return given.evaluate_file(config.model, config.data, out, progress)


def _compile(at: Context, out: Path, progress: Progress) -> StageResult:
    """Without a base network, the SuperNet has the weights of the .onnx file, or random ones if weights do not matter."""
    config, weights = at.training, next(iter(_weights_of(at, "base")), None)
    return compiling.run(config.compile, config.model, config.data, weights, config.space, out, progress)


def _untrained(at: Context) -> Path:
    """The SuperNet that fine-tuning starts from: the network's own, or the one with a backbone trained on other data."""
    return at.file("join", SUPERNET) if at.has("join") else at.supernet


def _samples(at: Context) -> int:
    return int(at.label or 1)


CHECK = StageSpec(
    name="check",
    body=_check,
    modules=("tasks.search.check",),
    settings=_check_settings,
    inputs=lambda at: (
        (at.supernet,) if isinstance(at.config, RetargetConfig) else (model_key(at.training.model), at.data)
    ),
    facts=pages.space,
    wanted=_checked_early,
)
"""The network compiled with random weights, to report an infeasible space, limits or budgets before anything is trained."""

BASE = StageSpec(
    name="base",
    body=_base,
    modules=("tasks.training.base_network", "tasks.training.finetune.worker"),
    settings=lambda at: key_settings(at.training.base),
    inputs=lambda at: (model_key(at.training.model), at.data, *_weights_of(at, "pretrain")),
    reads=("pretrain",),
    epochs=lambda at: at.training.base.epochs,
    facts=of(BaseResult, pages.base),
    wanted=trains_base,
)
"""The base network, trained if it has no weights."""

GIVEN = StageSpec(
    name="given",
    body=_given,
    modules=("tasks.training.evaluate_given",),
    settings=lambda at: {"recalibration_images": at.config.predict.recalibration_images},
    inputs=lambda at: (
        at.config.supernet if isinstance(at.config, RetargetConfig) else model_key(at.config.model),
        at.data,
    ),
    facts=pages.given,
    wanted=lambda config, until: (
        until == "report"
        if isinstance(config, RetargetConfig)
        else config.model.kind == "onnx" and until not in UNSEARCHED
    ),
)
"""The accuracy of an .onnx file or a SuperNet to retarget, which no stage trains; data other than its own is refused."""

COMPILE = StageSpec(
    name="compile",
    body=_compile,
    reads=("base",),
    modules=("tasks.training.compile",),
    settings=_compile_settings,
    inputs=lambda at: (model_key(at.training.model), at.data, *_weights_of(at, "base")),
    artifacts=lambda at: (SUPERNET,),
    facts=pages.space,
    details=pages.remarks,
    ends="compile",
)
"""The SuperNet of the network."""

FINETUNE = StageSpec(
    name="finetune",
    body=lambda at, out, progress: finetune.run(at.training.finetune, at.config.data, _untrained(at), out, progress),
    needs=("compile",),
    reads=("join",),
    modules=("tasks.training.finetune", "tasks.training.finetune.worker"),
    settings=lambda at: key_settings(at.training.finetune),
    inputs=lambda at: (at.data, _untrained(at)),
    artifacts=lambda at: (SUPERNET, HISTORY_FILE),
    epochs=lambda at: at.training.finetune.epochs,
    facts=of(FinetuneResult, pages.trained),
    registered=lambda at: f"autotailor-{at.training.name}",
    wanted=lambda config, until: until not in SHAPES_ALONE,
    ends="finetune",
)
"""The trained SuperNet; registered as a model in MLflow."""

ENUMERATE = StageSpec(
    name="enumerate",
    body=lambda at, out, progress: enumerating.run(at.supernet, out, progress, _samples(at)),
    needs=("compile",),
    modules=("tasks.measuring.operators",),
    settings=lambda at: {} if _samples(at) == 1 else {"batch": _samples(at)},
    inputs=lambda at: (at.supernet,),
    artifacts=lambda at: (OPERATORS_FILE,),
    facts=of(EnumerateResult, pages.operators),
    details=of(EnumerateResult, pages.types),
    ends="enumerate",
)
"""Every unique operator of the SuperNet."""

BATCHES = replace(
    ENUMERATE,
    name="batches",
    title="enumerate",
    scope=Scope(
        labels=lambda config: sorted({str(profile.batch) for profile in config.device.values()} - {"1"}, key=int),
        suffix=lambda config, label: "",
    ),
    ends="plan",
)
"""The same operators for batches of samples, if a device runs such."""


def operators_of(at: Context) -> Path:
    """Folder of the operators for a device's batch size."""
    return at.output("enumerate").folder if at.batch == 1 else at.output("batches", str(at.batch)).folder


def _in_two_stages(config: FlowConfig, until: str) -> bool:
    return isinstance(config, RunConfig) and config.pretraining.backbone is not None and trains_base(config, until)


def _first_data(config: FlowConfig) -> DataSettings:
    assert isinstance(config, RunConfig)
    return config.pretraining.data


def _pretrain(at: Context, out: Path, progress: Progress) -> StageResult:
    first = at.training.pretraining
    classifier = first.classifier(at.training.model)
    return base.run(first.base, classifier, first.data, out, progress, "training the backbone as a classifier")


def _backbone(at: Context, out: Path, progress: Progress) -> StageResult:
    config, first = at.training, at.training.pretraining
    space = first.space_of(config.space)
    return pretraining.make_backbone(first, config.compile, config.model, space, at.supernet, out, progress)


def _distill(at: Context, out: Path, progress: Progress) -> StageResult:
    first = at.training.pretraining
    return finetune.run(first.finetune, first.data, at.file("backbone", SUPERNET), out, progress)


def _join(at: Context, out: Path, progress: Progress) -> StageResult:
    config = at.training
    part, images = config.pretraining.backbone, config.finetune.recalibration_images
    assert part is not None
    return pretraining.join(part, config.data, images, at.supernet, at.file("distill", SUPERNET), out, progress)


PRETRAIN = StageSpec(
    name="pretrain",
    body=_pretrain,
    modules=("tasks.training.base_network", "tasks.training.finetune.worker"),
    settings=lambda at: key_settings(at.training.pretraining.base),
    inputs=lambda at: (
        model_key(at.training.pretraining.classifier(at.training.model)),
        data_key(at.training.pretraining.data),
    ),
    data=_first_data,
    epochs=lambda at: at.training.pretraining.base.epochs,
    facts=of(BaseResult, pages.base),
    wanted=lambda config, until: (
        isinstance(config, RunConfig) and _in_two_stages(config, until) and config.model.checkpoint is None
    ),
)
"""The backbone as a classifier, trained on the first data."""

BACKBONE = StageSpec(
    name="backbone",
    body=_backbone,
    needs=("compile",),
    modules=("tasks.training.pretraining",),
    settings=lambda at: {
        **backbone_key(at.training),
        **key_settings(at.training.compile),
        "classifier_images": at.training.pretraining.classifier_images,
        "recalibration_images": at.training.pretraining.finetune.recalibration_images,
    },
    inputs=lambda at: (model_key(at.training.model), at.supernet),
    data=_first_data,
    wanted=lambda config, until: _in_two_stages(config, until) and until != "compile",
)
"""The backbone's SuperNet with the whole SuperNet's weights and a classifier for the first data."""

DISTILL = StageSpec(
    name="distill",
    body=_distill,
    needs=("backbone",),
    modules=("tasks.training.finetune", "tasks.training.finetune.worker"),
    settings=lambda at: key_settings(at.training.pretraining.finetune),
    inputs=lambda at: (data_key(at.training.pretraining.data), at.file("backbone", SUPERNET)),
    artifacts=lambda at: (SUPERNET, HISTORY_FILE),
    data=_first_data,
    epochs=lambda at: at.training.pretraining.finetune.epochs,
    facts=of(FinetuneResult, pages.trained),
    wanted=BACKBONE.wanted,
)
"""The backbone's SuperNet, trained on the first data."""

JOIN = StageSpec(
    name="join",
    body=_join,
    needs=("compile", "distill"),
    modules=("tasks.training.pretraining",),
    settings=lambda at: {
        "backbone": at.training.pretraining.backbone,
        "recalibration_images": at.training.finetune.recalibration_images,
    },
    inputs=lambda at: (at.data, at.supernet, at.file("distill", SUPERNET)),
    artifacts=lambda at: (SUPERNET,),
    facts=of(JoinResult, pages.joined),
    wanted=BACKBONE.wanted,
)
"""The whole SuperNet with the trained backbone inserted."""
