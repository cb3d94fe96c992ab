"""The stages from a network to its trained SuperNet, with one or two stages of training."""

from flows.pipeline.stages.supernets.making import (
    BASE,
    BATCHES,
    CHECK,
    COMPILE,
    ENUMERATE,
    FINETUNE,
    GIVEN,
    operators_of,
)
from flows.pipeline.stages.supernets.pretraining import BACKBONE, DISTILL, JOIN, PRETRAIN

__all__ = [
    "BACKBONE",
    "BASE",
    "BATCHES",
    "CHECK",
    "COMPILE",
    "DISTILL",
    "ENUMERATE",
    "FINETUNE",
    "GIVEN",
    "JOIN",
    "PRETRAIN",
    "operators_of",
]
