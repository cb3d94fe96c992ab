"""BatchNorm of SubNets, by a batch, by given statistics, or while recording, and ONNX models that report statistics.

A model reports the statistics of its BatchNorms' inputs, so that a device can adapt them without torch.

Legend: B batch, C channels of a norm, F channels of all norms.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional as F

BATCH_NORM = "BatchNormalization"
MEAN, VARIANCE, SHARE = "mean", "variance", "share"
"""Inputs: the statistics by which BatchNorms normalise, and the share of the batch in them."""
CHANNELS = "batch_norms/channels"
MEANS, VARIANCES = "means", "variances"
"""Outputs: statistics of each channel of each image."""


def statistics_names(model: onnx.ModelProto) -> tuple[tuple[str, str], ...]:
    """The names of mean and variance (C,) of each BatchNorm, in order."""
    return tuple((node.input[3], node.input[4]) for node in model.graph.node if node.op_type == BATCH_NORM)


def with_statistics(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same network, which must have a BatchNorm, with three more inputs and two more outputs.

    `mean`, `variance` (F,): of all BatchNorms, concatenated, in place of their own. `share` (): each normalises by mean + share
    · (batch mean − mean), and likewise for its variance. `means`, `variances` (B, F): of each image over height and width. The
    variance of a batch is the mean of its images' variances plus the variance of their means.
    """
    found = onnx.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    norms = [node for node in graph.node if node.op_type == BATCH_NORM]
    channels = _channels(model)
    nodes = [  # sizes must not be stored constants, which could be moved out of the file and be read too late
        helper.make_node("Constant", [], [CHANNELS], value=numpy_helper.from_array(np.array(channels, np.int64)))
    ]
    nodes += [
        helper.make_node("Split", [name, CHANNELS], [f"{norm.name}/{name}" for norm in norms], axis=0)
        for name in (MEAN, VARIANCE)
    ]
    for name in (MEAN, VARIANCE):
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [sum(channels)]))
    graph.input.append(helper.make_tensor_value_info(SHARE, TensorProto.FLOAT, []))
    shapes = {one.name: _shape(one) for one in (*graph.input, *graph.value_info)}
    for node in graph.node:
        nodes += _observed(node, shapes[node.input[0]], _batch(model)) if node.op_type == BATCH_NORM else [node]
    for name in (MEANS, VARIANCES):
        nodes.append(helper.make_node("Concat", [f"{norm.name}/{name}" for norm in norms], [name], axis=1))
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [_batch(model), sum(channels)]))
    replaced = {name for pair in statistics_names(model) for name in pair}
    kept = [one for one in graph.initializer if one.name not in replaced]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(kept)
    onnx.checker.check_model(found)
    return found


def _channels(model: onnx.ModelProto) -> list[int]:
    sizes = {one.name: one.dims[0] for one in model.graph.initializer if len(one.dims) == 1}
    return [sizes[mean] for mean, _ in statistics_names(model)]


