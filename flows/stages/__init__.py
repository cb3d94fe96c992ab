"""The stages as Prefect tasks: one per stage and per device; a body is one call into `tasks`."""

from flows.stages.comparison import baselines, compared, sibling
from flows.stages.predictors import latency, profile, resources, sensitivities
from flows.stages.supernets import SUPERNET, base, compile, enumerate, finetune
from flows.stages.winners import export, refine, report, search

__all__ = [
    "SUPERNET",
    "base",
    "baselines",
    "compared",
    "compile",
    "enumerate",
    "export",
    "finetune",
    "latency",
    "profile",
    "refine",
    "report",
    "resources",
    "search",
    "sensitivities",
    "sibling",
]
