"""Weights that adapt: drift is detected, corrected, and the adaptation is undone if it was wrong."""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from adaptive_runtime.weights import GuardEvent, GuardSettings
    from tasks.adaptation.guards import Anchor, GuardedAnswer, GuardedSubnet
    from tasks.adaptation.methods import METHODS, AdaptationMethod, make_method
    from tasks.adaptation.settings import GUARDED_METHOD, AdaptationSettings, MethodName, MethodSettings, StepSettings
    from tasks.evaluation.adapted import (
        AdaptedState,
        AdaptiveSubnet,
        SideFile,
        load_adapted,
        read_side_file,
        save_adapted,
    )
else:
    __getattr__ = public_names(__name__, __file__)
