"""The conversion of an ONNX model: rules, stage by stage, until none has anything to do, each checked by outputs.

The two stages are from CrowdHMTware, section III-B2: operators are fused and duplicates removed; then values that no
input reaches become constant. A rule is checked by the model's answers to random inputs, before and after it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
from onnx import helper

from tailor_ir.conversion.draft import ROUNDING, ConversionRule, ConversionStage, OnnxDraft
from tailor_ir.conversion.rules import FEWEST_NODES, RULES
from tailor_ir.conversion.rules.constants import RANDOM, run
from tailor_ir.errors import TailorError
from tailor_ir.reading.trace import load_onnx

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


MOST_ROUNDS = 200
SEED = 0
OLDEST_OPSET = 7
"""The first with the broadcasting of today; later changes of operators are known to the rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """What one rule did. `difference`: the largest change of an output, relative to the largest output; None: unchecked."""

    name: str
    stage: ConversionStage
    times: int
    nodes_fewer: int
    difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoneRule:
    """A rule whose result was not as it states, and was taken back. `reason`: a difference, or why the model did not run."""

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


@dataclass(slots=True)
class _Record:
    times: Counter[str] = field(default_factory=Counter)
    fewer: Counter[str] = field(default_factory=Counter)
    differences: dict[str, float] = field(default_factory=dict)
    undone: list[UndoneRule] = field(default_factory=list)


class _Converter:
    """The model as the rules leave it, and the last state in which outputs were good."""

    def __init__(self, model: onnx.ModelProto, examination: Examination | None) -> None:
        self.draft, self.examination = OnnxDraft(model), examination
        self.good = self.draft.copy()
        self.answer: Answer = examination.expected if examination else []
        self.record = _Record()

    def convert(self, rules: Sequence[ConversionRule]) -> None:
        for _ in range(MOST_ROUNDS):
            changed = [
                self._settle([rule for rule in rules if rule.stage == stage]) for stage in get_args(ConversionStage)
            ]
            if not any(changed):
                return
        raise AssertionError(f"rules undo each other: {dict(self.record.times)}")

    def _settle(self, rules: Sequence[ConversionRule]) -> bool:
        """Apply rules until none changes anything; whether any did."""
        for round_ in range(MOST_ROUNDS):
            self.draft.infer_shapes()
            if not sum([self._apply(rule) for rule in rules]):
                return round_ > 0
        raise AssertionError(f"rules undo each other: {dict(self.record.times)}")

    def _apply(self, rule: ConversionRule) -> int:
        if any(rule.name == each.name for each in self.record.undone):
            return 0
        before, times = len(self.draft.nodes), 0
        for _ in range(MOST_ROUNDS):
            if not (more := rule.apply(self.draft)):
                break
            times += more
        if times and self._holds(rule):
            self.record.times[rule.name] += times
            self.record.fewer[rule.name] += before - len(self.draft.nodes)
            return times
        return 0

    def _holds(self, rule: ConversionRule) -> bool:
        """Whether outputs are as the rule states; otherwise what it did is undone."""
        if self.examination is None:
            return True
        try:
            answer = self.examination.answer(self.draft)
        except Exception as error:  # noqa: BLE001 - the runtime raises many types; the rule is undone and named
            return self._undo(rule, (str(error).strip() or type(error).__name__).splitlines()[0][:200])
        own, total = difference(self.answer, answer), difference(self.examination.expected, answer)
        if own > rule.tolerance or total > ROUNDING:
            return self._undo(
                rule, f"outputs changed by {own:.2g}, allowed {rule.tolerance:.2g}; by all rules {total:.2g}"
            )
        self.good, self.answer = self.draft.copy(), answer
        self.record.differences[rule.name] = max(own, self.record.differences.get(rule.name, 0.0))
        return True

    def _undo(self, rule: ConversionRule, reason: str) -> bool:
        self.draft = self.good.copy()
        self.draft.infer_shapes()
        self.record.undone.append(UndoneRule(name=rule.name, reason=reason))
        return False


def convert(
    network: onnx.ModelProto | Path,
    *,
    check: bool = True,
    seed: int = SEED,
    fewest: bool = False,
    rules: Sequence[ConversionRule] | None = None,
) -> Conversion:
    """The same network with fewer nodes; names, types and order of its inputs and outputs stay.

    rules: `RULES`, with `fewest` `FEWEST_NODES`, unless given.

    With `check` each rule's outputs on random inputs are compared with those before it and with the original's by
    onnxruntime. A rule that changes them by more than it states is undone, and named in the result. TailorError: no ONNX
    model, or one that onnxruntime cannot run.
    """
    model = load_onnx(network) if isinstance(network, Path) else network
    if (opset := OnnxDraft(model).opset) < OLDEST_OPSET:
        raise TailorError(f"conversion: the file has opset {opset}; allowed: {OLDEST_OPSET} or later; export it again")
    examination = examine(model, seed) if check else None
    rules = (FEWEST_NODES if fewest else RULES) if rules is None else rules
    converter = _Converter(model, examination)
    converter.convert(rules)
    converted = converter.draft.to_model()
    try:
        onnx.checker.check_model(converted)
    except onnx.checker.ValidationError as error:
        raise TailorError(f"conversion: the result is no valid ONNX ({str(error).splitlines()[0]})") from error
    record = converter.record
    return Conversion(
        model=converted,
        rules=tuple(
            RuleOutcome(
                name=rule.name,
                stage=rule.stage,
                times=record.times[rule.name],
                nodes_fewer=record.fewer[rule.name],
                difference=record.differences.get(rule.name) if check else None,
            )
            for rule in rules
            if record.times[rule.name]
        ),
        undone=tuple(record.undone),
        nodes_before=count_nodes(model),
        nodes_after=count_nodes(converted),
        bytes_before=model.ByteSize(),
        bytes_after=converted.ByteSize(),
        difference=examination.difference(converted) if examination else None,
    )
