"""Layouts of tensors in memory (plain, rows, channels in blocks), bytes of tensors, and peaks in onnxruntime's arena.

A peak is of the bytes in use, for a sequence of requests and releases. The arena of the CPU provider has its default
settings (best fit with coalescing): requests are rounded up to 256 bytes and served from the smallest free chunk that
holds them. The chunk is split only if it is at least twice as large as the request, or if at least 128 MiB would be
left over; a freed chunk is joined with free neighbours. If no chunk fits, the arena is extended: by 1 MiB at first, by
twice as much each time up to 1 GiB, and by twice as much again until the request fits. The bytes in use are the bytes
of whole chunks, including unsplit rests. Weights are not in the arena. Source: onnxruntime, BFCArena, and its own
statistics (`tests/unit/ir/test_arena.py`).
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

ROUNDED_TO_BYTES = 256
FIRST_EXTENSION_BYTES = 2**20
MAX_REST_BYTES = 128 * 2**20
MAX_DOUBLED_BYTES = 2**30
IN_PLACE = frozenset(
    ("Celu", "Clip", "Elu", "HardSigmoid", "LeakyRelu", "LogSoftmax", "Relu", "Selu", "Sigmoid", "Softmax", "Softplus")
).union(("Softsign", "Tanh", "ThresholdedRelu"))
"""Operators whose result may take the memory of their first operand."""


@dataclass(frozen=True, slots=True)
class Request:
    """`tensor` requests memory."""

    tensor: Hashable
    bytes_: int


@dataclass(frozen=True, slots=True)
class Release:
    """`tensor` releases its memory."""

    tensor: Hashable


Event = Request | Release


@dataclass(slots=True)
class _Chunk:
    bytes_: int
    used: bool = False


@dataclass(slots=True)
class Arena:
    """Empty at first. in_use, peak: the arena's statistics [bytes]. extensions: for each, its chunks in address order."""

    in_use: int = 0
    peak: int = 0
    extensions: list[list[_Chunk]] = field(default_factory=list)
    _next_bytes: int = FIRST_EXTENSION_BYTES
    _chunks: dict[Hashable, tuple[list[_Chunk], _Chunk]] = field(default_factory=dict)

    def request(self, tensor: Hashable, bytes_: int) -> None:
        """Allocate a chunk for the tensor; none for a request of 0 bytes."""
        assert tensor not in self._chunks, tensor
        if bytes_ == 0:
            return
        rounded = -(-bytes_ // ROUNDED_TO_BYTES) * ROUNDED_TO_BYTES
        found = self._best_fit(rounded) or self._extend(rounded)
        extension, chunk = self._chunks[tensor] = found
        rest = chunk.bytes_ - rounded
        if chunk.bytes_ >= 2 * rounded or rest >= MAX_REST_BYTES:
            chunk.bytes_ = rounded
            extension.insert(_position(extension, chunk) + 1, _Chunk(rest))
        chunk.used = True
        self.in_use += chunk.bytes_
        self.peak = max(self.peak, self.in_use)

    def release(self, tensor: Hashable) -> None:
        """Free the chunk of a tensor, if it has one."""
        if tensor not in self._chunks:
            return
        extension, chunk = self._chunks.pop(tensor)
        chunk.used = False
        self.in_use -= chunk.bytes_
        at = _position(extension, chunk)
        for neighbour in (at + 1, at - 1):
            if 0 <= neighbour < len(extension) and not extension[neighbour].used:
                chunk.bytes_ += extension[neighbour].bytes_
                extension[neighbour].bytes_ = 0
        extension[:] = [kept for kept in extension if kept.bytes_]

    def _best_fit(self, bytes_: int) -> tuple[list[_Chunk], _Chunk] | None:
        """The smallest free chunk that fits; of equal ones, the lowest address. Later extensions have lower addresses."""
        free = ((e, c) for e in reversed(self.extensions) for c in e if not c.used and c.bytes_ >= bytes_)
        return min(free, key=lambda pair: pair[1].bytes_, default=None)

    def _extend(self, bytes_: int) -> tuple[list[_Chunk], _Chunk]:
        before = self._next_bytes
        while self._next_bytes < bytes_:
            self._next_bytes *= 2
        extension = [_Chunk(self._next_bytes)]
        if self._next_bytes == before:
            self._next_bytes = min(2 * self._next_bytes, MAX_DOUBLED_BYTES)
        self.extensions.append(extension)
        return extension, extension[0]


def _position(extension: list[_Chunk], chunk: _Chunk) -> int:
    """The index of a chunk in its extension, by identity: chunks of one size are equal."""
    return next(at for at, other in enumerate(extension) if other is chunk)


def arena_peak(events: Iterable[Event]) -> int:
    """Peak bytes in use in an initially empty arena."""
    arena = Arena()
    for event in events:
        if isinstance(event, Request):
            arena.request(event.tensor, event.bytes_)
        else:
            arena.release(event.tensor)
    return arena.peak


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
