"""Layouts of tensors in memory: plain, rows, channels in blocks; and the bytes that a tensor takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

Layout = Literal["plain", "blocked", "whole", "many", "rows", "im2col"]
"""The layout of a tensor in memory: as it is; channels padded to whole blocks; the same, but only where they fill their blocks,
or where they fill at least one; all axes but the last as one; the patches of a convolution, for the time of its step."""

SEGMENT_BYTES = 4 * 128 * 128  # im2col of as many positions as one step of the matrix product takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """channel_block: channels that lie side by side (onnxruntime: 16 with AVX-512 or NEON, 8 with AVX2); 1: no blocks.

    same_shape: a tensor takes the place of one that is no longer read and has the same shape, and no other is freed
    in between (onnxruntime's "memory reuse"); otherwise everything is freed when it is read for the last time.
    """

    channel_block: int = 16
    same_shape: bool = True


ONNXRUNTIME = Rules()


def in_blocks(channels: int, layout: Layout, rules: Rules) -> bool:
    """Whether a tensor of this layout and number of channels lies in blocks."""
    if layout == "whole":
        return channels % rules.channel_block == 0
    return layout == "blocked" or (layout == "many" and channels >= rules.channel_block)


def laid_out(shape: Sequence[int], layout: Layout, rules: Rules) -> tuple[int, ...]:
    """The shape with the padding that its layout asks for."""
    if len(shape) > 1 and in_blocks(shape[1], layout, rules):
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


def stored_shape(shape: Sequence[int], layout: Layout, rules: Rules) -> tuple[int, ...]:
    """The shape in which it is stored."""
    return (prod(shape[:-1]), shape[-1]) if layout == "rows" else laid_out(shape, layout, rules)
