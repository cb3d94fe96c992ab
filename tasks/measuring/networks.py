"""Whole SubNets for a device, without weights, in which each layer that the device runs belongs to one operator.

onnxruntime gets the SubNet itself and names its layers after the SubNet's values. In int8 the SubNet has weights, and
conversions between fp32 and int8 are layers that are named after the values, too. An NCNN file keeps no names, so the network
is joined from the files of its operators, each of which is converted once. ExecuTorch names layers only by their kinds, and
runs them in the order of the SubNet; convolutions and matrix products, separate layers in any runtime, mark their positions.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from profiling_agents.client import ModelJob
from profiling_agents.messages import LayerTiming, Precision
from tailor_ir import Config, OperatorFeature, PlacedOperators, SuperNet
from tasks.evaluation.ncnn.files import Layer, NcnnFiles
from tasks.evaluation.quantise.qdq import timed_onnx
from tasks.measuring.jobs import onnx_job

PRODUCTS = frozenset(("Conv", "ConvTranspose", "Linear", "MatMul"))
XNNPACK_LAYERS = ("Convolution", "Deconvolution", "Fully Connected", "Batch Matrix Multiply")
OWN_LAYERS = ("native_call_addmm.", "native_call_bmm.", "native_call_convolution.", "native_call_mm.")
PRODUCT_LAYERS = XNNPACK_LAYERS + OWN_LAYERS
"""Prefixes of the names of XNNPACK's layers and of ExecuTorch's own layers."""


class ForeignLayersError(Exception):
    """Layers that cannot be matched with the operators of their SubNet."""


def by_order(layers: Sequence[LayerTiming], placed: PlacedOperators) -> list[int]:
    """The number of the operator of each layer. ForeignLayersError if products and their layers differ in number.

    If there are as many layers as operators between two products, they match in order. Otherwise all layers belong to the first
    of these operators; without operators, to the product before them, or to the first product.
    """
    products = [
        number for number, one in enumerate(placed.operators) for step in one.feature.steps if step.op in PRODUCTS
    ]
    at = [position for position, layer in enumerate(layers) if layer.kind.startswith(PRODUCT_LAYERS)]
    if len(products) != len(at):
        raise ForeignLayersError(
            f"{len(products)} convolutions and matrix products ran as {len(at)} layers, which are in no order that is known"
        )
    owners: list[int] = []
    ends = zip(pairwise([-1, *at, len(layers)]), pairwise([-1, *products, len(placed.operators)]), strict=True)
    for (layer, next_layer), (product, next_product) in ends:
        inner, between = next_layer - layer - 1, range(product + 1, next_product)
        owners += [product] * (layer >= 0)
        if inner == len(between):
            owners += between
        elif between:
            owners += [between[0]] * inner
        else:
            owners += [product if product >= 0 else next_product] * inner
    return owners


Snippets = Mapping[OperatorFeature, NcnnFiles]
OWN = re.compile(r"op(\d+)/")


@dataclass(frozen=True, slots=True)
class WholeSubNet:
    """A SubNet as a job, and its operators."""

    placed: PlacedOperators
    job: ModelJob

    def attribute(self, layers: Sequence[LayerTiming]) -> list[tuple[float, int]]:
        """For each operator the time [ms] and number of its layers; 0 if the operator runs inside another's layer.

        ForeignLayersError if layers cannot be matched with operators.
        """
        owners: Sequence[int | None]
        times_ms, counts = [0.0] * len(self.placed.operators), [0] * len(self.placed.operators)
        match self.job.format:
            case "ncnn":  # a Split has no operator
                found = [OWN.match(layer.name) for layer in layers]
                owners = [None if match is None else int(match[1]) for match in found]
            case "onnx":
                owners = _by_name(layers, self.placed)
            case "executorch":
                owners = by_order(layers, self.placed)
        for layer, number in zip(layers, owners, strict=True):
            if number is not None:
                times_ms[number] += layer.time_ms
                counts[number] += 1
        return list(zip(times_ms, counts, strict=True))


def onnx_subnet(net: SuperNet, key: str, config: Config, precision: Precision = "fp32") -> WholeSubNet:
    """A SubNet for runtimes that take ONNX. ConversionError if it cannot be converted to the precision."""
    job = onnx_job(key, timed_onnx(net, config, precision, weights=False))
    return WholeSubNet(net.placed_operators(config), job)


def ncnn_subnet(net: SuperNet, key: str, config: Config, snippets: Snippets) -> WholeSubNet:
    """A SubNet for ncnn, from the files of its operators. KeyError when an operator has none."""
    placed = net.placed_operators(config)
    layers = _joined(placed, snippets)
    job = ModelJob(
        key=key,
        format="ncnn",
        files=(NcnnFiles.of(layers, b"").param,),
        input_names=tuple(f"in{number}" for number in range(len(placed.inputs))),
        input_shapes=tuple(net.input_shapes(config).values()),
        output_names=tuple(f"out{number}" for number in range(len(placed.outputs))),
    )
    return WholeSubNet(placed, job)


def _joined(placed: PlacedOperators, snippets: Snippets) -> list[Layer]:
    """The layers of all operators in order, named after their operator."""
    blobs = {value: f"in{number}" for number, value in enumerate(placed.inputs)}
    layers = [Layer("Input", blob, (), (blob,), ()) for blob in blobs.values()]
    for number, operator in enumerate(placed.operators):
        names = {f"in{i}": blobs[value] for i, value in enumerate(operator.inputs)}
        for i, value in enumerate(operator.outputs):
            names[f"out{i}"] = blobs[value] = f"op{number}/out{i}"
        for position, layer in enumerate(snippets[operator.feature].layers()):
            if layer.kind == "Input":
                continue
            inner = {b: f"op{number}/{b}" for b in (*layer.inputs, *layer.outputs) if b not in names}
            renamed = layer.renamed(names | inner)
            layers.append(
                Layer(layer.kind, f"op{number}/{position}", renamed.inputs, renamed.outputs, layer.parameters)
            )
    ends = [blobs[value] for value in placed.outputs]
    layers += [Layer("Noop", f"end{i}", (blob,), (f"out{i}",), ()) for i, blob in enumerate(ends)]
    return _with_splits(layers)


def _with_splits(layers: Sequence[Layer]) -> list[Layer]:
    """The layers with a Split after each blob that is read more than once, as ncnn requires."""
    readers: dict[str, int] = {}
    for layer in layers:
        for blob in layer.inputs:
            readers[blob] = readers.get(blob, 0) + 1
    copies: dict[str, list[str]] = {}
    result: list[Layer] = []
    for layer in layers:
        inputs = tuple(copies[blob].pop(0) if blob in copies else blob for blob in layer.inputs)
        result.append(Layer(layer.kind, layer.name, inputs, layer.outputs, layer.parameters))
        for blob in layer.outputs:
            if readers.get(blob, 0) > 1:
                copies[blob] = [f"{blob}/{i}" for i in range(readers[blob])]
                result.append(Layer("Split", f"split/{blob}", (blob,), tuple(copies[blob]), ()))
    return result


def _by_name(layers: Sequence[LayerTiming], placed: PlacedOperators) -> list[int | None]:
    """The operator of each layer of onnxruntime, which names a layer after its last node or value.

    Layers with onnxruntime's own names, such as an activation fused from several nodes, belong to the operator before them. If
    they prepare an operator's input, as the first layers do, they belong to the operator behind them.
    """
    numbers = {name: number for number, one in enumerate(placed.operators) for name in one.names}
    owners = []
    for layer in layers:  # the longest known prefix counts: "_nchwc", "/Gemm0" or "_token_7" may be appended
        beginnings = (layer.name[:end] for end in range(len(layer.name), 0, -1))
        owners.append(next((numbers[name] for name in beginnings if name in numbers), None))
    for position in range(len(owners) - 2, -1, -1):
        layer = layers[position]
        if owners[position] is None and (layer.kind == "ReorderInput" or layer.name.startswith("gemm_input")):
            owners[position] = owners[position + 1]
    last = next((owner for owner in owners if owner is not None), None)
    for position, owner in enumerate(owners):
        owners[position] = last = last if owner is None else owner
    return owners
