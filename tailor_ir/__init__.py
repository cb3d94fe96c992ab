"""Any feed-forward network as a weight-sharing SuperNet, found by dependency of axes."""

from tailor_ir.errors import ConfigError, ImportFailed, SpaceError, TailorError
from tailor_ir.features import OperatorFeature, operator_model
from tailor_ir.operators import OperatorTerm
from tailor_ir.space import Space, Variable
from tailor_ir.supernet import SuperNet, compile, load

__all__ = [
    "ConfigError",
    "ImportFailed",
    "OperatorFeature",
    "OperatorTerm",
    "Space",
    "SpaceError",
    "SuperNet",
    "TailorError",
    "Variable",
    "compile",
    "load",
    "operator_model",
]
