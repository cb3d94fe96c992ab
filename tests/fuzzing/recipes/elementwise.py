"""Operators that work element by element, broadcasts, comparisons, reductions, softmax."""

from typing import Any

import numpy as np

from tests.fuzzing.drafts import Draft, Unfit, Value
from tests.fuzzing.recipes.record import Make, Recipe

PLAIN = (
    "Abs", "Atan", "Ceil", "Cos", "Erf", "Floor", "HardSwish", "Identity", "Mish", "Neg", "Relu", "Round", "Sigmoid", "Sign",
    "Sin", "Softplus", "Softsign", "Tanh",
)  # fmt: skip
JUMPS = ("Ceil", "Floor", "Round", "Sign")
BESIDE = 0.0137
"""Added before a jump: whole numbers, and the ends of saturated functions, lie beside it, so that rounding decides nothing."""
WITH_SETTINGS: dict[str, dict[str, tuple[float, ...]]] = {
    "Celu": {"alpha": (1.0, 0.7)},
    "Elu": {"alpha": (1.0, 0.5)},
    "HardSigmoid": {"alpha": (0.2, 1 / 6), "beta": (0.5, 0.4)},
    "LeakyRelu": {"alpha": (0.01, 0.2)},
    "Selu": {"alpha": (1.67, 1.2), "gamma": (1.05, 0.9)},
    "Shrink": {"bias": (0.0, 0.1), "lambd": (0.5, 0.2)},
    "ThresholdedRelu": {"alpha": (1.0, 0.3)},
}
BEHIND: dict[str, tuple[str, ...]] = {
    "Acos": ("Tanh",), "Asin": ("Tanh",), "Cosh": ("Tanh",), "Exp": ("Tanh",), "Sinh": ("Tanh",), "Tan": ("Tanh",),
    "Log": ("Softplus",), "Sqrt": ("Abs",), "Reciprocal": ("Softplus",),
}  # fmt: skip
"""Operators of a part of the numbers, and what leads there."""
SINCE = {"HardSwish": 14, "Mish": 18}
JOINS = ("Add", "Mul", "Sub", "Div", "Max", "Min", "Mean", "Sum", "Pow", "Mod")
COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
LOGIC = ("And", "Or", "Xor", "Not")
REDUCTIONS = {
    "ReduceMean": 18, "ReduceMax": 18, "ReduceMin": 18, "ReduceSum": 13, "ReduceProd": 18, "ReduceL1": 18, "ReduceL2": 18,
    "ReduceSumSquare": 18, "ReduceLogSum": 18, "ReduceLogSumExp": 18,
}  # fmt: skip
"""The opset from which axes are an input."""


def _anything(draft: Draft) -> Value:
    """Also values whose first axis is not the batch."""
    return draft.pick(lambda v: v.kind == "float32")


def _plain(op: str) -> Make:
    def make(draft: Draft) -> Value:
        value = _anything(draft)
        if op in JUMPS:
            value = draft.one("Add", f"{value.name} {draft.constant(BESIDE)}")
        return draft.one(op, value.name)

    return make


def _with_settings(op: str) -> Make:
    def make(draft: Draft) -> Value:
        chosen = {name: draft.choose(values) for name, values in WITH_SETTINGS[op].items() if draft.chance(0.7)}
        return draft.one(op, _anything(draft).name, **chosen)

    return make


def _behind(op: str) -> Make:
    def make(draft: Draft) -> Value:
        value = _anything(draft)
        for before in BEHIND[op]:
            value = draft.one(before, value.name)
        if op in ("Tan", "Acos", "Asin"):  # steep at the ends
            value = draft.one("Mul", f"{value.name} {draft.constant(0.5 if op == 'Tan' else 0.9)}")
        if op in ("Log", "Reciprocal"):
            value = draft.one("Add", f"{value.name} {draft.constant(0.5)}")
        return draft.one(op, value.name)

    return make


def _softmax(op: str) -> Make:
    def make(draft: Draft) -> Value:
        value = draft.pick(lambda v: v.kind == "float32" and v.plain and v.rank > 1)
        axis = int(draft.rng.integers(1, value.rank))
        return draft.one(op, value.name, axis=axis - value.rank if draft.chance(0.5) else axis)

    return make


def _spread(draft: Draft, value: Value) -> Value | str:
    """Something that broadcasts to a value: another value, a weight, or a number."""
    way = int(draft.rng.integers(6))
    shape = value.shape
    if way <= 1:  # of the same shape, or one that spreads
        found = [
            v for v in draft.values
            if v.kind == "float32" and v is not value and v.rank <= value.rank and _broadcasts(v, value)
        ]  # fmt: skip
        if found:
            return draft.choose(found)
    if way == 2:
        return draft.weight(letter=draft.choose("gb"))  # one number, of shape ()
    if way == 3:
        return draft.constant(float(draft.choose((0.5, 2.0, -1.5))))
    kept = [size if size == other else 1 for size, other in zip(shape, value.other, strict=True)]
    if way == 4 and len(kept) > 1:  # one number for each channel
        axis = draft.choose((1, len(kept) - 1))
        kept = [size if position == axis else 1 for position, size in enumerate(kept)]
    while kept and kept[0] == 1 and draft.chance(0.7):
        kept = kept[1:]
    return (
        draft.weight(*kept, letter=draft.choose("gb")) if np.prod(kept or [1]) <= 2048 else draft.weight(1, letter="g")
    )


