"""The conversion of an ONNX model by onnxslim, and by own rules for what slows onnxruntime and ncnn down after it.

Each step is checked by the model's answers to random inputs, before and after it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import shape_inference

from tailor_ir.conversion.affine import fold_after, fold_before, merge_pairs
from tailor_ir.conversion.kernels import trim_convolutions
from tailor_ir.conversion.outputs import Answer, Examination, difference, examine, random_operator, run
from tailor_ir.errors import TailorError, first_line
from tailor_ir.reading.trace import load_onnx

TOLERANCE = 1e-5
"""Share of the largest output: sums of fp32 in another order, and weights that are multiplied ahead."""
MOST_ROUNDS = 200
OLDEST_OPSET = 7
"""The first with the broadcasting of today; later changes of operators are known to the rules."""
LARGEST_STORED_MIB = 64
"""A larger value that no input reaches is computed when the model runs, as before."""

Rewrite = Callable[[gs.Graph], int]
"""Rewrites a graph in place; how often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """The result of one rule. `difference`: the largest change of an output over the largest output; None: unchecked."""

    name: str
    times: int
    nodes_fewer: int
    difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoneRule:
    """A rule whose result was taken back. `reason`: a difference, or why the model did not run."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A converted model. Nodes are counted without `Constant`, bytes as the file has them.

    difference: the largest one of an output to the original's, relative to the largest output; None: unchecked.
    """

    model: onnx.ModelProto
    rules: tuple[RuleOutcome, ...]
    undone: tuple[UndoneRule, ...]
    nodes_before: int
    nodes_after: int
    bytes_before: int
    bytes_after: int
    difference: float | None


def count_nodes(model: onnx.ModelProto) -> int:
    """Nodes of a model, without `Constant`, which computes nothing."""
    return sum(node.op_type != "Constant" for node in model.graph.node)


RULES: dict[str, Rewrite] = {
    "scales and shifts after": fold_after,
    "scales and shifts before": partial(fold_before, halves=False),
    "constants in a row": merge_pairs,
    "unreached kernels": trim_convolutions,
}
"""Own rules. The first three make onnxruntime faster than onnxslim does, the last one ncnn."""
SLIM = "onnxslim"


