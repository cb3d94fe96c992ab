"""Offsets in one block of memory for pieces that are in use at different times.

The problem is NP-hard, and no placement rule is best for all inputs. Therefore pieces are placed one after the other in several
sequences, each into the lowest or the tightest gap, and the smallest block is taken. Source: Pisarchyk and Lee, Efficient
Memory Management for Deep Neural Net Inference, 2020 (sequences by size and by breadth).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from solvers.schedules.workload import Interval

ALIGNED_TO_BYTES = 64

SEQUENCES: tuple[Callable[[Interval], tuple[int, ...]], ...] = (
    lambda piece: (-piece.bytes_, piece.first),
    lambda piece: (-piece.bytes_ * (1 + piece.last - piece.first), piece.first),
    lambda piece: (piece.first - piece.last, -piece.bytes_),
    lambda piece: (piece.first, -piece.bytes_),
    lambda piece: (-piece.last, -piece.bytes_),
)
GAPS: tuple[Callable[[int, int], tuple[int, int]], ...] = (
    lambda offset, bytes_: (offset, bytes_),
    lambda offset, bytes_: (bytes_, offset),
)


@dataclass(frozen=True, slots=True)
class Placement:
    """offsets: of each piece [bytes]. bound_bytes: the largest sum of sizes in use at once; no block can be smaller."""

    offsets: tuple[int, ...]
    block_bytes: int
    bound_bytes: int

    @property
    def optimal(self) -> bool:
        return self.block_bytes == self.bound_bytes


def place(pieces: Sequence[Interval]) -> Placement:
    """Aligned offsets at which no two pieces overlap that are in use at the same time."""
    sizes = [-(-piece.bytes_ // ALIGNED_TO_BYTES) * ALIGNED_TO_BYTES for piece in pieces]
    bound = most_at_once(pieces, sizes)
    best: Placement | None = None
    for sequence, gap in product(SEQUENCES, GAPS):
        offsets = _placed(pieces, sizes, sequence, gap)
        block = max((offset + size for offset, size in zip(offsets, sizes, strict=True)), default=0)
        if best is None or block < best.block_bytes:
            best = Placement(tuple(offsets), block, bound)
        if block == bound:
            break
    assert best is not None
    return best


def most_at_once(pieces: Sequence[Interval], sizes: Sequence[int]) -> int:
    """The largest sum of sizes in use at one moment."""
    changes: dict[int, int] = {}
    for piece, size in zip(pieces, sizes, strict=True):
        changes[piece.first] = changes.get(piece.first, 0) + size
        changes[piece.last + 1] = changes.get(piece.last + 1, 0) - size
    now = most = 0
    for _, change in sorted(changes.items()):
        now += change
        most = max(most, now)
    return most


def _placed(
    pieces: Sequence[Interval],
    sizes: Sequence[int],
    sequence: Callable[[Interval], tuple[int, ...]],
    gap: Callable[[int, int], tuple[int, int]],
) -> list[int]:
    offsets = [0] * len(pieces)
    placed: list[int] = []
    for at in sorted(range(len(pieces)), key=lambda index: sequence(pieces[index])):
        piece = pieces[at]
        beside = sorted(
            (offsets[other], sizes[other])
            for other in placed
            if pieces[other].first <= piece.last and piece.first <= pieces[other].last
        )
        gaps, top = [], 0
        for offset, size in beside:
            if offset - top >= sizes[at]:
                gaps.append((*gap(top, offset - top), top))
            top = max(top, offset + size)
        offsets[at] = min(gaps)[-1] if gaps else top
        placed.append(at)
    return offsets
