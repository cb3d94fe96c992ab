"""Operators that few networks have, or that came late: spectra, attention as one node, writing into a part of a value."""

from tests.fuzzing.drafts import Draft, Unfit, Value
from tests.fuzzing.recipes.record import Recipe


def _signal_of(draft: Draft, least: int = 4) -> Value:
    """(N, L)"""
    value = draft.vector()
    if not least <= value.shape[1] <= 256:
        raise Unfit
    return value


def _spectrum(draft: Draft) -> Value:
    """The two parts of a Fourier transform, as channels or as a magnitude."""
    value = draft.by_axes("Unsqueeze", _signal_of(draft).name, [2])
    settings = {"onesided": int(draft.chance(0.6))}
    if draft.opset >= 20:
        found = draft.one("DFT", f"{value.name} _ {draft.constant(1)}", **settings)
    else:
        found = draft.one("DFT", value.name, axis=1, **settings)
    if draft.chance(0.4):
        return found
    squared = draft.by_axes("ReduceSumSquare", found.name, [2], 18, keepdims=0)
    return draft.one("Sqrt", draft.one("Add", f"{squared.name} {draft.constant(0.1)}").name)


def _windows_of_signal(draft: Draft) -> Value:
    """Magnitudes of a short-time Fourier transform: (N, frames, frequencies)."""
    value = draft.by_axes("Unsqueeze", _signal_of(draft, 12).name, [2])
    step, length = draft.constant(4), draft.constant(8)
    window = draft.constant([0.1, 0.4, 0.8, 1.0, 1.0, 0.8, 0.4, 0.1]) if draft.chance(0.7) else "_"
    found = draft.one("STFT", f"{value.name} {step} {window} {length}", onesided=1)
    return draft.by_axes("ReduceL2", found.name, [3], 18, keepdims=0)


def _attention(draft: Draft) -> Value:
    """One node; fewer heads of keys and values than of queries."""
    value = draft.sequence()
    if value.shape[1] > 32:
        raise Unfit
    heads, shared = draft.choose(((2, 2), (4, 2), (4, 1)))
    query, key, content = (draft.linear(value, 8 * count).name for count in (heads, shared, shared))
    settings = {"is_causal": 1} if draft.chance(0.3) else {}
    found = draft.one("Attention", f"{query} {key} {content}", q_num_heads=heads, kv_num_heads=shared, **settings)
    return draft.linear(found, value.shape[2])


def _like(draft: Draft) -> Value:
    value = draft.any()
    mask = draft.one("Less", f"{value.name} {draft.constant(0.2)}")
    return draft.one("CastLike", f"{mask.name} {value.name}")


def _standardised(draft: Draft) -> Value:
    value = draft.pick(lambda v: v.kind == "float32" and v.plain and v.rank > 2)
    return draft.one("MeanVarianceNormalization", value.name, axes=list(range(2, value.rank)))


def _one_hot(draft: Draft) -> Value:
    value = draft.pick(lambda v: v.kind == "float32" and v.plain and v.rank > 1)
    return draft.one("Hardmax", value.name, axis=value.rank - 1)


def _power_pool(draft: Draft) -> Value:
    value = draft.spatial(3)
    return draft.one("LpPool", value.name, kernel_shape=[2, 2], strides=[2, 2])


def _unpooled(draft: Draft) -> Value:
    """Down and up again by the positions of the largest values."""
    value = draft.image()
    if value.shape[2] % 2 or value.shape[3] % 2:
        raise Unfit
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    small, positions = draft.add("MaxPool", value.name, 2, **window)
    return draft.one("MaxUnpool", f"{small.name} {positions.name}", **window)


def _deformed(draft: Draft) -> Value:
    """A convolution that reads beside its positions by offsets that it learns."""
    value = draft.image()
    out, channels = draft.width(), value.shape[1]
    settings = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    offsets = draft.one("Conv", f"{value.name} {draft.weight(18, channels, 3, 3)}", **settings)
    return draft.one("DeformConv", f"{value.name} {draft.weight(out, channels, 3, 3)} {offsets.name}", **settings)


def _written(draft: Draft) -> Value:
    """A part of the first axes behind the batch, with other numbers in it: a shift of channels, a half that is replaced."""
    value = draft.pick(lambda v: v.kind == "float32" and v.plain and v.rank in (2, 3) and v.shape[1] >= 4)
    size = value.shape[1]
    turned = draft.transpose(value.name, 1, 0, *range(2, value.rank))
    positions = [[i] for i in range(size // 2)]
    half = draft.one("Slice", " ".join([turned.name, *map(draft.constant, ([0], [len(positions)], [0]))]))
    other = draft.one("Mul", f"{half.name} {draft.constant(0.3)}")
    found = draft.one("ScatterND", f"{turned.name} {draft.constant(positions)} {other.name}")
    return draft.transpose(found.name, 1, 0, *range(2, value.rank))


def _filtered(draft: Draft) -> Value:
    """A smaller image, smoothed before."""
    value = draft.spatial(4)
    factors = draft.constant([1.0, 1.0, 0.5, 0.5])
    mode = draft.choose(("linear", "cubic"))
    return draft.one("Resize", f"{value.name} _ {factors}", mode=mode, antialias=1)


def _infinite(draft: Draft) -> Value:
    mask = draft.one("IsInf", draft.any().name)
    return draft.one("Cast", mask.name, to=1)


def _swish(draft: Draft) -> Value:
    return draft.one("Swish", draft.any().name, alpha=draft.choose((1.0, 1.5)))


RECIPES = (
    Recipe("DFT", _spectrum, ("DFT",), 17, 0.3),
    Recipe("STFT", _windows_of_signal, ("DFT",), 17, 0.3),
    Recipe("Attention of one node", _attention, ("MatMul", "Softmax"), 23, 0.6),
    Recipe("CastLike", _like, ("Cast",), 15, 0.3),
    Recipe("MeanVarianceNormalization", _standardised, ("Sub", "Div"), 13, 0.3),
    Recipe("Hardmax", _one_hot, (), 13, 0.1),
    Recipe("LpPool", _power_pool, (), 18, 0.1),
    Recipe("ScatterND", _written, ("Slice", "Concat"), 16, 0.4),
    Recipe("antialiased Resize", _filtered, ("FilteredResize",), 18, 0.3),
    Recipe("IsInf", _infinite, (), 20, 0.1),
    Recipe("Swish", _swish, ("Silu",), 24, 0.3),
    Recipe("MaxUnpool", _unpooled, ("MaxUnpool",), 13, 0.0),  # drawn by their own seeds alone
    Recipe("DeformConv", _deformed, ("DeformConv",), 19, 0.0),
)
