"""The first of two training stages: the backbone on the first data, and its insertion into the whole network's SuperNet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.config import FlowConfig, RunConfig
from flows.pipeline.pages import facts
from flows.pipeline.results import of
from flows.pipeline.stages.inputs import backbone_key, data_key, model_key
from flows.pipeline.stages.spec import SUPERNET, Context, StageSpec
from flows.pipeline.stages.supernets.making import trains_base
from importing.lazy import later_names
from tasks.base.artifacts import key_settings
from tasks.base.progress import Progress
from tasks.base.schemas.results import HISTORY_FILE, BaseResult, FinetuneResult, JoinResult
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings

if TYPE_CHECKING:
    from tasks.training import base_network as base
    from tasks.training import finetune
    from tasks.training.pretraining import elastic, joining
else:
    globals().update(later_names(__file__))


def _in_two_stages(config: FlowConfig, until: str) -> bool:
    return isinstance(config, RunConfig) and config.pretraining.backbone is not None and trains_base(config, until)


def _has_no_weights(config: FlowConfig, until: str) -> bool:
    return isinstance(config, RunConfig) and _in_two_stages(config, until) and config.model.checkpoint is None


def _first_data(config: FlowConfig) -> DataSettings:
    assert isinstance(config, RunConfig)
    return config.pretraining.data


def _pretrain(at: Context, out: Path, progress: Progress) -> StageResult:
    first = at.training.pretraining
    classifier = first.classifier(at.training.model)
    return base.run(first.base, classifier, first.data, out, progress, "training the backbone as a classifier")


def _backbone(at: Context, out: Path, progress: Progress) -> StageResult:
    config = at.training
    space = config.pretraining.space_of(config.space)
    return elastic.run(config.pretraining, config.compile, config.model, space, at.supernet, out, progress)


def _backbone_settings(at: Context) -> dict[str, Any]:
    config = at.training
    counts = {
        "classifier_images": config.pretraining.classifier_images,
        "recalibration_images": config.pretraining.finetune.recalibration_images,
    }
    return {**backbone_key(config), **key_settings(config.compile), **counts}


def _distill(at: Context, out: Path, progress: Progress) -> StageResult:
    first = at.training.pretraining
    return finetune.run(first.finetune, first.data, at.file("backbone", SUPERNET), out, progress)


def _join(at: Context, out: Path, progress: Progress) -> StageResult:
    config = at.training
    part, images = config.pretraining.backbone, config.finetune.recalibration_images
    assert part is not None
    return joining.run(part, config.data, images, at.supernet, at.file("distill", SUPERNET), out, progress)


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
    facts=of(BaseResult, facts.base),
    wanted=_has_no_weights,
)
"""The backbone as a classifier, trained on the first data."""

BACKBONE = StageSpec(
    name="backbone",
    body=_backbone,
    needs=("compile",),
    modules=("tasks.training.pretraining.elastic",),
    settings=_backbone_settings,
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
    facts=of(FinetuneResult, facts.trained),
    wanted=BACKBONE.wanted,
)
"""The backbone's SuperNet, trained on the first data."""

JOIN = StageSpec(
    name="join",
    body=_join,
    needs=("compile", "distill"),
    modules=("tasks.training.pretraining.joining",),
    settings=lambda at: {
        "backbone": at.training.pretraining.backbone,
        "recalibration_images": at.training.finetune.recalibration_images,
    },
    inputs=lambda at: (at.data, at.supernet, at.file("distill", SUPERNET)),
    artifacts=lambda at: (SUPERNET,),
    facts=of(JoinResult, facts.joined),
    wanted=BACKBONE.wanted,
)
"""The whole SuperNet with the trained backbone inserted."""
