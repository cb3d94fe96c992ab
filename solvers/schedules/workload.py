"""Steps with values of given sizes: legal orders, the bytes alive at each moment, and offsets in one block of memory.

The *done* steps of a moment are a bit mask: bit i is step i. In a legal order the set is closed: it contains all steps
that its steps depend on. The bytes alive depend on the set of completed steps, not on their order, so searches go from
mask to mask.

Offsets are for pieces that are in use at different times. The problem is NP-hard, and no placement rule is best for all
inputs. Therefore pieces get offsets one after the other in several sequences, each in the lowest or the tightest gap,
and the smallest block is taken. Source: Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference,
2020 (sequences by size and by breadth).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import or_

Done = int
"""The steps that have run, as a bit mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledStep:
    """reads, writes: values. A value that is written and never read takes memory while the step runs.

    in_place: values whose memory the first written value takes over if this step is their last reader; the preferred one first.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    in_place: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Interval:
    """A piece of memory, in use from its first moment to its last, both included. buffers: all buffers stored there."""

    bytes_: int
    first: int
    last: int
    buffers: tuple[int, ...]


class Workload:
    """Steps in a legal order.

    buffer_of: value -> the buffer that stores it; views of a value share its buffer. bytes_: size of each buffer. kept: buffers
    that stay alive to the end. If no step writes a value, its buffer belongs to the caller and counts as 0 bytes.
    """

    def __init__(
        self, steps: Sequence[ScheduledStep], buffer_of: Sequence[int], bytes_: Sequence[int], kept: Iterable[int] = ()
    ) -> None:
        self.steps, self.kept = tuple(steps), frozenset(kept)
        self.all: Done = (1 << len(self.steps)) - 1
        self.bytes_ = list(bytes_)
        writer = {value: at for at, step in enumerate(steps) for value in step.writes}
        self.before = tuple(_mask(writer[v] for v in step.reads if v in writer) for step in steps)
        assert all(mask < 1 << at for at, mask in enumerate(self.before)), "not a legal order"
        self.after = _transposed(self.before)
        self.after_one = tuple(tuple(bits(mask)) for mask in self.after)
        ancestors: list[Done] = []
        for mask in self.before:
            ancestors.append(reduce(or_, (ancestors[step] for step in bits(mask)), mask))
        self.ancestors = tuple(ancestors)
        self.descendants = _transposed(self.ancestors)
        callers = {buffer for value, buffer in enumerate(buffer_of) if value not in writer}
        self.users = [0] * len(bytes_)  # the steps that write to a buffer or read from it
        self.producer: dict[int, int] = {}  # buffer -> the first step that writes to it
        self._touched: list[tuple[int, ...]] = []
        self._made: list[tuple[int, ...]] = []
        for at, step in enumerate(steps):
            written = dict.fromkeys(buffer_of[value] for value in step.writes)
            made = tuple(b for b in written if not self.users[b] and b not in callers)
            self.producer.update((buffer, at) for buffer in made)
            touched = {buffer_of[value] for value in (*step.reads, *step.writes)}
            for buffer in touched:
                self.users[buffer] |= 1 << at
            self._made.append(made)
            self._touched.append(tuple(sorted(b for b in touched if b in self.producer)))
        self._grown = [sum(self.bytes_[buffer] for buffer in made) for made in self._made]
        self._in_place = [self._takes_over(step, made, buffer_of) for step, made in zip(steps, self._made, strict=True)]

    def _takes_over(self, step: ScheduledStep, made: tuple[int, ...], buffer_of: Sequence[int]) -> tuple[int, ...]:
        if not made or buffer_of[step.writes[0]] != made[0]:
            return ()
        read = [buffer_of[value] for value in step.reads]
        wanted = [buffer_of[value] for value in step.in_place]
        found = tuple(b for b in wanted if b in self.producer and b not in self.kept and read.count(b) == 1)
        assert all(self.bytes_[buffer] == self.bytes_[made[0]] for buffer in found), "memory of another size"
        return found

    def _freed(self, buffer: int, done: Done) -> bool:
        return not self.users[buffer] & ~done and buffer not in self.kept

    def _taken(self, step: int, after: Done) -> int | None:
        """The buffer whose memory the step takes over, if no step outside `after` still needs it."""
        return next((buffer for buffer in self._in_place[step] if self._freed(buffer, after)), None)

    def run(self, step: int, done: Done, live: int) -> tuple[int, int]:
        """Bytes while a step runs, and after it. live: bytes before it, after the completed steps."""
        after = done | 1 << step
        freed = sum(self.bytes_[buffer] for buffer in self._touched[step] if self._freed(buffer, after))
        taken = self._taken(step, after)
        during = live + self._grown[step] - (self.bytes_[taken] if taken is not None else 0)
        return during, live + self._grown[step] - freed

    def ready(self, done: Done, goal: Done) -> Done:
        """The steps of the goal that can run next."""
        return _mask(step for step in bits(goal & ~done) if not self.before[step] & ~done)

    def ready_after(self, step: int, ready: Done, done: Done, goal: Done) -> Done:
        """The steps that are ready after `step` was run. ready: before it. done: completed steps, including `step`."""
        follows = _mask(later for later in self.after_one[step] if not self.before[later] & ~done)
        return ready & ~(1 << step) | follows & goal

    def live(self, done: Done) -> int:
        """Bytes alive after some steps."""
        made = (buffer for buffer, step in self.producer.items() if done >> step & 1)
        return sum(self.bytes_[buffer] for buffer in made if not self._freed(buffer, done))

    def peak(self, order: Iterable[int], done: Done = 0) -> int:
        """The peak bytes of an order that begins after the completed steps `done`."""
        live = most = self.live(done)
        for step in order:
            assert not self.before[step] & ~done, "not a legal order"
            during, live = self.run(step, done, live)
            most, done = max(most, during), done | 1 << step
        return most

    def least_during(self, step: int) -> int:
        """A lower bound of the bytes while a step runs, in any order: values made before it that it or a later step reads."""
        needed = self.descendants[step] | 1 << step
        held = sum(
            self.bytes_[buffer]
            for buffer, producer in self.producer.items()
            if self.ancestors[step] >> producer & 1 and (self.users[buffer] & needed or buffer in self.kept)
        )
        free = [buffer for buffer in self._in_place[step] if not self.users[buffer] & self.descendants[step]]
        return held + self._grown[step] - (self.bytes_[free[0]] if free else 0)

    def cuts(self) -> list[Done]:
        """The completed steps after each step that every other step comes before or after, in order; and last, all steps.

        Any order passes through all of them.
        """
        found = []
        for step in range(len(self.steps)):
            if self.ancestors[step] | self.descendants[step] | 1 << step == self.all:
                found.append(self.ancestors[step] | 1 << step)
        return [*found, self.all] if not found or found[-1] != self.all else found

    def intervals(self, order: Sequence[int]) -> list[Interval]:
        """The pieces of memory of an order; values written in place share one piece. Moments are positions in the order."""
        pieces: dict[int, tuple[list[int], list[int]]] = {}  # buffer -> moments and buffers of its piece
        done = 0
        found: list[tuple[list[int], list[int]]] = []
        for at, step in enumerate(order):
            done |= 1 << step
            taken = self._taken(step, done)
            for buffer in self._made[step]:
                if taken is not None and buffer == self._made[step][0]:
                    pieces[buffer] = pieces[taken]
                else:
                    pieces[buffer] = ([], [])
                    found.append(pieces[buffer])
                pieces[buffer][1].append(buffer)
            for buffer in self._touched[step]:
                pieces[buffer][0].append(at)
        end = len(order) - 1
        return [
            Interval(
                self.bytes_[buffers[0]],
                moments[0],
                end if self.kept.intersection(buffers) else moments[-1],
                tuple(buffers),
            )
            for moments, buffers in found
        ]


def _mask(steps: Iterable[int]) -> int:
    mask = 0
    for step in steps:
        mask |= 1 << step
    return mask


def bits(mask: int) -> Iterator[int]:
    """The positions of the set bits of a mask."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _transposed(masks: Sequence[int]) -> tuple[int, ...]:
    found = [0] * len(masks)
    for at, mask in enumerate(masks):
        for step in bits(mask):
            found[step] |= 1 << at
    return tuple(found)


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
