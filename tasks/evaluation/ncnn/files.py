"""NCNN's two files, and the choice of kernels for its convolutions by masks at the layers of a file.

The files are `.param`, a text of layers, and `.bin`, their weights in order, without names. A mask switches kernels
off. ncnn prefers Winograd's algorithm (3x3, stride 1), then matrix products (sgemm), then its direct convolution,
regardless of the sizes. The preferred kernel can be several times slower than another.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper

from tasks.base.errors import UserError

MAGIC = "7767517"
FLAG_BYTES = 4  # in front of weights that could also be stored as fp16 or int8


@dataclass(frozen=True, slots=True)
class Layer:
    """One line of a `.param` file."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: tuple[str, ...]

    def number(self, key: int, default: int = 0) -> int:
        """The integer parameter `key`."""
        prefix = f"{key}="
        return next((int(p[len(prefix) :]) for p in self.parameters if p.startswith(prefix)), default)

    def renamed(self, names: dict[str, str]) -> "Layer":
        """The same layer with other blob names."""
        inputs, outputs = (tuple(names.get(blob, blob) for blob in blobs) for blobs in (self.inputs, self.outputs))
        return Layer(self.kind, self.name, inputs, outputs, self.parameters)

    def line(self) -> str:
        """The text line of this layer."""
        counts = (str(len(self.inputs)), str(len(self.outputs)))
        return " ".join((self.kind, self.name, *counts, *self.inputs, *self.outputs, *self.parameters))


@dataclass(frozen=True, slots=True)
class NcnnFiles:
    """The contents of the two files."""

    param: bytes
    bin: bytes

    @staticmethod
    def of(layers: Sequence[Layer], weights: bytes) -> "NcnnFiles":
        """Files of these layers."""
        blobs = sum(len(layer.outputs) for layer in layers)
        lines = [MAGIC, f"{len(layers)} {blobs}", *(layer.line() for layer in layers)]
        return NcnnFiles(param=("\n".join(lines) + "\n").encode(), bin=weights)

    def layers(self) -> Iterator[Layer]:
        """The layers in order."""
        for line in self.param.decode().splitlines()[2:]:
            kind, name, inputs, outputs, *rest = line.split()
            first, second = int(inputs), int(inputs) + int(outputs)
            yield Layer(kind, name, tuple(rest[:first]), tuple(rest[first:second]), tuple(rest[second:]))


def weights_of(layers: Sequence[Layer], content: bytes) -> list[bytes]:
    """Each layer's part of a `.bin` file in fp32. ValueError when the parts do not add up to the file."""
    parts: list[bytes] = []
    position = 0
    for layer in layers:
        flagged, plain = _weight_counts(layer)
        size = sum(FLAG_BYTES + 4 * count for count in flagged) + 4 * plain
        parts.append(content[position : position + size])
        position += size
    if position != len(content):
        raise ValueError(f"the layers read {position} bytes of weights, the file has {len(content)}")
    return parts


def _weight_counts(layer: Layer) -> tuple[tuple[int, ...], int]:
    """Sizes of the arrays with a flag in front, and the total size of all others. Other kinds of layers have no weights."""
    number = layer.number
    match layer.kind:
        case "Convolution" | "ConvolutionDepthWise" | "Deconvolution" | "DeconvolutionDepthWise" | "Convolution1D":
            return ((number(6),), number(0) * number(5)) if not number(19) else ((), 0)  # 19: weights are inputs
        case "InnerProduct":
            return (number(2),), number(0) * number(1)
        case "LayerNorm":
            return (), 2 * number(0) * number(2, 1)
        case "BatchNorm":
            return (), 4 * number(0)
        case "Scale":
            return (), number(0) * (1 + number(1))
        case "PReLU":
            return (), number(0)
        case "MemoryData":
            return (), max(number(0), 1) * max(number(1), 1) * max(number(11), 1) * max(number(2), 1)
        case "Gemm":
            m, n, k = number(7), number(8), number(9)
            c = {0: 1, 1: m, 2: m, 3: m * n, 4: n}.get(number(10), 0)
            return tuple(count for key, count in ((4, m * k), (5, n * k), (6, c)) if number(key)), 0
        case "MultiHeadAttention":
            width, query = number(0), number(2)
            return (query, width * number(3, width), width * number(4, width), query), 4 * width
        case _:
            return (), 0


MASK_KEY: Final = 31
"""Key of the layer parameter that holds the mask."""
NO_SGEMM, NO_WINOGRAD = 1 << 5, 1 << 6
MASKS: Mapping[str, int] = {"sgemm": NO_WINOGRAD, "direct": NO_WINOGRAD | NO_SGEMM}
"""Implementation -> mask that switches off all kernels that ncnn would prefer."""
MASKS_SINCE = "1.0.20221128"
"""The oldest version of ncnn in which masks were seen to change the kernel; older versions silently ignore masks."""
DENSE = frozenset({"Convolution", "Deconvolution"})
GROUPED = frozenset({"ConvolutionDepthWise", "DeconvolutionDepthWise"})