def _broadcasts(small: Value, large: Value) -> bool:
    shapes = ((small.shape, large.shape), (small.other, large.other))
    return all(all(a in (1, b) for a, b in zip(reversed(own), reversed(whole), strict=False)) for own, whole in shapes)


def _join(op: str) -> Make:
    def make(draft: Draft) -> Value:
        value = draft.any()
        other = _spread(draft, value)
        name = other if isinstance(other, str) else other.name
        if op == "Pow":
            name = draft.constant(draft.choose((2.0, 3.0)))
        if op in ("Div", "Mod") and not name.startswith("g"):
            name = draft.weight(letter="g") if draft.chance(0.5) else draft.constant(draft.choose((1.5, 2.5)))
        names = [value.name, name]
        if op in ("Add", "Mul", "Sub", "Max", "Min", "Sum", "Mean") and draft.chance(0.3):
            names.reverse()
        if op in ("Max", "Min", "Sum", "Mean") and draft.chance(0.3):
            names.append(value.name)
        return draft.one(op, " ".join(names), **({"fmod": 1} if op == "Mod" else {}))

    return make


def _compared(draft: Draft, op: str) -> Value:
    """A mask over a value. Another value is moved away from it: Tanh(x) and x are equal or not as an x near zero is rounded."""
    value = draft.any()
    if draft.chance(0.5):
        beside = _spread(draft, value)
        name = beside if isinstance(beside, str) else beside.name
        other = draft.one("Add", f"{name} {draft.constant(0.37)}").name
    else:
        other = draft.constant(draft.choose((0.0, 0.3)))
    return draft.one(op, f"{value.name} {other}")


def _where(draft: Draft, mask: Value) -> Value:
    """A choice by a mask, between values that fit."""
    fitting = [v for v in draft.values if v.kind == "float32" and v.shape == mask.shape and v.other == mask.other]
    names = [draft.choose(fitting).name if fitting else draft.constant(0.7), draft.constant(draft.choose((0.0, -1.0)))]
    if draft.chance(0.5):
        names.reverse()
    return draft.one("Where", f"{mask.name} {' '.join(names)}")


def _comparison(op: str) -> Make:
    def make(draft: Draft) -> Value:
        mask = _compared(draft, op)
        if draft.chance(0.5):
            return draft.one("Cast", mask.name, to=1)
        return _where(draft, mask)

    return make


def _logic(op: str) -> Make:
    def make(draft: Draft) -> Value:
        mask = _compared(draft, "Greater")
        if op == "Not":
            return _where(draft, draft.one("Not", mask.name))
        other = draft.one("Less", f"{draft.steps[-1].read[0]} {draft.constant(0.8)}")
        return _where(draft, draft.one(op, f"{mask.name} {other.name}"))

    return make


def _not_a_number(draft: Draft) -> Value:
    mask = draft.one("IsNaN", draft.any().name)
    return _where(draft, mask)


def _mean_over(op: str) -> Make:
    def make(draft: Draft) -> Value:
        value = draft.pick(lambda v: v.kind == "float32" and v.plain and v.rank > 1)
        if op == "ReduceProd":
            value = draft.one("Tanh", value.name)
        if op == "ReduceLogSum":
            value = draft.one("Softplus", value.name)
        count = int(draft.rng.integers(1, value.rank))
        axes = sorted(int(a) for a in draft.rng.permutation(np.arange(1, value.rank))[:count])
        if draft.chance(0.3):
            axes = [axis - value.rank for axis in axes]
        kept: dict[str, Any] = {} if draft.chance(0.3) else {"keepdims": int(draft.chance(0.5))}
        return draft.by_axes(op, value.name, axes, REDUCTIONS[op], **kept)

    return make


def _clip(draft: Draft) -> Value:
    limits = [draft.constant(-0.6) if draft.chance(0.8) else "_", draft.constant(0.9) if draft.chance(0.8) else "_"]
    return draft.one("Clip", f"{draft.any().name} {' '.join(limits)}".removesuffix(" _").removesuffix(" _"))


def _prelu(draft: Draft) -> Value:
    value = draft.pick(lambda v: v.kind == "float32" and v.plain and v.rank > 1)
    slope = (value.shape[1], *(1,) * (value.rank - 2)) if draft.chance(0.8) else (1,)
    return draft.one("PRelu", f"{value.name} {draft.weight(*slope, letter='b')}")


