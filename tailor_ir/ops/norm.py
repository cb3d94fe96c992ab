"""Normalisations."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Node
from tailor_ir.ops.registry import (
    Dims,
    Function,
    NodeShapes,
    Operator,
    Propagation,
    computed_by,
    filled,
    no_order,
    same_axes,
)


class _BatchNormLayer(nn.BatchNorm3d):
    """torch's BatchNorm for any number of axes, as in onnxruntime."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Accept every number of axes."""


BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def _batch_norm(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    *,
    epsilon: float,
) -> torch.Tensor:
    """BatchNorm of x (B, C, *S) by given statistics (C)."""
    return F.batch_norm(x, mean, variance, scale, bias, training=False, eps=epsilon)


def _layer_norm(
    x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None, *, epsilon: float
) -> torch.Tensor:
    """LayerNorm over the last axes of x, as many as the scale has."""
    return F.layer_norm(x, scale.shape, scale, bias, epsilon)


class _GroupNormLayer(nn.GroupNorm):
    """torch's GroupNorm without the check that refuses groups of one value; onnxruntime accepts them."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return _group_norm(input, self.weight, self.bias, groups=self.num_groups, epsilon=self.eps)


def _group_norm(
    x: torch.Tensor, scale: torch.Tensor | None = None, bias: torch.Tensor | None = None, *, groups: int, epsilon: float
) -> torch.Tensor:
    """`F.group_norm` without its check, which refuses groups of one value in a batch of one."""
    return torch.group_norm(x, groups, scale, bias, epsilon, torch.backends.cudnn.enabled)


def _standardized(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, *, epsilon: float) -> torch.Tensor:
    """Standardise each channel of x (B, C, *S) over all other axes, then multiply by scale and add bias (C).

    This is BatchNorm in training form, to which weight standardisation is exported. `F.batch_norm` would refuse channels of
    one value.
    """
    return torch.batch_norm(x, scale, bias, None, None, True, 0.0, epsilon, torch.backends.cudnn.enabled)


def _rms_norm(x: torch.Tensor, scale: torch.Tensor, *, axis: int, epsilon: float) -> torch.Tensor:
    """x divided by its root mean square along one axis, times scale (C)."""
    if axis in (-1, x.dim() - 1):
        return F.rms_norm(x, scale.shape, scale, epsilon)
    factor = x.square().mean(axis, keepdim=True).add(epsilon).rsqrt()
    return x * factor * scale.reshape(-1, *(1,) * (x.dim() - axis % x.dim() - 1))


def lp_norm(x: torch.Tensor, *, axis: int, power: int) -> torch.Tensor:
    """x divided by its norm along one axis; zeros stay zeros, as in onnxruntime."""
    norm = torch.linalg.vector_norm(x, power, axis, keepdim=True)
    return x / torch.where(norm > 0, norm, torch.ones_like(norm))


def _batch_norm_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    for name in node.inputs[1:5]:
        p.unify(x[1], p.of(name)[0], node)
    return (x,)


def _layer_norm_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    normalised = x[node.int("axis", -1) % len(x) :]
    p.put_together(normalised, node)
    for name in node.inputs[1:]:
        own = p.of(name) if name else ()
        if own and len(own) != len(normalised):
            raise ImportFailed(
                f"{node.place}: scale of rank {len(own)} for {len(normalised)} axes; allowed: one entry for each normalised "
                "position"
            )
        for a, b in zip(normalised, own, strict=False):
            p.unify(a, b, node)
    return (x,)


def _group_norm_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    for name in node.inputs[1:]:
        if name:
            p.unify(x[1], p.of(name)[0], node)
    groups = node.int("num_groups", 1)
    if groups > 1:
        each = p.pool.fixed(x[1].size // groups, f"{node.place}: channels of one group")
        p.unify(x[1], p.pool.product((p.pool.free(groups), each)), node)
    return (x,)


def _rms_norm_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    p.put_together((x[node.int("axis", -1)],), node)
    p.unify(x[node.int("axis", -1)], p.of(node.inputs[1])[0], node)
    return (x,)


def _epsilon(node: Node) -> dict[str, float]:
    return {"epsilon": node.float("epsilon", 1e-5)}


def _groups(node: Node, shapes: NodeShapes) -> int:
    """Number of channel groups under a config; each of several groups keeps its channels."""
    groups = node.int("num_groups", 1)
    return groups if groups == 1 else groups * shapes.inputs[0][1] // shapes.full_inputs[0][1]


def _batch_norm_layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    scale, bias, mean, variance = parameters
    # ONNX keeps the share of the old statistics, PyTorch the share of the new ones
    momentum = 1.0 - node.float("momentum", 0.9)
    form = BATCH_NORMS.get(len(shapes.inputs[0]), _BatchNormLayer)
    layer = form(len(scale), eps=node.float("epsilon", 1e-5), momentum=momentum)
    layer.load_state_dict({"weight": scale, "bias": bias, "running_mean": mean, "running_var": variance}, strict=False)
    return layer


def _layer_norm_layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    return filled(
        nn.LayerNorm(parameters[0].shape, eps=node.float("epsilon", 1e-5), bias=len(parameters) > 1), parameters
    )


def _group_norm_layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    layer = _GroupNormLayer(
        _groups(node, shapes), shapes.inputs[0][1], eps=node.float("epsilon", 1e-5), affine=bool(parameters)
    )
    bias = [torch.zeros_like(parameters[0])] if len(parameters) == 1 else []
    return filled(layer, [*parameters, *bias])


def _rms_norm_layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    axis, rank = node.int("axis", -1), len(shapes.inputs[0])
    layer = filled(nn.RMSNorm(len(parameters[0]), eps=node.float("epsilon", 1e-5)), parameters)
    return layer if axis in (-1, rank - 1) else _OnAxis(layer, axis)


class _OnAxis(nn.Module):
    """A layer for the last axis, applied to another axis."""

    def __init__(self, layer: nn.Module, axis: int) -> None:
        super().__init__()
        self.layer, self.axis = layer, axis

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.movedim(self.axis, -1)).movedim(-1, self.axis)


STATISTICS, STANDARDIZED = computed_by(_batch_norm, _epsilon), computed_by(_standardized, _epsilon)
RMS = computed_by(_rms_norm, lambda node: {"axis": node.int("axis", -1), **_epsilon(node)})
LP = computed_by(lp_norm, lambda node: {"axis": node.int("axis", -1), "power": node.int("p", 2)})
OPERATORS = (
    Operator(
        names=("BatchNormalization",), axes=_batch_norm_axes, order=no_order, lower=STATISTICS, layer=_batch_norm_layer
    ),
    Operator(names=("BatchStandardization",), axes=_batch_norm_axes, order=no_order, lower=STANDARDIZED),
    Operator(
        names=("LayerNormalization",),
        axes=_layer_norm_axes,
        order=no_order,
        lower=computed_by(_layer_norm, _epsilon),
        layer=_layer_norm_layer,
    ),
    Operator(
        names=("GroupNorm",),
        axes=_group_norm_axes,
        order=no_order,
        lower=lambda node, shapes, _: Function(_group_norm, groups=_groups(node, shapes), **_epsilon(node)),
        layer=_group_norm_layer,
        attributes=lambda node, shapes: {"num_groups": _groups(node, shapes)},
    ),
    Operator(
        names=("InstanceNormalization",),
        axes=_batch_norm_axes,
        order=no_order,
        lower=lambda node, shapes, _: Function(_group_norm, groups=shapes.inputs[0][1], **_epsilon(node)),
    ),
    Operator(names=("RmsNorm",), axes=_rms_norm_axes, order=no_order, lower=RMS, layer=_rms_norm_layer),
    Operator(names=("LpNormalization",), axes=same_axes, order=no_order, lower=LP),
)