def require_masks(version: str, chosen: Iterable[str]) -> None:
    """Raise UserError unless these implementations are known, and the device's version of ncnn supports masks."""
    names = set(chosen)
    if unknown := sorted(names - set(MASKS)):
        raise UserError(
            "implementations",
            f"got '{unknown[0]}' for a convolution in ncnn",
            allowed=", ".join(MASKS),
            next_step="they are of another version of autotailor; profile again: autotailor profile",
        )
    if names and (date := re.search(r"\d{8}$", version)) and date[0] < MASKS_SINCE.rpartition(".")[2]:
        raise UserError(
            f"ncnn {version} on the device",
            "knows no masks of layers, which files for it name",
            next_step=f"install a newer one there: pip install 'ncnn>={MASKS_SINCE}'",
        )


def has_kernels(layer: Layer) -> bool:
    """Whether masks decide the layer's kernel: convolutions with stored weights, except depthwise ones."""
    if layer.number(19):  # its weights are an input
        return False
    return layer.kind in DENSE or (layer.kind in GROUPED and layer.number(7, 1) != layer.number(0))


def implementations(files: NcnnFiles) -> tuple[str, ...]:
    """The implementations of an operator besides ncnn's own choice; () if no kernel can be chosen."""
    layers = [layer for layer in files.layers() if has_kernels(layer)]
    if not layers:
        return ()
    return tuple(MASKS) if any(map(_takes_winograd, layers)) else ("direct",)


def _takes_winograd(layer: Layer) -> bool:
    """Whether the layer is a 3x3 convolution with stride 1 and without dilation."""
    width, stride, dilation = layer.number(1), layer.number(3, 1), layer.number(2, 1)
    square = (layer.number(11, width), layer.number(13, stride), layer.number(12, dilation))
    return layer.kind == "Convolution" and (width, stride, dilation) == (3, 1, 1) and square == (3, 1, 1)


def with_implementation(files: NcnnFiles, name: str) -> NcnnFiles:
    """The files of an operator with an implementation; "": ncnn's own choice. KeyError for an unknown implementation."""
    return with_masks(files, {layer.name: MASKS[name] for layer in files.layers()}) if name else files


def with_masks(files: NcnnFiles, masks: Mapping[str, int]) -> NcnnFiles:
    """The files with masks at the named layers; layers without a choice of kernels are skipped."""
    layers = [
        replace(layer, parameters=(*layer.parameters, f"{MASK_KEY}={masks[layer.name]}"))
        if layer.name in masks and has_kernels(layer)
        else layer
        for layer in files.layers()
    ]
    return replace(files, param=NcnnFiles.of(layers, b"").param)


def masks_of(files: NcnnFiles) -> dict[str, int]:
    """The masks in a file, by layer."""
    found = {layer.name: layer.number(MASK_KEY) for layer in files.layers()}
    return {name: mask for name, mask in found.items() if mask}


def masks_for(model: bytes, files: NcnnFiles, wanted: Mapping[str, str]) -> dict[str, int]:
    """The masks by layer for files that pnnx made from an ONNX model in fp32.

    wanted: implementations of convolutions, by the name of the value that the ONNX node writes. pnnx keeps the weights, but no
    names: a layer matches the convolution with equal weights. A convolution whose weights pnnx changed gets no mask.
    """
    by_weights: dict[bytes, list[str]] = {}
    for value, weights in _convolutions(onnx.load_from_string(model).graph):
        if value in wanted:
            by_weights.setdefault(weights, []).append(value)
    layers = list(files.layers())
    masks: dict[str, int] = {}
    for layer, content in zip(layers, weights_of(layers, files.bin), strict=True):
        if has_kernels(layer) and (values := by_weights.get(content[FLAG_BYTES:][: 4 * layer.number(6)])):
            masks[layer.name] = MASKS[wanted[values.pop(0)]]
    return masks


def _convolutions(graph: onnx.GraphProto) -> Iterator[tuple[str, bytes]]:
    """The value that each convolution with stored weights writes, and its weights in ncnn's order."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type in ("Conv", "ConvTranspose") and node.input[1] in stored:
            weights = numpy_helper.to_array(stored[node.input[1]])
            if node.op_type == "ConvTranspose":
                weights = weights.swapaxes(0, 1)
            yield node.output[0], np.ascontiguousarray(weights, np.float32).tobytes()
