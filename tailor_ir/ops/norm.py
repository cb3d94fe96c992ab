"""Normalisations."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Node, Tensors
from tailor_ir.ops.registry import Dims, NodeShapes, Operator, Propagation

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
    """LayerNorm over the last axis of x (*, C)."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return F.layer_norm(x, scale.shape, scale, bias, self.epsilon)


def _batch_norm_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    if len(node.outputs) > 1 and node.int("training_mode", 0):
        raise ImportFailed(f"operator '{node.op}' at '{node.name}': in training form; export the network in eval mode")
    x = p.of(node.inputs[0])
    for name in node.inputs[1:5]:
        p.unify(x[1], p.of(name)[0], node)
    return (x,)


def _layer_norm_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    if node.int("axis", -1) not in (-1, len(x) - 1):
        raise ImportFailed(
            f"operator '{node.op}' at '{node.name}': axis {node.int('axis', -1)} of {len(x)}; allowed: the last axis"
        )
    for name in node.inputs[1:]:
        p.unify(x[-1], p.of(name)[0], node)
    return (x,)


def _lower_batch_norm(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return BatchNormalization(node.float("epsilon", 1e-5))


def _lower_layer_norm(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return LayerNormalization(node.float("epsilon", 1e-5))


def _batch_norm_layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    scale, bias, mean, variance = parameters
    # ONNX keeps the share of the old statistics, PyTorch the share of the new ones
    momentum = 1.0 - node.float("momentum", 0.9)
    layer = BATCH_NORMS[len(shapes.inputs[0])](len(scale), eps=node.float("epsilon", 1e-5), momentum=momentum)
    layer.load_state_dict({"weight": scale, "bias": bias, "running_mean": mean, "running_var": variance}, strict=False)
    return layer


def _layer_norm_layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    layer = nn.LayerNorm(len(parameters[0]), eps=node.float("epsilon", 1e-5), bias=len(parameters) > 1)
    layer.weight.data.copy_(parameters[0])
    if len(parameters) > 1:
        layer.bias.data.copy_(parameters[1])
    return layer


OPERATORS = (
    Operator(names=("BatchNormalization",), axes=_batch_norm_axes, lower=_lower_batch_norm, layer=_batch_norm_layer),
    Operator(names=("LayerNormalization",), axes=_layer_norm_axes, lower=_lower_layer_norm, layer=_layer_norm_layer),
)
