"""Layers with weights: convolutions, linear maps, normalisations, and blocks of them."""

from tests.fuzzing.drafts import Draft, Unfit, Value
from tests.fuzzing.recipes.record import Recipe


def convolution(draft: Draft, value: Value, out: int, kernel: int, stride: int = 1, groups: int = 1) -> Value:
    """A convolution in as many dimensions as the value has, padded to keep its sides where the stride is 1."""
    rank = value.rank - 2
    weight = draft.weight(out, value.shape[1] // groups, *(kernel,) * rank)
    bias = f" {draft.weight(out, letter='b')}" if draft.chance(0.5) else ""
    attributes = {"strides": [stride] * rank, "pads": [kernel // 2] * (2 * rank), "group": groups}
    if groups == 1 and draft.chance(0.3):
        del attributes["group"]
    if draft.chance(0.1):
        del attributes["pads"]
        attributes["auto_pad"] = draft.choose(("SAME_UPPER", "SAME_LOWER"))
    if draft.chance(0.3):
        attributes["kernel_shape"] = [kernel] * rank
    return draft.one("Conv", f"{value.name} {weight}{bias}", **attributes)


def batch_norm(draft: Draft, value: Value) -> Value:
    sizes = " ".join(draft.weight(value.shape[1], letter=letter) for letter in "gbbg")
    return draft.one("BatchNormalization", f"{value.name} {sizes}", epsilon=1e-3)


def _spatial_value(draft: Draft) -> Value:
    """An image, a signal or a volume."""
    way = int(draft.rng.integers(10))
    return draft.volume() if way == 0 else draft.signal() if way <= 2 else draft.spatial(1)


def _conv(draft: Draft) -> Value:
    value = _spatial_value(draft)
    kernel = int(draft.choose((1, 3, 3, 5, 7)))
    stride = int(draft.choose((1, 1, 1, 2)))
    if value.rank == 5:
        kernel = min(kernel, 3)
    found = convolution(draft, value, draft.width(), kernel, stride)
    if draft.chance(0.5):
        found = batch_norm(draft, found)
    return draft.one(draft.choose(("Relu", "Sigmoid", "LeakyRelu")), found.name) if draft.chance(0.6) else found


def _grouped(draft: Draft) -> Value:
    value = _spatial_value(draft)
    channels = value.shape[1]
    groups = int(draft.choose([n for n in (2, 4, channels) if channels % n == 0]))
    out = channels * int(draft.choose((1, 1, 2)))
    found = convolution(draft, value, out, 3, 1, groups)
    return batch_norm(draft, found) if draft.chance(0.4) else found


def _dilated(draft: Draft) -> Value:
    value = draft.spatial(4)
    weight = draft.weight(draft.width(), value.shape[1], 3, 3)
    uneven = [2, 2, 2, 2] if draft.chance(0.6) else [1, 2, 3, 2]
    return draft.one("Conv", f"{value.name} {weight}", dilations=[2, 2], pads=uneven)


def _transposed(draft: Draft) -> Value:
    value = draft.signal() if draft.chance(0.3) else draft.spatial(1)
    rank = value.rank - 2
    if max(value.shape[2:]) > 16:
        raise Unfit
    groups = 2 if draft.chance(0.3) and value.shape[1] % 2 == 0 else 1
    kernel = int(draft.choose((2, 3, 4)))
    weight = draft.weight(value.shape[1], draft.width() // groups, *(kernel,) * rank)
    attributes = {"strides": [2] * rank, "group": groups}
    if kernel == 4:
        attributes["pads"] = [1] * (2 * rank)
    if kernel == 3:
        attributes |= {"pads": [1] * (2 * rank), "output_padding": [1] * rank}
    return draft.one("ConvTranspose", f"{value.name} {weight}", **attributes)


def _linear(draft: Draft) -> Value:
    value = draft.any()
    if value.rank < 2:
        raise Unfit
    found = draft.linear(value, draft.width(), draft.chance(0.7))
    return draft.one("Relu", found.name) if draft.chance(0.5) else found


def _gemm(draft: Draft) -> Value:
    """With factors, or a bias of another form."""
    value = draft.vector()
    out = draft.width()
    weight = draft.weight(out, value.shape[1])
    bias = draft.weight(*draft.choose(((out,), (1, out), (1,), ())), letter="b")
    return draft.one("Gemm", f"{value.name} {weight} {bias}", transB=1, alpha=draft.choose((1.0, 0.5)), beta=2.0)


def _batch_norm(draft: Draft) -> Value:
    value = draft.pick(lambda v: v.kind == "float32" and v.plain and v.rank > 1)
    return batch_norm(draft, value)


def _layer_norm(draft: Draft) -> Value:
    """One node, or the nodes that exporters wrote before opset 17."""
    value = draft.pick(lambda v: v.kind == "float32" and v.plain and v.rank > 1)
    size = value.shape[-1]
    scale, shift = draft.weight(size, letter="g"), draft.weight(size, letter="b")
    if draft.opset >= 17 and draft.chance(0.7):
        if value.rank > 2 and draft.chance(0.2):
            scale = draft.weight(*value.shape[-2:], letter="g")
            return draft.one("LayerNormalization", f"{value.name} {scale}", axis=-2)
        return draft.one("LayerNormalization", f"{value.name} {scale}{draft.choose(('', f' {shift}'))}", axis=-1)
    mean = draft.by_axes("ReduceMean", value.name, [-1], 18)
    centred = draft.one("Sub", f"{value.name} {mean.name}")
    squared = draft.one("Pow", f"{centred.name} {draft.constant(2.0)}")
    variance = draft.by_axes("ReduceMean", squared.name, [-1], 18)
    deviation = draft.one("Sqrt", draft.one("Add", f"{variance.name} {draft.constant(1e-3)}").name)
    scaled = draft.one("Mul", f"{draft.one('Div', f'{centred.name} {deviation.name}').name} {scale}")
    return draft.one("Add", f"{scaled.name} {shift}")


def _rms_norm(draft: Draft) -> Value:
    value = draft.pick(lambda v: v.kind == "float32" and v.plain and v.rank > 1)
    if draft.opset >= 23 and draft.chance(0.5):
        return draft.one("RMSNormalization", f"{value.name} {draft.weight(value.shape[-1], letter='g')}", axis=-1)
    squared = draft.one("Mul", f"{value.name} {value.name}")
    mean = draft.by_axes("ReduceMean", squared.name, [-1], 18)
    root = draft.one("Sqrt", draft.one("Add", f"{mean.name} {draft.constant(1e-3)}").name)
    divided = draft.one("Div", f"{value.name} {root.name}")
    return draft.one("Mul", f"{divided.name} {draft.weight(value.shape[-1], letter='g')}")


def _group_norm(draft: Draft) -> Value:
    """One node, or a reshape around an InstanceNormalization."""
    value = draft.pick(lambda v: v.kind == "float32" and v.plain and v.rank in (3, 4) and v.shape[1] > 1)
    channels = value.shape[1]
    groups = int(draft.choose([n for n in (1, 2, 4, channels) if channels % n == 0]))
    scale, shift = draft.weight(channels, letter="g"), draft.weight(channels, letter="b")
    if draft.opset >= 21 and draft.chance(0.7):
        return draft.one("GroupNormalization", f"{value.name} {scale} {shift}", num_groups=groups, epsilon=1e-3)
    flat = draft.reshape(value.name, [0, groups, -1])
    ones, zeros = draft.constant([1.0] * groups), draft.constant([0.0] * groups)
    normed = draft.one("InstanceNormalization", f"{flat.name} {ones} {zeros}", epsilon=1e-3)
    back = draft.reshape(normed.name, value.target)
    spread = (channels, *(1,) * (value.rank - 2))
    scaled = draft.one("Mul", f"{back.name} {draft.weight(*spread, letter='g')}")
    return draft.one("Add", f"{scaled.name} {draft.weight(*spread, letter='b')}")


def _instance_norm(draft: Draft) -> Value:
    value = draft.pick(lambda v: v.kind == "float32" and v.plain and v.rank > 2 and min(v.shape[2:]) > 1)
    sizes = f"{draft.weight(value.shape[1], letter='g')} {draft.weight(value.shape[1], letter='b')}"
    return draft.one("InstanceNormalization", f"{value.name} {sizes}", epsilon=1e-2)


def _lp_norm(draft: Draft) -> Value:
    value = draft.pick(lambda v: v.kind == "float32" and v.plain and v.rank > 1)
    moved = draft.one("Add", f"{value.name} {draft.constant(0.1)}")
    return draft.one("LpNormalization", moved.name, axis=int(draft.rng.integers(1, value.rank)), p=draft.choose((1, 2)))


def _standardised(draft: Draft) -> Value:
    """A convolution whose weight is standardised while running."""
    value = draft.spatial(1)
    out, inner = draft.width(), value.shape[1]
    weight = draft.weight(out, inner, 3, 3)
    rows = draft.reshape(weight, [1, out, -1])
    ones, zeros = draft.constant([1.0] * out), draft.constant([0.0] * out)
    normed, *_ = draft.add(
        "BatchNormalization", f"{rows.name} {ones} {zeros} {zeros} {ones}", count=3, training_mode=1, epsilon=1e-3
    )
    back = draft.reshape(normed.name, [out, inner, 3, 3])
    return draft.one("Conv", f"{value.name} {back.name}", pads=[1] * 4)


def _scaled_weight(draft: Draft) -> Value:
    """A linear map whose weight is computed of parameters."""
    value = draft.vector()
    out = draft.width()
    gain = draft.weight(out, 1, letter="g") if draft.chance(0.6) else draft.weight(letter="g")
    weight = draft.one("Mul", f"{draft.weight(out, value.shape[1])} {gain}")
    turned = draft.transpose(weight.name, 1, 0)
    return draft.one("MatMul", f"{value.name} {turned.name}")


def _residual(draft: Draft) -> Value:
    """A block around which its input is led, maybe scaled by a number of its own."""
    value = _spatial_value(draft)
    channels, hidden = value.shape[1], draft.width()
    inner = draft.one("Relu", batch_norm(draft, convolution(draft, value, hidden, 1)).name)
    inner = convolution(draft, inner, channels, 3)
    if draft.chance(0.2):
        inner = draft.one("Mul", f"{inner.name} {draft.weight(letter='g')}")
    return draft.one("Add", f"{value.name} {inner.name}")


def _large_kernel(draft: Draft) -> Value:
    """Depthwise, then as in an inverted bottleneck."""
    value = draft.spatial(4)
    found = convolution(draft, value, value.shape[1], int(draft.choose((5, 7))), 1, value.shape[1])
    inner = draft.one("Relu", convolution(draft, found, 2 * value.shape[1], 1).name)
    return draft.one("Add", f"{value.name} {convolution(draft, inner, value.shape[1], 1).name}")


def _perceptron(draft: Draft) -> Value:
    """Two linear maps of the last axis, around which the input is led."""
    value = draft.sequence() if draft.chance(0.6) else draft.vector()
    inner = draft.one("Relu", draft.linear(value, draft.width()).name)
    found = draft.linear(inner, value.shape[-1])
    return draft.one("Add", f"{found.name} {value.name}")


RECIPES = (
    Recipe("convolution", _conv, ("Conv", "BatchNormalization", "Relu", "Sigmoid", "LeakyRelu"), share=6.0),
    Recipe("grouped convolution", _grouped, ("Conv", "BatchNormalization"), share=2.0),
    Recipe("dilated convolution", _dilated, ("Conv",), share=0.5),
    Recipe("transposed convolution", _transposed, ("ConvTranspose",)),
    Recipe("linear map", _linear, ("Linear", "MatMul", "Relu"), share=4.0),
    Recipe("Gemm", _gemm, ("Gemm", "Linear")),
    Recipe("batch norm", _batch_norm, ("BatchNormalization",)),
    Recipe("layer norm", _layer_norm, ("LayerNormalization",), share=1.5),
    Recipe("root mean square norm", _rms_norm, ("RmsNorm",)),
    Recipe("group norm", _group_norm, ("GroupNorm",)),
    Recipe("instance norm", _instance_norm, ("InstanceNormalization",), share=0.6),
    Recipe("LpNormalization", _lp_norm, ("LpNormalization",), share=0.4),
    Recipe("standardised weight", _standardised, ("BatchStandardization", "Conv"), 15, 0.5),
    Recipe("scaled weight", _scaled_weight, ("MatMul", "Mul", "Transpose"), share=0.6),
    Recipe("residual block", _residual, ("Conv", "Add"), share=3.0),
    Recipe("large kernel", _large_kernel, ("Conv", "Add", "KernelTransform"), share=1.0),
    Recipe("perceptron", _perceptron, ("Linear", "Add"), share=2.0),
)
