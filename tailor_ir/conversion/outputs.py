"""Answers of ONNX models in onnxruntime: models are run as they are written, or with constants computed first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from tailor_ir.errors import TailorError, first_line

QUIET = 4  # of onnxruntime's levels: nothing but what ends the process
WRONG_REWRITES = ("Pad_Fusion", "TransposeOptimizer")
"""Optimisers of onnxruntime that change answers: padding with zeros becomes padding of a MaxPool, with minus infinity; a
Transpose moves behind a linear Resize, which onnxruntime then refuses."""
OLD_IR_VERSION = 10
"""onnxruntime takes files of this version of the format; libraries write later ones before it knows them."""
RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
"""Operators that give another result each time."""
FREE_BATCH = 2
FREE_SIZES = (2, 64, 224, 1)
"""Sizes that are tried for dimensions without one."""

Answer = list[np.ndarray]


def session_of(model: onnx.ModelProto, *, folded: bool = False) -> onnxruntime.InferenceSession:
    """A model ready to run, once or often. Raises what onnxruntime raises, which is of many types, where it cannot run it.

    folded: what depends on constants alone is computed first, and nothing is rewritten wrongly. Else BatchNorms in training
    form, which standardise weights, write into stored tensors whenever they run, and so change the next answer.
    """
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = levels.ORT_ENABLE_BASIC if folded else levels.ORT_DISABLE_ALL
    options.log_severity_level = QUIET
    written = model.ir_version
    model.ir_version = min(written, OLD_IR_VERSION)
    content = model.SerializeToString()
    model.ir_version = written
    return onnxruntime.InferenceSession(
        content, options, providers=["CPUExecutionProvider"], disabled_optimizers=WRONG_REWRITES
    )


def run(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> Answer:
    """The outputs of a model. Raises as `session_of`."""
    return session_of(model).run(None, dict(inputs))


@dataclass(frozen=True, slots=True)
class Examination:
    """Inputs of a model, and the outputs that it has to give for them."""

    inputs: Mapping[str, np.ndarray]
    expected: Answer

    def difference(self, model: onnx.ModelProto) -> float:
        """How far the outputs of a model are from the expected ones, when onnxruntime runs it as it is stored."""
        return difference(self.expected, run(model, self.inputs))


def random_operator(graph: onnx.GraphProto) -> str | None:
    """The first operator whose results differ in each run, also in branches and loops; None without one."""
    for node in graph.node:
        if node.op_type in RANDOM:
            return node.op_type
        parts = [part for each in node.attribute for part in ([each.g] if each.HasField("g") else each.graphs)]
        if found := next(filter(None, map(random_operator, parts)), None):
            return found
    return None


def examine(model: onnx.ModelProto, seed: int, given: Mapping[str, np.ndarray] | None = None) -> Examination:
    """Inputs that the model takes, and its outputs. given: inputs by name ("" for the only one); None: random ones.

    TailorError for a model that onnxruntime cannot run, and for inputs that do not fit it.
    """
    reason = ""
    if found := random_operator(model.graph):
        raise TailorError(
            f"conversion: the model has {found}, whose results differ in each run; allowed: models whose outputs can be "
            "compared; check=false converts without comparing outputs"
        )
    if given is not None:
        inputs = _taken(model, given)
        try:
            return Examination(inputs, run(model, inputs))
        except Exception as error:
            raise TailorError(
                f"conversion: onnxruntime cannot run the model on the inputs ({first_line(error)[:200]})"
            ) from error
    for free in FREE_SIZES:
        inputs = dict(_inputs(model, free, np.random.default_rng(seed)))
        try:
            return Examination(inputs, run(model, inputs))
        except Exception as error:  # noqa: BLE001 - the runtime raises many types; the error line has the first reason
            reason = reason or first_line(error)
        if all(size.dim_value > 0 for info in model.graph.input for size in info.type.tensor_type.shape.dim):
            break
    raise TailorError(
        f"conversion: onnxruntime cannot run the model as it is ({reason[:200]}); allowed: models that it runs with random "
        "inputs; check=false converts without comparing outputs"
    )


MOST_TAKEN = 64
"""Largest number of given samples that are compared, if the file leaves their number open."""


def _taken(model: onnx.ModelProto, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The first samples of the model's inputs, in its types. TailorError: an array is missing, or has another shape or type."""
    stored = {tensor.name for tensor in model.graph.initializer}
    wanted = [info for info in model.graph.input if info.name not in stored]
    found = {}
    for info in wanted:
        array = given.get(info.name, given.get("") if len(wanted) == 1 else None)
        sizes = [size.dim_value if size.dim_value > 0 else None for size in info.type.tensor_type.shape.dim]
        if array is None:
            names = ", ".join(name or "one without a name" for name in given)
            raise TailorError(
                f"conversion: inputs have no '{info.name}' (arrays: {names}); allowed: an array for each input of the file"
            )
        taken = array[: sizes[0] or MOST_TAKEN] if sizes and array.ndim else array
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
        fits = len(sizes) == taken.ndim and all(
            size in (None, own) for size, own in zip(sizes, taken.shape, strict=True)
        )
        if not fits or not np.can_cast(taken.dtype, kind, "same_kind"):
            shape = " x ".join("any" if size is None else str(size) for size in sizes)
            raise TailorError(
                f"conversion: input '{info.name}' is {array.dtype} {array.shape}; allowed: {kind} of {shape}"
            )
        found[info.name] = taken.astype(kind)
    return found


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
