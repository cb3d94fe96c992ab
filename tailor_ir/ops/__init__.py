"""Operators of the IR: one record per operator, one file per family."""

from tailor_ir.ops import (
    conv,
    deformable,
    elementwise,
    kernels,
    layout,
    linear,
    norm,
    pooling,
    recurrent,
    resample,
    select,
    spectra,
)
from tailor_ir.ops.registry import Lowered, NodeShapes, Operator, Propagation, find

OPERATORS: dict[str, Operator] = {}
for family in (
    conv,
    deformable,
    elementwise,
    kernels,
    layout,
    linear,
    norm,
    pooling,
    recurrent,
    resample,
    select,
    spectra,
):
    for record in family.OPERATORS:
        for name in record.names:
            assert name not in OPERATORS, f"two records for operator {name}"
            OPERATORS[name] = record
