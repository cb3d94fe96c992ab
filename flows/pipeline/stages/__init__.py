"""The stages of a run, in the order of work: one table, and one walk through it as Prefect tasks.

A new stage is one row here. The body of a stage is one call into `tasks`.
"""

from flows.config import FlowConfig, RetargetConfig
from flows.pipeline.stages.comparison import BASELINES, COMPARED, SIBLING
from flows.pipeline.stages.levels import EXITS, FRONT
from flows.pipeline.stages.predictors import INT8, LATENCY, PROFILE, RESOURCES, RUNTIME_OPTIONS, SENSITIVITIES
from flows.pipeline.stages.spec import SUPERNET, Outputs, StageSpec
from flows.pipeline.stages.streams import STREAM, unless_streams_need_none
from flows.pipeline.stages.supernets import (
    BACKBONE,
    BASE,
    BATCHES,
    CHECK,
    COMPILE,
    DISTILL,
    ENUMERATE,
    FINETUNE,
    GIVEN,
    JOIN,
    PRETRAIN,
)
from flows.pipeline.stages.winners import EXPORT, REFINE, SEARCH

SEARCHED = (ENUMERATE, BATCHES, RUNTIME_OPTIONS, PROFILE, SENSITIVITIES, INT8, LATENCY, RESOURCES, SEARCH, REFINE)
"""The stages that measure, predict and search for every device."""

FINAL = (EXITS, FRONT, EXPORT, SIBLING, BASELINES, COMPARED)
"""The stages that build on winners."""

RETARGETING = (GIVEN, CHECK, *SEARCHED, *FINAL)
"""From a SuperNet to checked files for every device."""

PIPELINE = (
    CHECK,
    PRETRAIN,
    BASE,
    GIVEN,
    COMPILE,
    BACKBONE,
    DISTILL,
    JOIN,
    FINETUNE,
    *map(unless_streams_need_none, SEARCHED),
    STREAM,
    *FINAL,
)
"""From a network to checked files for every device."""


def table_of(config: FlowConfig) -> tuple[StageSpec, ...]:
    """The stages of a run with this config."""
    return RETARGETING if isinstance(config, RetargetConfig) else PIPELINE