def trim_kernels(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the positions of kernels that no input reaches; the same object where there are none."""
    return _rewritten(model, trim_convolutions)[0]


def _rewritten(model: onnx.ModelProto, rewrite: Rewrite) -> tuple[onnx.ModelProto, int]:
    """The model after a rule, and how often the rule found something; the same object where it found nothing."""
    inferred = shape_inference.infer_shapes(model, data_prop=True) if rewrite is trim_convolutions else model
    graph = gs.import_onnx(inferred)
    if not (times := rewrite(graph)):
        return model, 0
    return _framed(model, gs.export_onnx(graph.cleanup(), do_type_check=False)), times


def _slimmed(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """The model after onnxslim. Its own inference of shapes is left out: 1 // 2 is 1 there, as in paddings of TensorFlow."""
    import onnxslim  # needs a second

    skipped = ["subexpression_elimination"] if random_operator(model.graph) else []
    options = {
        "no_shape_infer": True,
        "skip_optimizations": skipped,
        "skip_fusion_patterns": ["FusionGemm"],  # writes two reshapes around each product of more than two dimensions
        "size_threshold": LARGEST_STORED_MIB * 2**20,
    }
    found = model
    for _ in range(MOST_ROUNDS):
        before, given = found, shape_inference.infer_shapes(found, data_prop=True)  # onnxslim changes its argument
        found = _framed(model, onnxslim.slim(given, **options))
        if len(found.graph.node) == len(before.graph.node):
            break
    return found, int(found.graph.node != model.graph.node)


def _framed(model: onnx.ModelProto, found: onnx.ModelProto) -> onnx.ModelProto:
    """A model with other nodes and weights, and shapes inferred anew; its inputs, outputs, versions and texts stay."""
    framed = onnx.ModelProto()
    framed.CopyFrom(model)
    framed.graph.ClearField("value_info")
    for name in ("node", "initializer", "sparse_initializer"):
        framed.graph.ClearField(name)
        getattr(framed.graph, name).extend(getattr(found.graph, name))
    return shape_inference.infer_shapes(framed, data_prop=True)


@dataclass(slots=True)
class _Converter:
    """The model as the rules leave it. Initial values of inputs are left out while it is rewritten: callers may give others."""

    model: onnx.ModelProto
    examination: Examination | None
    defaults: list[onnx.TensorProto] = field(default_factory=list)
    answer: Answer = field(default_factory=list)
    outcomes: dict[str, RuleOutcome] = field(default_factory=dict)
    undone: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = {info.name for info in self.model.graph.input}
        self.defaults = [tensor for tensor in self.model.graph.initializer if tensor.name in given]
        if self.defaults:
            bare = onnx.ModelProto()
            bare.CopyFrom(self.model)
            bare.graph.ClearField("initializer")
            bare.graph.initializer.extend(each for each in self.model.graph.initializer if each.name not in given)
            self.model = bare
        self.answer = self.examination.expected if self.examination else []

    def whole(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """A rewritten model with the initial values of its inputs."""
        if not self.defaults:
            return model
        whole = onnx.ModelProto()
        whole.CopyFrom(model)
        whole.graph.initializer.extend(self.defaults)
        return whole

    def convert(self, rules: Mapping[str, Rewrite]) -> None:
        self.apply(SLIM, _slimmed)
        for _ in range(MOST_ROUNDS):
            if not sum(self.apply(name, partial(_rewritten, rewrite=rule)) for name, rule in rules.items()):
                return
        raise AssertionError(f"rules undo each other: {self.outcomes}")

    def apply(self, name: str, step: Callable[[onnx.ModelProto], tuple[onnx.ModelProto, int]]) -> bool:
        """Take a step, unless it fails or changes outputs: then it is undone, and never tried again. Whether it was taken."""
        if name in self.undone:
            return False
        own: float | None = None
        try:
            found, times = step(self.model)
            if times and self.examination is not None:
                answer = run(self.whole(found), self.examination.inputs)
                own, total = difference(self.answer, answer), difference(self.examination.expected, answer)
                if max(own, total) > TOLERANCE:
                    self.undone[name] = (
                        f"outputs changed by {own:.2g}, allowed {TOLERANCE:.2g}; by all rules {total:.2g}"
                    )
                    return False
                self.answer = answer
        except Exception as error:  # noqa: BLE001 - onnxslim and the runtime raise many types; the step is undone and named
            self.undone[name] = first_line(error)[:200]
            return False
        if not times:
            return False
        fewer = count_nodes(self.model) - count_nodes(found)
        last = self.outcomes.get(name)
        self.outcomes[name] = RuleOutcome(
            name=name,
            times=times + (last.times if last else 0),
            nodes_fewer=fewer + (last.nodes_fewer if last else 0),
            difference=max(own, (last and last.difference) or 0.0) if own is not None else None,
        )
        self.model = found
        return True


def convert(
    network: onnx.ModelProto | Path,
    *,
    check: bool = True,
    seed: int = 0,
    fewest: bool = False,
    inputs: Mapping[str, np.ndarray] | None = None,
) -> Conversion:
    """The same network with fewer nodes; names, types and order of its inputs and outputs stay.

    fewest: halves of Gelus go into convolutions, too: fewer nodes, which runtimes run slower.

    With `check` the outputs on the first 64 of `inputs` (by name; None: random ones) after each rule are compared with those
    before it and with the original's by onnxruntime. A rule that changes them by more than 1e-5 is undone, and named in the
    result. TailorError: no ONNX model, one that onnxruntime cannot run, or inputs that do not fit it.
    """
    model = load_onnx(network) if isinstance(network, Path) else network
    opset = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1)
    if opset < OLDEST_OPSET:
        raise TailorError(f"conversion: the file has opset {opset}; allowed: {OLDEST_OPSET} or later; export it again")
    converter = _Converter(model, examine(model, seed, inputs) if check else None)
    converter.convert(RULES | {"halves of Gelu": partial(fold_before, halves=True)} if fewest else RULES)
    converted = converter.whole(converter.model)
    try:
        onnx.checker.check_model(converted)
    except onnx.checker.ValidationError as error:
        raise TailorError(f"conversion: the result is no valid ONNX ({str(error).splitlines()[0]})") from error
    return Conversion(
        model=converted,
        rules=tuple(converter.outcomes.values()),
        undone=tuple(UndoneRule(name=name, reason=reason) for name, reason in converter.undone.items()),
        nodes_before=count_nodes(model),
        nodes_after=count_nodes(converted),
        bytes_before=model.ByteSize(),
        bytes_after=converted.ByteSize(),
        difference=difference(converter.examination.expected, converter.answer) if converter.examination else None,
    )
