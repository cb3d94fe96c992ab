"""NCNN's two files: `.param`, a text of layers, and `.bin`, their weights in order, without names."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
