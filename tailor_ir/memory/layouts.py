"""Layouts of tensors in memory: plain, rows, channels in blocks; and the bytes that a tensor takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

Layout = Literal["plain", "blocked", "whole", "aligned", "many", "read", "rows", "im2col"]
"""The layout of a tensor in memory: as it is; channels padded to whole blocks; the same, but only where the channels fill
their blocks, or are a multiple of four, or both that and enough for a block; the same for the result of a convolution, by the
channels that it reads; all axes but the last as one; the patches of a convolution, for the time of its step."""

ALIGNED = 4  # channels that convolutions on blocks read are multiples of it. Source: onnxruntime, NchwcTransformer

SEGMENT_BYTES = 4 * 128 * 128  # im2col of as many positions as one step of the matrix product takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """channel_block: channels that lie side by side (onnxruntime: 16 with AVX-512 or NEON, 8 with AVX2); 1: no blocks.

    same_shape: a tensor takes the place of one that is no longer read and has the same shape, and no other is freed
    in between (onnxruntime's "memory reuse"); otherwise everything is freed when it is read for the last time.

    planned: each SubNet runs in the order with the least peak, as files of `tailor_ir.memory.planned_file` do, and
    everything is freed when it is read for the last time.

    parameter_bytes: what a parameter takes while the network is loaded.
    """

    channel_block: int = 16
    same_shape: bool = True
    planned: bool = False
    parameter_bytes: int = 4

    @property
    def reuses(self) -> bool:
        """Whether memory of a tensor waits for the next one of its shape."""
        return self.same_shape and not self.planned


ONNXRUNTIME = Rules()


def in_blocks(channels: int, layout: Layout, rules: Rules) -> bool:
    """Whether a tensor of this layout and number of channels lies in blocks. channels: for "read", those that are read."""
    aligned, enough = channels % ALIGNED == 0, channels >= rules.channel_block
    match layout:
        case "blocked":
            return True
        case "whole":
            return channels % rules.channel_block == 0
        case "aligned":
            return aligned
        case "many":
            return aligned and enough
        case "read":
            return aligned or not enough
    return False


def read_as(groups: int) -> Layout:
    """The layout of a convolution's result by the channels that it reads, which a depthwise one has as many of."""
    return "aligned" if groups > 1 else "read"


def laid_out(shape: Sequence[int], layout: Layout, rules: Rules, deciding: int | None = None) -> tuple[int, ...]:
    """The shape with the padding that its layout asks for. deciding: the channels that decide; None: its own."""
    if len(shape) > 1 and in_blocks(shape[1] if deciding is None else deciding, layout, rules):
        block = rules.channel_block
        return (shape[0], -(-shape[1] // block) * block, *shape[2:])
    return tuple(shape)


def patches_bytes(shape: Sequence[int], groups: int) -> int:
    """Bytes of a convolution's patches. shape: (filters, channels, *kernel) of its weights, then its result's positions.

    A segment at a time, unless there are more filters than positions. Source: onnxruntime, MlasConvPrepare.
    """
    filters, positions = shape[0] // groups, shape[2 + (len(shape) - 2) // 2 :]
    patch = shape[1 : -len(positions)]
    return 4 * prod(positions) * prod(patch) if filters > prod(positions) else SEGMENT_BYTES


def stored_shape(shape: Sequence[int], layout: Layout, rules: Rules, deciding: int | None = None) -> tuple[int, ...]:
    """The shape in which it is stored."""
    return (prod(shape[:-1]), shape[-1]) if layout == "rows" else laid_out(shape, layout, rules, deciding)