def _shape(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(int(one.dim_value) for one in value.type.tensor_type.shape.dim)


def _batch(model: onnx.ModelProto) -> int:
    return _shape(model.graph.input[0])[0]


def _observed(norm: onnx.NodeProto, shape: tuple[int, ...], batch: int) -> Iterator[onnx.NodeProto]:
    """A BatchNorm for an input of this shape, and the nodes that compute its statistics.

    If the tokens of all images are normalised as rows of one matrix, the tokens of an image are consecutive rows.
    """
    x, rank = norm.input[0], len(shape)
    values = x

    def follow(op: str, inputs: Sequence[str], name: str, **attributes: Any) -> onnx.NodeProto:
        own = [one if one in (x, SHARE) else f"{norm.name}/{one}" for one in inputs]
        return helper.make_node(op, own, [f"{norm.name}/{name}"], **attributes)

    if rank == 2 and shape[0] > batch:
        sizes = numpy_helper.from_array(np.array([batch, shape[0] // batch, shape[1]], np.int64))
        yield follow("Constant", [], "sizes", value=sizes)
        yield follow("Reshape", [x, "sizes"], "by_image")
        yield follow("Transpose", ["by_image"], "tokens", perm=[0, 2, 1])
        values, rank = "tokens", 3
    if rank > 2:
        axes = list(range(2, rank))
        yield follow("ReduceMean", [values], "image_mean", axes=axes, keepdims=1)
        yield follow("Sub", [values, "image_mean"], "away")
        yield follow("Mul", ["away", "away"], "squares")
        yield follow("ReduceMean", ["squares"], "image_square", axes=axes, keepdims=1)
        yield follow("Flatten", ["image_mean"], MEANS, axis=1)
        yield follow("Flatten", ["image_square"], VARIANCES, axis=1)
    else:
        yield follow("Identity", [x], MEANS)
        yield follow("Sub", [x, x], VARIANCES)
    yield follow("ReduceMean", [MEANS], "batch_mean", axes=[0], keepdims=0)
    yield follow("Sub", [MEANS, "batch_mean"], "apart")
    yield follow("Mul", ["apart", "apart"], "apart_squares")
    yield follow("Add", ["apart_squares", VARIANCES], "batch_squares")
    yield follow("ReduceMean", ["batch_squares"], "batch_variance", axes=[0], keepdims=0)
    for name in (MEAN, VARIANCE):
        yield follow("Sub", [f"batch_{name}", name], f"{name}/away")
        yield follow("Mul", [f"{name}/away", SHARE], f"{name}/moved")
        yield follow("Add", [name, f"{name}/moved"], f"{name}/mixed")
    changed = onnx.NodeProto()
    changed.CopyFrom(norm)
    changed.input[3], changed.input[4] = (f"{norm.name}/{name}/mixed" for name in (MEAN, VARIANCE))
    yield changed


Statistics = dict[str, torch.Tensor]
"""A SubNet's own tensors, in its shapes: name of a running mean or variance -> (channels of the SubNet,).

For a SubNet that has adapted, also other tensors (`SuperNet.own_tensors`), and the tensors of its input alignment
(`InputAlignment.tensors`).
"""


@dataclass(slots=True)
class Moments:
    """Mean and variance (C,) of a norm's input: means over the batches so far."""

    mean: torch.Tensor
    variance: torch.Tensor
    batches: int = 0


@dataclass(slots=True)
class Observed:
    """Statistics that are being recorded, by norm, in the order of their calls; None: no recording."""

    moments: "dict[ElasticBatchNorm, Moments] | None" = None


class ElasticBatchNorm(nn.Module):
    """BatchNorm of the active SubNet: batch statistics in training (nothing is written), else the given statistics."""

    def __init__(self, mean_name: str, variance_name: str, epsilon: float, observed: Observed) -> None:
        super().__init__()
        self.mean_name, self.variance_name, self.epsilon = mean_name, variance_name, epsilon
        self.observed = observed

    def forward(
        self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor
    ) -> torch.Tensor:
        moments = self.observed.moments
        if moments is not None:
            if self not in moments:
                moments[self] = self.start(scale)
            return self.observe(x, scale, bias, moments[self])
        if self.training:
            return self.by_batch(x, scale, bias)
        return self.by_statistics(x, scale, bias, mean, variance)

    def by_statistics(
        self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor
    ) -> torch.Tensor:
        """x (B, C, …) normalised by given statistics (C,)."""
        return F.batch_norm(x, mean, variance, scale, bias, training=False, eps=self.epsilon)

    def by_batch(self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """x (B, C, …) normalised by its own statistics, which are not kept."""
        return F.batch_norm(x, None, None, scale, bias, training=True, eps=self.epsilon)

    def observe(self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, moments: Moments) -> torch.Tensor:
        """x (B, C, …) normalised by its own statistics, which are added to the moments as one more batch."""
        moments.batches += 1
        return F.batch_norm(
            x,
            moments.mean,
            moments.variance,
            scale,
            bias,
            training=True,
            momentum=1.0 / moments.batches,
            eps=self.epsilon,
        )

    @staticmethod
    def start(scale: torch.Tensor) -> Moments:
        """Moments before the first batch."""
        return Moments(torch.zeros_like(scale), torch.ones_like(scale))


def statistics_of(observed: Iterable[tuple[ElasticBatchNorm, Moments]]) -> Statistics:
    """Statistics by name; for a norm with several calls, the mean over them."""
    found: dict[str, list[torch.Tensor]] = {}
    for norm, moments in observed:
        found.setdefault(norm.mean_name, []).append(moments.mean)
        found.setdefault(norm.variance_name, []).append(moments.variance)
    return {name: each[0] if len(each) == 1 else torch.stack(each).mean(0) for name, each in found.items()}
