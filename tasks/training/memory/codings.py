"""Activations in few bits, from the forward pass to the backward pass.

| coding | bits | of which values | what is lost |
|---|---|---|---|
| gate | 1 | outputs of ReLU and its like, where the backward pass asks only whether a gradient passes | nothing |
| window offsets | 8 | the place of each maximum in its window, instead of an index of 64 bits | nothing |
| groups of 8 bits | 8.25 | all others | rounding, to a 255th of the range of 256 neighbours |
| groups of 4 bits | 4.25 | all others | rounding, to a 15th of that range |

Source of the groups: ActNN (ICML 2021). All work goes in chunks that fit a core's cache, so that the transient
memory is small.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

GROUP = 256
CHUNK = 2**18
"""Elements that are coded at once."""
SMALLEST_RANGE = 1e-30
Bits = Literal[4, 8]


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, CHUNK):
        yield start, min(start + CHUNK, count)


def gate_bytes(count: int) -> int:
    """Size of the gates of `count` elements [bytes]."""
    return -(-count // 8)


@dataclass(frozen=True, slots=True)
class Gates:
    """Whether each element of a tensor lies strictly between two bounds; one bit each."""

    packed: Tensor
    shape: torch.Size

    @staticmethod
    def of(value: Tensor, lower: float, upper: float) -> "Gates":
        """value: any shape; a gradient passes where lower < value < upper."""
        flat = value.reshape(-1)
        packed = torch.empty(gate_bytes(len(flat)), dtype=torch.uint8)
        for start, end in _chunks(len(flat)):
            part = flat[start:end]
            inside = part > lower
            if upper != float("inf"):
                inside &= part < upper
            packed[start // 8 : gate_bytes(end)] = torch.from_numpy(np.packbits(inside.numpy()))
        return Gates(packed, value.shape)

    def times(self, gradient: Tensor, into: Tensor | None = None) -> Tensor:
        """The gradient where it passes, elsewhere 0; same shape. into: a contiguous tensor that takes it, maybe
        `gradient` itself."""
        flat = gradient.reshape(-1)
        passed = torch.empty(len(flat), dtype=gradient.dtype) if into is None else into.view(-1)
        for start, end in _chunks(len(flat)):
            bits = np.unpackbits(self.packed[start // 8 : gate_bytes(end)].numpy(), count=end - start)
            torch.mul(flat[start:end], torch.from_numpy(bits), out=passed[start:end])
        return passed.view(self.shape)


def group_bytes(count: int, bits: Bits) -> int:
    """Size of `count` elements in groups [bytes]."""
    groups = -(-count // GROUP)
    return groups * (GROUP * bits // 8 + 8)


@dataclass(frozen=True, slots=True)
class CodedGroups:
    """A tensor of floats as 8 or 4 bits an element.

    codes: uint8, two elements in one where they have 4 bits. least, step: float32 (groups, 1), of each group of 256 neighbours.
    """

    codes: Tensor
    least: Tensor
    step: Tensor
    shape: torch.Size
    bits: Bits

    @staticmethod
    def of(value: Tensor, bits: Bits) -> "CodedGroups":
        """value: float32, any shape."""
        flat = value.reshape(-1)
        groups = -(-len(flat) // GROUP)
        codes = torch.empty(groups * GROUP * bits // 8, dtype=torch.uint8)
        least, step = torch.empty(groups, 1), torch.empty(groups, 1)
        whole = len(flat) - len(flat) % GROUP
        for start, end in [*_chunks(whole), *([(whole, len(flat))] if whole < len(flat) else [])]:
            part = flat[start:end]
            if end % GROUP:
                part = torch.cat([part, part[-1:].expand(GROUP - end % GROUP)])
            rows = slice(start // GROUP, -(-end // GROUP))
            part = part.view(-1, GROUP)
            low, high = torch.aminmax(part, dim=1, keepdim=True)
            width = (high - low).div_(2**bits - 1).clamp_(min=SMALLEST_RANGE)
            least[rows], step[rows] = low, width
            code = (part - low).div_(width).round_().to(torch.uint8).view(-1)
            if bits == 4:
                code = code[::2] | (code[1::2] << 4)
            first = start * bits // 8
            codes[first : first + len(code)] = code
        return CodedGroups(codes, least, step, value.shape, bits)

    def value(self) -> Tensor:
        """The tensor, float32, rounded."""
        decoded = torch.empty(self.shape.numel())
        for start, end in _chunks(len(decoded)):
            rows = slice(start // GROUP, -(-end // GROUP))
            code = self.codes[start * self.bits // 8 : rows.stop * GROUP * self.bits // 8]
            if self.bits == 4:
                code = torch.stack([code & 15, code >> 4], dim=1)
            part = code.view(-1, GROUP).to(torch.float32).mul_(self.step[rows]).add_(self.least[rows])
            decoded[start:end] = part.view(-1)[: end - start]
        return decoded.view(self.shape)


@dataclass(frozen=True, slots=True)
class CodedWindows:
    """Windows of a max-pooling over an image of `height` × `width` pixels."""

    width: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def _corners(self, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        top = (torch.arange(rows) * self.stride[0] - self.padding[0]).view(-1, 1)
        left = (torch.arange(columns) * self.stride[1] - self.padding[1]).view(1, -1)
        return top, left

    def offsets(self, indices: Tensor) -> Tensor:
        """Places in windows, uint8 (B, C, H, W), of indices into the image, int64 (B, C, H, W)."""
        top, left = self._corners(*indices.shape[-2:])
        found = torch.empty(indices.shape, dtype=torch.uint8)
        for sample, index in zip(found, indices, strict=True):
            row = torch.div(index, self.width, rounding_mode="floor")
            column = index - row * self.width
            down, right = (row - top) // self.dilation[0], (column - left) // self.dilation[1]
            sample.copy_(down * self.kernel[1] + right)
        return found

    def indices(self, offsets: Tensor) -> Tensor:
        """The inverse of `offsets`."""
        top, left = self._corners(*offsets.shape[-2:])
        found = torch.empty(offsets.shape, dtype=torch.int64)
        for index, sample in zip(found, offsets, strict=True):
            place = sample.to(torch.int64)
            down = torch.div(place, self.kernel[1], rounding_mode="floor")
            row = top + down * self.dilation[0]
            column = left + (place - down * self.kernel[1]) * self.dilation[1]
            index.copy_(row * self.width + column)
        return found
