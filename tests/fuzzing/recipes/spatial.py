"""Operators over positions of images: pooling, padding, resizing, sampling."""

from typing import Any

from tests.fuzzing.drafts import Draft, Unfit, Value
from tests.fuzzing.recipes.layers import convolution
from tests.fuzzing.recipes.record import Make, Recipe


def _pool(op: str) -> Make:
    def make(draft: Draft) -> Value:
        value = draft.signal() if draft.chance(0.2) else draft.spatial(3)
        rank = value.rank - 2
        if min(value.shape[2:]) < 3:
            raise Unfit
        kernel, stride, pad = draft.choose(((2, 2, 0), (3, 2, 1), (3, 1, 1), (2, 1, 0)))
        attributes: dict[str, Any] = {
            "kernel_shape": [kernel] * rank,
            "strides": [stride] * rank,
            "pads": [pad] * (2 * rank),
        }
        if draft.chance(0.3):
            attributes["ceil_mode"] = 1
        if op == "AveragePool" and draft.chance(0.5):
            attributes["count_include_pad"] = 1
        if draft.chance(0.2) and "ceil_mode" not in attributes:
            attributes["pads"] = [0, 1] if rank == 1 else [0, 0, 1, 1]
        return draft.one(op, value.name, **attributes)

    return make


def _global(op: str) -> Make:
    def make(draft: Draft) -> Value:
        found = draft.one(op, draft.image().name)
        return draft.one("Flatten", found.name) if draft.chance(0.5) else found

    return make


def _pad(draft: Draft) -> Value:
    """Positions, now and then channels; also cut off."""
    value = draft.spatial(3)
    mode = draft.choose(("constant", "constant", "reflect", "edge", *(("wrap",) if draft.opset >= 19 else ())))
    pads = [0, 0, *(int(v) for v in draft.rng.integers(0, 3, 2)), 0, 0, *(int(v) for v in draft.rng.integers(0, 3, 2))]
    if draft.chance(0.15):
        pads[1], pads[5] = int(draft.choose((0, 2))), 2
    if draft.chance(0.1) and mode == "constant":
        pads[2] = -1
    more = f" {draft.constant(0.5)}" if mode == "constant" and draft.chance(0.5) else ""
    if draft.opset >= 18 and draft.chance(0.3) and not (pads[1] or pads[5]):
        axes = draft.constant([2, 3])
        return draft.one(
            "Pad", f"{value.name} {draft.constant([*pads[2:4], *pads[6:]])} {more.strip() or '_'} {axes}", mode=mode
        )
    return draft.one("Pad", f"{value.name} {draft.constant(pads)}{more}", mode=mode)


