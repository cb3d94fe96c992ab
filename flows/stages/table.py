"""The stages of a run, in the order that they are worked. A new stage is one row here."""

from flows.stages.comparison import BASELINES, COMPARED, SIBLING
from flows.stages.joint import CODINGS, JOINT
from flows.stages.policies import POLICY
from flows.stages.predictors import ENGINE, INT8, LATENCY, PROFILE, RESOURCES, SENSITIVITIES
from flows.stages.supernets import BASE, BATCHES, CHECK, COMPILE, ENUMERATE, FINETUNE, GIVEN
from flows.stages.winners import EXPORT, REFINE, SEARCH

FOR_DEVICES = (
    ENUMERATE,
    BATCHES,
    ENGINE,
    PROFILE,
    SENSITIVITIES,
    INT8,
    LATENCY,
    RESOURCES,
    CODINGS,
    JOINT,
    SEARCH,
    REFINE,
    POLICY,
    EXPORT,
    SIBLING,
    BASELINES,
    COMPARED,
)

ADAPTATION = (GIVEN, CHECK, *FOR_DEVICES)
"""From a SuperNet to checked files for every device."""

PIPELINE = (CHECK, BASE, GIVEN, COMPILE, FINETUNE, *FOR_DEVICES)
"""From a network to checked files for every device."""
