"""Normalisations."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Attribute, Node, Tensors
from tailor_ir.ops.registry import Dims, NodeShapes, Operator, Propagation, no_order


class _BatchNormLayer(nn.BatchNorm3d):
    """torch's BatchNorm for any number of axes, as in onnxruntime."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Accept every number of axes."""


BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


class BatchNormalization(nn.Module):
    """BatchNorm of x (B, C, *S) by given statistics (C)."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(
        self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor
    ) -> torch.Tensor:
        return F.batch_norm(x, mean, variance, scale, bias, training=False, eps=self.epsilon)


class LayerNormalization(nn.Module):
    """LayerNorm over the last axes of x, as many as the scale has."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return F.layer_norm(x, scale.shape, scale, bias, self.epsilon)


class GroupNormalization(nn.Module):
    """GroupNorm of x (B, C, *S) with an optional scale and bias (C)."""

    def __init__(self, groups: int, epsilon: float) -> None:
        super().__init__()
        self.groups, self.epsilon = groups, epsilon

    def forward(
        self, x: torch.Tensor, scale: torch.Tensor | None = None, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return _group_norm(x, self.groups, scale, bias, self.epsilon)


class _GroupNormLayer(nn.GroupNorm):
    """torch's GroupNorm without the check that refuses groups of one value; onnxruntime accepts them."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return _group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


def _group_norm(
    x: torch.Tensor, groups: int, scale: torch.Tensor | None, bias: torch.Tensor | None, epsilon: float
) -> torch.Tensor:
    """`F.group_norm` without its check, which refuses groups of one value in a batch of one."""
    return torch.group_norm(x, groups, scale, bias, epsilon, torch.backends.cudnn.enabled)


class BatchStandardization(nn.Module):
    """Standardise each channel of x (B, C, *S) over all other axes, then multiply by scale and add bias (C).

    This is BatchNorm in training form, to which weight standardisation is exported. `F.batch_norm` would refuse channels of
    one value.
    """

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.batch_norm(x, scale, bias, None, None, True, 0.0, self.epsilon, torch.backends.cudnn.enabled)


class RmsNormalization(nn.Module):
    """x divided by its root mean square along one axis, times scale (C)."""

    def __init__(self, axis: int, epsilon: float) -> None:
        super().__init__()
        self.axis, self.epsilon = axis, epsilon

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        if self.axis in (-1, x.dim() - 1):
            return F.rms_norm(x, scale.shape, scale, self.epsilon)
        factor = x.square().mean(self.axis, keepdim=True).add(self.epsilon).rsqrt()
        return x * factor * scale.reshape(-1, *(1,) * (x.dim() - self.axis % x.dim() - 1))


class LpNormalization(nn.Module):
    """x divided by its norm along one axis; zeros stay zeros, as in onnxruntime."""

    def __init__(self, axis: int, power: int) -> None:
        super().__init__()
        self.axis, self.power = axis, power

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = torch.linalg.vector_norm(x, self.power, self.axis, keepdim=True)
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
                f"operator '{node.op}' at '{node.name}': scale of rank {len(own)} for {len(normalised)} axes; "
                "allowed: one entry for each normalised position"
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
        each = p.pool.fixed(x[1].size // groups, f"operator '{node.op}' at '{node.name}': channels of one group")
        p.unify(x[1], p.pool.product((p.pool.free(groups), each)), node)
    return (x,)


def _rms_norm_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    p.put_together((x[node.int("axis", -1)],), node)
    p.unify(x[node.int("axis", -1)], p.of(node.inputs[1])[0], node)
    return (x,)


def _unary_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    return (p.of(node.inputs[0]),)


def _lower_batch_norm(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return BatchNormalization(node.float("epsilon", 1e-5))


def _lower_layer_norm(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return LayerNormalization(node.float("epsilon", 1e-5))


def _groups(node: Node, shapes: NodeShapes) -> int:
    """Number of channel groups under a config; each group keeps its channels."""
    return node.int("num_groups", 1) * shapes.inputs[0][1] // shapes.full_inputs[0][1]


def _group_attributes(node: Node, shapes: NodeShapes) -> dict[str, Attribute]:
    groups = node.int("num_groups", 1)
    return {"num_groups": groups if groups == 1 else _groups(node, shapes)}


def _lower_group_norm(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return GroupNormalization(int(_group_attributes(node, shapes)["num_groups"]), node.float("epsilon", 1e-5))  # type: ignore[arg-type]


def _lower_instance_norm(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return GroupNormalization(shapes.inputs[0][1], node.float("epsilon", 1e-5))


def _lower_standardization(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return BatchStandardization(node.float("epsilon", 1e-5))


def _lower_rms_norm(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return RmsNormalization(node.int("axis", -1), node.float("epsilon", 1e-5))


def _lower_lp_norm(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return LpNormalization(node.int("axis", -1), node.int("p", 2))


def _batch_norm_layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    scale, bias, mean, variance = parameters
    # ONNX keeps the share of the old statistics, PyTorch the share of the new ones
    momentum = 1.0 - node.float("momentum", 0.9)
    form = BATCH_NORMS.get(len(shapes.inputs[0]), _BatchNormLayer)
    layer = form(len(scale), eps=node.float("epsilon", 1e-5), momentum=momentum)
    layer.load_state_dict({"weight": scale, "bias": bias, "running_mean": mean, "running_var": variance}, strict=False)
    return layer


def _layer_norm_layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    layer = nn.LayerNorm(parameters[0].shape, eps=node.float("epsilon", 1e-5), bias=len(parameters) > 1)
    layer.weight.data.copy_(parameters[0])
    if len(parameters) > 1:
        layer.bias.data.copy_(parameters[1])
    return layer


def _group_norm_layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    groups = int(_group_attributes(node, shapes)["num_groups"])  # type: ignore[arg-type]
    layer = _GroupNormLayer(groups, shapes.inputs[0][1], eps=node.float("epsilon", 1e-5), affine=bool(parameters))
    if parameters:
        layer.weight.data.copy_(parameters[0])
        layer.bias.data.copy_(parameters[1] if len(parameters) > 1 else torch.zeros_like(parameters[0]))
    return layer


def _rms_norm_layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    axis, rank = node.int("axis", -1), len(shapes.inputs[0])
    layer = nn.RMSNorm(len(parameters[0]), eps=node.float("epsilon", 1e-5))
    layer.weight.data.copy_(parameters[0])
    if axis in (-1, rank - 1):
        return layer
    return _OnAxis(layer, axis)


class _OnAxis(nn.Module):
    """A layer for the last axis, applied to another axis."""

    def __init__(self, layer: nn.Module, axis: int) -> None:
        super().__init__()
        self.layer, self.axis = layer, axis

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.movedim(self.axis, -1)).movedim(-1, self.axis)


OPERATORS = (
    Operator(
        names=("BatchNormalization",),
        axes=_batch_norm_axes,
        order=no_order,
        lower=_lower_batch_norm,
        layer=_batch_norm_layer,
    ),
    Operator(names=("BatchStandardization",), axes=_batch_norm_axes, order=no_order, lower=_lower_standardization),
    Operator(
        names=("LayerNormalization",),
        axes=_layer_norm_axes,
        order=no_order,
        lower=_lower_layer_norm,
        layer=_layer_norm_layer,
    ),
    Operator(
        names=("GroupNorm",),
        axes=_group_norm_axes,
        order=no_order,
        lower=_lower_group_norm,
        layer=_group_norm_layer,
        attributes=_group_attributes,
    ),
    Operator(names=("InstanceNormalization",), axes=_batch_norm_axes, order=no_order, lower=_lower_instance_norm),
    Operator(names=("RmsNorm",), axes=_rms_norm_axes, order=no_order, lower=_lower_rms_norm, layer=_rms_norm_layer),
    Operator(names=("LpNormalization",), axes=_unary_axes, order=no_order, lower=_lower_lp_norm),
)
