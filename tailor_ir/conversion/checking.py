"""What a model answers to random inputs, before and after a rule."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from tailor_ir.conversion.draft import OnnxDraft
from tailor_ir.conversion.rules.duplicates import RANDOM
from tailor_ir.conversion.running import run
from tailor_ir.errors import TailorError

Answer = list[np.ndarray]

FREE_BATCH = 2
FREE_SIZES = (2, 64, 224, 1)
"""Sizes that are tried for dimensions without one."""


@dataclass(frozen=True, slots=True)
class Examination:
    """Inputs of a model, and the outputs that it has to give for them."""

    inputs: Mapping[str, np.ndarray]
    expected: Answer

    def answer(self, draft: OnnxDraft) -> Answer:
        """The outputs of another model."""
        return _answer(draft, self.inputs)

    def difference(self, model: onnx.ModelProto) -> float:
        """How far the outputs of a model are from the expected ones, when onnxruntime runs it as it is stored."""
        return difference(self.expected, run(model, self.inputs))


def _answer(draft: OnnxDraft, inputs: Mapping[str, np.ndarray]) -> Answer:
    model, constants = draft.to_run()
    return run(model, {**inputs, **constants}, draft.outputs)


def examine(model: onnx.ModelProto, seed: int) -> Examination:
    """Random inputs that the model takes, and its outputs. TailorError for a model that onnxruntime cannot run."""
    draft, reason = OnnxDraft(model), ""
    if found := next((node.op for node in draft.nodes if node.standard and node.op in RANDOM), None):
        raise TailorError(
            f"conversion: the model has {found}, whose results differ in each run; allowed: models whose outputs can be "
            "compared; check=false converts without comparing outputs"
        )
    for free in FREE_SIZES:
        inputs = dict(_inputs(model, free, np.random.default_rng(seed)))
        try:
            return Examination(inputs, _answer(draft, inputs))
        except Exception as error:  # noqa: BLE001 - the runtime raises many types; the last one is told
            reason = reason or (str(error).strip() or type(error).__name__).splitlines()[0]
        if all(_is_fixed(info) for info in model.graph.input):
            break
    raise TailorError(
        f"conversion: onnxruntime cannot run the model as it is ({reason[:200]}); allowed: models that it runs with random "
        "inputs; check=false converts without comparing outputs"
    )


def _is_fixed(info: onnx.ValueInfoProto) -> bool:
    return all(size.dim_value > 0 for size in info.type.tensor_type.shape.dim)


def _inputs(model: onnx.ModelProto, free: int, rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Normally distributed numbers, and zeros for whole numbers, which are good as indices of anything."""
    stored = {tensor.name for tensor in model.graph.initializer}
    named: dict[str, int] = {}
    for info in model.graph.input:
        if info.name in stored:
            continue
        shape = []
        for axis, size in enumerate(info.type.tensor_type.shape.dim):
            unknown = FREE_BATCH if axis == 0 else free
            known = max(size.dim_value, 0)  # older exporters write open sizes as -1
            shape.append(known or (named.setdefault(size.dim_param, unknown) if size.dim_param else unknown))
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
        yield info.name, (rng.standard_normal(shape).astype(kind) if kind.kind == "f" else np.zeros(shape, kind))


def difference(expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    """The largest difference of two answers, each output's relative to its largest number; infinite where shapes differ."""
    if len(expected) != len(found):
        return float("inf")
    return max((_difference_of(one, other) for one, other in zip(expected, found, strict=True)), default=0.0)


def _difference_of(expected: np.ndarray, found: np.ndarray) -> float:
    if not isinstance(expected, np.ndarray) or not isinstance(found, np.ndarray):
        return 0.0 if expected == found else float("inf")
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return float("inf")
    if np.array_equal(expected, found):
        return 0.0
    if expected.dtype.kind != "f":
        return float("inf")
    one, other = expected.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(other)) or not np.array_equal(
        one[~finite], other[~finite], equal_nan=True
    ):
        return float("inf")
    if not finite.any():
        return 0.0
    return float(np.abs(one - other)[finite].max() / (np.abs(one[finite]).max() or 1.0))