def _cast(draft: Draft) -> Value:
    """Through whole numbers and back."""
    value = draft.one("Mul", f"{draft.any().name} {draft.constant(3.0)}")
    whole = draft.one("Cast", value.name, to=draft.choose((6, 7)))
    if draft.chance(0.3):
        whole = draft.one("Mod", f"{whole.name} {draft.constant(3)}") if whole.kind == "int64" else whole
    if draft.chance(0.3) and whole.kind == "int64":
        whole = draft.one("Div", f"{whole.name} {draft.constant(2)}")
    return draft.one("Cast", whole.name, to=1)


def _triangle(draft: Draft) -> Value:
    value = draft.pick(lambda v: v.kind == "float32" and v.plain and v.rank > 2)
    more = f" {draft.constant(int(draft.choose((-1, 0, 1))))}" if draft.chance(0.5) else ""
    return draft.one("Trilu", f"{value.name}{more}", upper=int(draft.chance(0.5)))


def _running_sum(draft: Draft) -> Value:
    value = draft.pick(lambda v: v.kind == "float32" and v.plain and v.rank > 1)
    axis = draft.constant(int(draft.rng.integers(1, value.rank)))
    found = {name: 1 for name in ("exclusive", "reverse") if draft.chance(0.3)}
    return draft.one("CumSum", f"{value.name} {axis}", **found)


def _gelu(draft: Draft) -> Value:
    """One node, or as exporters wrote it before there was one."""
    value = draft.any()
    if draft.opset >= 20 and draft.chance(0.6):
        return draft.one("Gelu", value.name, **({"approximate": "tanh"} if draft.chance(0.5) else {}))
    inner = draft.one("Erf", draft.one("Div", f"{value.name} {draft.constant(2**0.5)}").name)
    gate = draft.one("Add", f"{inner.name} {draft.constant(1.0)}")
    half = draft.one("Mul", f"{gate.name} {draft.constant(0.5)}")
    return draft.one("Mul", f"{value.name} {half.name}")


def _silu(draft: Draft) -> Value:
    value = draft.any()
    return draft.one("Mul", f"{value.name} {draft.one('Sigmoid', value.name).name}")


def _mish(draft: Draft) -> Value:
    value = draft.any()
    gate = draft.one("Tanh", draft.one("Softplus", value.name).name)
    return draft.one("Mul", f"{value.name} {gate.name}")


def _excited(draft: Draft) -> Value:
    """Squeeze and excitation, or a gate of one number for each sample."""
    value = draft.image()
    single = draft.chance(0.4)
    squeezed = draft.by_axes("ReduceMean", value.name, [1, 2, 3] if single else [2, 3], 18, keepdims=0)
    if single:  # (N,)
        if value.rank != 4:
            raise Unfit
        gate = draft.one("Sigmoid", draft.one("Mul", f"{squeezed.name} {draft.weight(letter='g')}").name)
        shaped = draft.by_axes("Unsqueeze", gate.name, [1, 2, 3])
    else:
        small = draft.one("Relu", draft.linear(squeezed, max(4, value.shape[1] // 4)).name)
        gate = draft.one("Sigmoid", draft.linear(small, value.shape[1]).name)
        shaped = draft.by_axes("Unsqueeze", gate.name, [2, 3])
    return draft.one("Mul", f"{value.name} {shaped.name}")


RECIPES = (
    *(Recipe(op, _plain(op), (op,), SINCE.get(op, 13), 0.3) for op in PLAIN),
    *(Recipe(op, _with_settings(op), (op,), share=0.3) for op in WITH_SETTINGS),
    *(Recipe(op, _behind(op), (op, *BEHIND[op]), share=0.2) for op in BEHIND),
    *(Recipe(op, _softmax(op), (op,)) for op in ("Softmax", "LogSoftmax")),
    *(Recipe(op, _join(op), (op,), share=3.0 if op in ("Add", "Mul") else 0.5) for op in JOINS),
    *(Recipe(op, _comparison(op), (op, "Where", "Cast"), 16, 0.3) for op in COMPARISONS),
    *(Recipe(op, _logic(op), (op, "Where", "Greater", "Less"), 16, 0.3) for op in LOGIC),
    *(Recipe(op, _mean_over(op), (op,), share=0.6) for op in REDUCTIONS),
    Recipe("IsNaN", _not_a_number, ("IsNaN", "Where"), share=0.2),
    Recipe("Clip", _clip, ("Clip",), share=0.6),
    Recipe("PRelu", _prelu, ("PRelu",), 16, 0.6),
    Recipe("Cast", _cast, ("Cast", "Mod", "Div"), share=0.4),
    Recipe("Trilu", _triangle, ("Trilu",), 14, 0.4),
    Recipe("CumSum", _running_sum, ("CumSum",), 14, 0.5),
    Recipe("Gelu", _gelu, ("Gelu",)),
    Recipe("Silu", _silu, ("Silu",)),
    Recipe("Mish of parts", _mish, ("Mish",), share=0.4),
    Recipe("squeeze and excitation", _excited, ("Mul", "Sigmoid", "Unsqueeze", "ReduceMean"), share=1.5),
)
