"""A plugin of mypy: it refuses `function(*values)` if `values` is a tuple of different types.

Such a call does not show which value goes to which parameter, and a type check finds two swapped values late. Names of
parameters, or a record with named fields, show it.
"""

from collections.abc import Callable

from mypy.nodes import ARG_STAR, CallExpr
from mypy.plugin import FunctionSigContext, MethodSigContext, Plugin
from mypy.types import CallableType, Instance, ProperType, TupleType, get_proper_type

OURS = ("adaptive_runtime.", "flows.", "importing.", "profiling_agents.", "solvers.", "tailor_ir.", "tasks.")
"""Beginnings of the full names of the product's functions; libraries may have any signatures."""
REFUSAL = "a tuple of different types is passed by position; name the parameters, or pass one record"


class MixedSplats(Plugin):
    """Checks all calls of the product's functions, methods and classes, wherever they are written."""

    def get_function_signature_hook(self, fullname: str) -> Callable[[FunctionSigContext], CallableType] | None:
        """The check of calls of a function or class; None: not of the product."""
        return _checked if fullname.startswith(OURS) else None

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], CallableType] | None:
        """The check of calls of a method; None: not of the product."""
        return _checked if fullname.startswith(OURS) else None


def _checked(context: FunctionSigContext | MethodSigContext) -> CallableType:
    """The unchanged signature; reports each mixed tuple of the call as an error."""
    call = context.context
    if isinstance(call, CallExpr):
        for value, kind in zip(call.args, call.arg_kinds, strict=True):
            if kind == ARG_STAR and _is_mixed(get_proper_type(context.api.get_expression_type(value))):
                context.api.fail(REFUSAL, value)
    return context.default_signature


def _is_mixed(found: ProperType) -> bool:
    """Whether a type is a tuple with elements of different classes. Parameters of generic classes may differ."""
    if not isinstance(found, TupleType):
        return False
    items = [get_proper_type(item) for item in found.items]
    return len({item.type.fullname if isinstance(item, Instance) else str(item) for item in items}) > 1


def plugin(version: str) -> type[Plugin]:
    """The entry point that mypy calls with its version."""
    return MixedSplats
