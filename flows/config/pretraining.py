"""The first stage of two: a backbone that is trained on data of its own before it is joined to a head."""

from typing import Any

from pydantic import Field

from flows.config.space import SpaceSelectors
from tailor_ir import asks_for_exits
from tasks.data import DataSettings
from tasks.data.problems import CLASSIFICATION
from tasks.evaluation.models import ModelSettings
from tasks.training.pretraining.settings import Settings


class PretrainingConfig(Settings):
    """The settings of the first stage, with the space of the backbone by itself."""

    space: SpaceSelectors = Field(
        default={},
        description="of the backbone's SuperNet, where the selectors of the whole network do not suit it; empty: these",
    )

    def space_of(self, whole: dict[str, Any]) -> dict[str, Any]:
        """The space of the backbone's SuperNet. whole: that of the whole network."""
        return dict(self.space or whole)


def check_pretraining(first: PretrainingConfig, model: ModelSettings, data: DataSettings) -> None:
    """ValueError in one line: a network or data that have no two stages."""
    if first.backbone is None:
        return
    where = f"pretraining.backbone={first.backbone}"
    if model.kind != "callable":
        raise ValueError(
            f"{where} with model.kind={model.kind}, which has no parts by name; allowed: model=callable, or null"
        )
    if model.backbone is not None:
        raise ValueError(
            f"{where} with model.backbone={model.backbone}, which is a backbone alone; allowed: model.backbone=null"
        )
    if data.problem == CLASSIFICATION.name:
        raise ValueError(
            f"{where} with data.kind={data.kind}: a network that classifies whole images has no head for a second stage; "
            "allowed: data with boxes or masks, or pretraining.backbone=null"
        )
    given = first.data
    if given.problem != CLASSIFICATION.name or given.sample != "image":
        raise ValueError(
            f"pretraining.data.kind={given.kind}: {given.problem} of {given.sample}s; allowed: images with a class each, as "
            "glyphs or imagefolder"
        )
    if given.channels != data.channels:
        raise ValueError(
            f"pretraining.data.channels={given.channels} with data.channels={data.channels}: one backbone takes both; "
            "allowed: as many channels"
        )
    if asks_for_exits(first.space):
        raise ValueError("pretraining.space.exits: no exit of a backbone goes into the whole network; allowed: none")