def _resize(draft: Draft) -> Value:
    value = draft.spatial(2)
    if max(value.shape[2:]) > 12:
        raise Unfit
    settings: dict[str, Any] = draft.choose(
        (
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
            {"mode": "nearest", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"},
            {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
            {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
            {"mode": "cubic", "coordinate_transformation_mode": "half_pixel"},
        )
    )
    if draft.opset >= 18 and draft.chance(0.2):
        scales = draft.constant([2.0, 2.0])
        return draft.one("Resize", f"{value.name} _ {scales}", axes=[2, 3], **settings)
    if draft.chance(0.2):
        sizes = draft.constant([0, 0, value.shape[2] * 2, value.shape[3] * 2][2:])
        if draft.opset >= 18:
            return draft.one("Resize", f"{value.name} _ _ {sizes}", axes=[2, 3], **settings)
    if draft.chance(0.7):
        scales = draft.constant([1.0, 1.0, 2.0, draft.choose((2.0, 2.0, 1.0))])
        return draft.one("Resize", f"{value.name} _ {scales}", **settings)
    factor = float(draft.choose((0.5, 1.5)))
    return draft.one("Resize", f"{value.name} _ {draft.constant([1.0, 1.0, factor, factor])}", **settings)


def _depth_to_space(draft: Draft) -> Value:
    value = draft.spatial(2)
    if max(value.shape[2:]) > 12:
        raise Unfit
    wide = value if value.shape[1] % 4 == 0 else convolution(draft, value, 16, 1)
    return draft.one("DepthToSpace", wide.name, blocksize=2, mode=draft.choose(("DCR", "CRD")))


def _space_to_depth(draft: Draft) -> Value:
    value = draft.pick(
        lambda v: v.kind == "float32" and v.plain and v.rank == 4 and v.shape[2] % 2 == 0 and v.shape[3] % 2 == 0
    )
    return draft.one("SpaceToDepth", value.name, blocksize=2)


def _grid_sample(draft: Draft) -> Value:
    """At coordinates that are computed of the image itself."""
    value = draft.spatial(2)
    moved = draft.one("Tanh", convolution(draft, value, 2, 1).name)
    grid = draft.transpose(moved.name, 0, 2, 3, 1)
    names = ("linear", "nearest") if draft.opset >= 20 else ("bilinear", "nearest")
    mode = names[0] if draft.chance(0.8) else names[1]
    attributes = {"padding_mode": draft.choose(("zeros", "border")), "align_corners": int(draft.chance(0.5))}
    return draft.one("GridSample", f"{value.name} {grid.name}", mode=mode, **attributes)


def _u_net(draft: Draft) -> Value:
    """Down, up and joined with what was before."""
    value = draft.pick(
        lambda v: v.kind == "float32" and v.plain and v.rank == 4 and v.shape[2] % 2 == 0 and v.shape[3] % 2 == 0
    )
    low = draft.one("Relu", convolution(draft, value, draft.width(), 2 + 1, 2).name)
    if draft.chance(0.5):
        up = draft.one(
            "Resize", f"{low.name} _ {draft.constant([1.0, 1.0, 2.0, 2.0])}", mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )  # fmt: skip
    else:
        weight = draft.weight(low.shape[1], draft.width(), 2, 2)
        up = draft.one("ConvTranspose", f"{low.name} {weight}", strides=[2, 2])
    return draft.one("Concat", f"{up.name} {value.name}", axis=1)


def _patches(draft: Draft) -> Value:
    """An image as a sequence of patches."""
    value = draft.pick(
        lambda v: v.kind == "float32" and v.plain and v.rank == 4 and v.shape[2] % 2 == 0 and v.shape[3] % 2 == 0
    )
    out = draft.width()
    weight = draft.weight(out, value.shape[1], 2, 2)
    found = draft.one("Conv", f"{value.name} {weight} {draft.weight(out, letter='b')}", strides=[2, 2])
    flat = draft.reshape(found.name, [0, out if draft.chance(0.5) else 0, -1])
    return draft.transpose(flat.name, 0, 2, 1)


def _windows(draft: Draft) -> Value:
    """An image, channels last, as windows that stand in the batch, and back."""
    value = draft.pick(
        lambda v: v.kind == "float32" and v.plain and v.rank == 4 and v.shape[2] % 4 == 0 and v.shape[3] % 4 == 0
    )
    _, channels, height, width = value.shape
    last = draft.transpose(value.name, 0, 2, 3, 1)
    apart = draft.reshape(last.name, [-1, height // 4, 4, width // 4, 4, channels])
    windows = draft.reshape(draft.transpose(apart.name, 0, 1, 3, 2, 4, 5).name, [-1, 16, channels])
    found = draft.linear(windows, channels)
    if draft.chance(0.5):
        scores = draft.one("MatMul", f"{found.name} {draft.transpose(windows.name, 0, 2, 1).name}")
        found = draft.one("MatMul", f"{draft.one('Softmax', scores.name, axis=-1).name} {found.name}")
    whole = draft.reshape(found.name, [-1, height // 4, width // 4, 4, 4, channels])
    image = draft.reshape(draft.transpose(whole.name, 0, 1, 3, 2, 4, 5).name, [-1, height, width, channels])
    return draft.transpose(image.name, 0, 3, 1, 2)


RECIPES = (
    Recipe("MaxPool", _pool("MaxPool"), ("MaxPool",)),
    Recipe("AveragePool", _pool("AveragePool"), ("AveragePool",)),
    *(
        Recipe(op, _global(op), (op,), share=0.8 if op == "GlobalAveragePool" else 0.4)
        for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
    ),
    Recipe("Pad", _pad, ("Pad",)),
    Recipe("Resize", _resize, ("Resize",)),
    Recipe("DepthToSpace", _depth_to_space, ("DepthToSpace",), share=0.6),
    Recipe("SpaceToDepth", _space_to_depth, ("SpaceToDepth",), share=0.6),
    Recipe("GridSample", _grid_sample, ("GridSample",), 16, 0.4),
    Recipe("U-Net", _u_net, ("Conv", "Concat", "Resize", "ConvTranspose"), share=1.0),
    Recipe("patches", _patches, ("Conv", "Reshape", "Transpose"), share=1.0),
    Recipe("windows", _windows, ("Reshape", "Transpose", "Linear"), share=0.8),
)
