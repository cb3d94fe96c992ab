"""Layouts of tensors in memory (plain, rows, channels in blocks), and the bytes of a tensor."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

Layout = Literal["plain", "blocked", "whole", "aligned", "many", "read", "rows", "im2col"]
"""The layout of a tensor in memory. plain: unchanged. blocked: channels padded to whole blocks. whole: in blocks only if the
channels fill them. aligned: in blocks only if the channels are a multiple of four. many: in blocks only if they also fill at
least one block. read: for the result of a convolution, in blocks only if the channels that it reads are a multiple of four or
fewer than a block. rows: all axes but the last as one. im2col: the patches of a convolution, while its step runs.
"""

ALIGNED = 4  # convolutions on blocks read a multiple of this many channels. Source: onnxruntime, NchwcTransformer

SEGMENT_BYTES = 4 * 128 * 128  # im2col of as many positions as one step of the matrix product takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """channel_block: number of channels stored side by side (onnxruntime: 16 with AVX-512 or NEON, 8 with AVX2); 1: no blocks.

    same_shape: a tensor reuses the memory of a tensor of the same shape that is no longer read, and such memory is not freed in
    between (onnxruntime's "memory reuse"); otherwise everything is freed after its last read.

    planned: each SubNet runs in the order with the least peak, as files of `tailor_ir.memory.planned_file` do, and everything
    is freed after its last read.

    parameter_bytes: bytes of a parameter while the network is loaded.
    """

    channel_block: int = 16
    same_shape: bool = True
    planned: bool = False
    parameter_bytes: int = 4

    @property
    def reuses(self) -> bool:
        """Whether memory of a tensor is kept for the next tensor of its shape."""
        return self.same_shape and not self.planned


ONNXRUNTIME = Rules()


def in_blocks(channels: int, layout: Layout, rules: Rules) -> bool:
    """Whether a tensor with this layout and number of channels is stored in blocks. channels: for "read", the channels read."""
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
    """The layout of a convolution's result, decided by the channels that it reads; a depthwise one writes as many."""
    return "aligned" if groups > 1 else "read"


def laid_out(shape: Sequence[int], layout: Layout, rules: Rules, deciding: int | None = None) -> tuple[int, ...]:
    """The shape with the padding that its layout requires. deciding: the number of channels that decides; None: its own."""
    if len(shape) > 1 and in_blocks(shape[1] if deciding is None else deciding, layout, rules):
        block = rules.channel_block
        return (shape[0], -(-shape[1] // block) * block, *shape[2:])
    return tuple(shape)


def patches_bytes(shape: Sequence[int], groups: int) -> int:
    """Bytes of a convolution's patches. shape: (filters, channels, *kernel) of its weights, then its result's positions.

    One segment of positions at a time, unless there are more filters than positions. Source: onnxruntime, MlasConvPrepare.
    """
    filters, positions = shape[0] // groups, shape[2 + (len(shape) - 2) // 2 :]
    patch = shape[1 : -len(positions)]
    return 4 * prod(positions) * prod(patch) if filters > prod(positions) else SEGMENT_BYTES


def stored_shape(shape: Sequence[int], layout: Layout, rules: Rules, deciding: int | None = None) -> tuple[int, ...]:
    """The shape in which a tensor is stored."""
    return (prod(shape[:-1]), shape[-1]) if layout == "rows" else laid_out(shape, layout, rules, deciding)
