"""The search space on a device: SubNets as paths through segments, and their evaluation by common prefixes.

The space counts and samples paths, has ranges of latency, and finds the best path by sums of scores. A path is a tuple
of positions of segments in order. The tree is walked depth-first, without repeated runs, on the same images. Features
are kept only at depths from which a later SubNet branches off, and are freed after the last such SubNet. Source:
AdaptiveNet (MobiCom 2023) §5.

Legend: E segments, B boundaries, T cells of latency, n SubNets, N samples, K classes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Array, Values
from adaptive_runtime.bundle.bundles import BlocksManifest

SegmentPath = tuple[int, ...]
CELLS = 2048
MOST_TRIES = 50
"""Draws for one path in a range; paths outside it are rejected. The cells keep rejections rare."""


class SegmentSpace:
    """The graph of segments. starts_E, ends_E: boundaries; 0 is the input, the last one the output."""

    def __init__(self, starts_E: Sequence[int], ends_E: Sequence[int]) -> None:
        self.starts, self.ends = tuple(starts_E), tuple(ends_E)
        self.last = max(ends_E)
        self.leaving: tuple[tuple[int, ...], ...] = tuple(
            tuple(one for one, start in enumerate(self.starts) if start == boundary) for boundary in range(self.last)
        )

    @classmethod
    def of(cls, manifest: BlocksManifest) -> Self:
        """The space of a bundle."""
        return cls([one.start for one in manifest.segments], [one.end for one in manifest.segments])

    @cached_property
    def ways_B(self) -> tuple[int, ...]:
        """For each boundary the exact number of paths from there to the output."""
        found = [1]
        for boundary in reversed(range(self.last)):
            found.append(sum(found[self.last - self.ends[one]] for one in self.leaving[boundary]))
        return tuple(reversed(found))

    @property
    def count(self) -> int:
        """The number of SubNets."""
        return self.ways_B[0]

    def sample(self, rng: np.random.Generator) -> SegmentPath:
        """A uniformly drawn path."""
        at, found = 0, list[int]()
        while at < self.last:
            ways = np.array([self.ways_B[self.ends[one]] for one in self.leaving[at]], float)
            found.append(self.leaving[at][_drawn(ways, rng)])
            at = self.ends[found[-1]]
        return tuple(found)

    def all_paths(self, at: int = 0) -> Iterator[SegmentPath]:
        """Every path from a boundary on."""
        if at == self.last:
            yield ()
            return
        for one in self.leaving[at]:
            yield from ((one, *rest) for rest in self.all_paths(self.ends[one]))

    def replacements(self, path: SegmentPath) -> list[SegmentPath]:
        """All paths that branch off at one boundary of a path and rejoin it as soon as possible."""
        found: dict[SegmentPath, None] = {}
        onward = {self.starts[one]: at for at, one in enumerate(path)} | {self.last: len(path)}
        for at, own in enumerate(path):
            for other in self.leaving[self.starts[own]]:
                if other != own:
                    between = self._joining(self.ends[other], onward)
                    rest = path[onward[self.ends[between[-1]] if between else self.ends[other]] :]
                    found[(*path[:at], other, *between, *rest)] = None
        return list(found)

    def _joining(self, at: int, onward: dict[int, int]) -> list[int]:
        """The shortest steps from a boundary to one on the path."""
        found = []
        while at not in onward:
            found.append(min(self.leaving[at], key=lambda one: self.ends[one]))
            at = self.ends[found[-1]]
        return found


class Labels(NamedTuple):
    """Non-dominated partial paths to one boundary: their last segment, and the index of the previous label."""

    ms: NDArray[Any]
    scores: NDArray[Any]
    segments: NDArray[Any]
    before: NDArray[Any]


def best_front(space: SegmentSpace, scores_E: Values, ms_E: Values, budget_ms: float) -> list[SegmentPath]:
    """The exact Pareto front of paths within a budget by latency and sum of scores, rising in both.

    Empty if the fastest path takes longer. A partial path is dropped if another one is as fast and scores as much, or if its
    fastest completion takes longer than the budget.
    """
    left_ms = _fastest(space, ms_E)
    found: list[Labels] = [Labels(np.zeros(1), np.zeros(1), np.full(1, -1), np.full(1, -1))]
    for boundary in range(1, space.last + 1):
        parts = []
        for one, (start, end) in enumerate(zip(space.starts, space.ends, strict=True)):
            if end == boundary:
                before = found[start]
                size = len(before.ms)
                scored = before.scores + scores_E[one]
                parts.append(Labels(before.ms + ms_E[one], scored, np.full(size, one), np.arange(size)))
        joined = Labels(*map(np.concatenate, zip(*parts, strict=True)))
        found.append(_unbeaten(joined, budget_ms - left_ms[boundary]))
    return [_path(space, found, place) for place in range(len(found[-1].ms))]


def _fastest(space: SegmentSpace, ms_E: Values) -> Values:
    """The latency of the fastest path from each boundary to the output [ms], (B,)."""
    found = np.zeros(space.last + 1)
    for boundary in reversed(range(space.last)):
        found[boundary] = min(ms_E[one] + found[space.ends[one]] for one in space.leaving[boundary])
    return found


def _unbeaten(labels: Labels, most_ms: float) -> Labels:
    order = np.lexsort((-labels.scores, labels.ms))
    order = order[labels.ms[order] <= most_ms * (1 + 1e-12)]
    scores = labels.scores[order]
    before = np.concatenate([[-np.inf], np.maximum.accumulate(scores)[:-1]]) if len(scores) else scores
    kept = order[scores > before]
    return Labels(*(column[kept] for column in labels))


def _path(space: SegmentSpace, found: Sequence[Labels], place: int) -> SegmentPath:
    boundary, segments = space.last, list[int]()
    while boundary:
        segments.append(int(found[boundary].segments[place]))
        place, boundary = int(found[boundary].before[place]), space.starts[segments[-1]]
    return tuple(reversed(segments))


class LatencyRange:
    """The paths with a latency between two limits, inclusive; they are drawn uniformly.

    Latencies are counted in cells, rounded down. All paths of the range are among the drawn ones; the others are rejected.
    """

    def __init__(self, space: SegmentSpace, ms_E: Values, least_ms: float, most_ms: float) -> None:
        self.space, self.ms, self.least_ms, self.most_ms = space, ms_E, least_ms, most_ms
        cell_ms = most_ms / CELLS
        self._cells = np.floor(ms_E / cell_ms).astype(int)
        self._ways = np.zeros((space.last + 1, CELLS + 1))
        self._ways[space.last, 0] = 1.0
        for boundary in reversed(range(space.last)):
            for one in space.leaving[boundary]:
                if (shift := self._cells[one]) <= CELLS:
                    self._ways[boundary, shift:] += self._ways[space.ends[one], : CELLS + 1 - shift]
        first = max(0, int(least_ms / cell_ms) - space.last - 1)
        self._starts = self._ways[0].copy()
        self._starts[:first] = 0.0

    def has(self, path: SegmentPath) -> bool:
        """Whether a path is in the range."""
        return self.least_ms <= latency_ms(path, self.ms) <= self.most_ms

    def sample(self, rng: np.random.Generator) -> SegmentPath | None:
        """A path in the range; None: the range is empty, or has so few paths that none was drawn."""
        if not self._starts.any():
            return None
        for _ in range(MOST_TRIES):
            path = self._drawn_path(_drawn(self._starts, rng), rng)
            if self.has(path):
                return path
        return None

    def _drawn_path(self, cells: int, rng: np.random.Generator) -> SegmentPath:
        at, found = 0, list[int]()
        while at < self.space.last:
            leaving = self.space.leaving[at]
            left = [cells - self._cells[one] for one in leaving]
            ways = np.array(
                [self._ways[self.space.ends[one], n] if n >= 0 else 0.0 for one, n in zip(leaving, left, strict=True)]
            )
            chosen = _drawn(ways, rng)
            found.append(leaving[chosen])
            at, cells = self.space.ends[leaving[chosen]], left[chosen]
        return tuple(found)


def latency_ms(path: SegmentPath, ms_E: Values) -> float:
    """The sum of the latencies of a path's segments [ms]."""
    return float(ms_E[list(path)].sum())


def mutated(
    space: SegmentSpace, path: SegmentPath, within: LatencyRange, rng: np.random.Generator
) -> SegmentPath | None:
    """Another path in a range: one branch is replaced, and, if that leaves the range, a second one.

    The second branch is the one that changes latency least among those that lead back; None: none does. Source: AdaptiveNet
    (MobiCom 2023) §5, NearbyMutate.
    """
    choices = space.replacements(path)
    if not choices:
        return None
    changed = choices[rng.integers(len(choices))]
    if within.has(changed):
        return changed
    now_ms = latency_ms(changed, within.ms)
    repaired = [one for one in space.replacements(changed) if one != path and within.has(one)]
    return min(repaired, key=lambda one: abs(latency_ms(one, within.ms) - now_ms), default=None)


def _drawn(weights: Values, rng: np.random.Generator) -> int:
    """A position, drawn with a probability proportional to its weight."""
    sums = np.cumsum(weights)
    return int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))


RunSegment = Callable[[int, Array], Array]
"""Output of a segment for one batch."""
TIME_ANYWAY = 1.0


@dataclass(slots=True)
class RunCounts:
    """Runs of segments on batches, as counts and as time [ms] by the segments' latencies.

    alone: the number of runs if each SubNet were run by itself. again: those of `runs` that repeat features without room in
    memory.
    """

    runs: int = 0
    alone: int = 0
    again: int = 0
    run_ms: float = 0.0
    alone_ms: float = 0.0

    @property
    def saved(self) -> float:
        """The share of time that common segments save, by the latencies of segments."""
        return 1 - self.run_ms / self.alone_ms if self.alone_ms else 0.0


class PrefixTree:
    """Runs SubNets together. ms_E: latencies of segments, for the counts.

    cap_bytes: limit of kept features; features beyond it are computed again.
    """

    def __init__(self, run: RunSegment, ms_E: Values, cap_bytes: float = np.inf) -> None:
        self._run, self._ms, self._cap_bytes = run, ms_E, cap_bytes
        self.counts = RunCounts()

    def logits(self, paths: Sequence[SegmentPath], batches: Sequence[Array]) -> Iterator[tuple[int, Array]]:
        """The position of each SubNet and its logits (N, K) for the batches, in order of completion."""
        order = sorted(range(len(paths)), key=lambda number: paths[number])
        ordered = [paths[number] for number in order]
        common = [*(_common(one, other) for one, other in pairwise(ordered)), 0]
        kept: dict[int, list[Array]] = {0: list(batches)}
        reached = 0
        for at, path in enumerate(ordered):
            yield order[at], np.concatenate(self._through(path, kept, reached, _wanted(common[at:])))
            reached = common[at]
            for depth in [depth for depth in kept if depth > reached]:
                del kept[depth]
            self._count_alone(path, len(batches))

    def _through(self, path: SegmentPath, kept: dict[int, list[Array]], reached: int, wanted: set[int]) -> list[Array]:
        """The answers of one SubNet, from the deepest kept features on. reached: depth shared with the previous SubNet."""
        start = max(kept)
        values = kept[start]
        for depth in range(start, len(path)):
            values = [self._run(path[depth], value) for value in values]
            self.counts.runs += len(values)
            self.counts.again += len(values) if depth < reached else 0
            self.counts.run_ms += len(values) * float(self._ms[path[depth]])
            if depth + 1 in wanted and depth + 1 < len(path):
                self._keep(kept, depth + 1, values)
        return values

    def _keep(self, kept: dict[int, list[Array]], depth: int, values: list[Array]) -> None:
        """Keep features; those nearest to the input are dropped first, since they are needed last."""
        kept[depth] = values
        while sum(value.nbytes for own in list(kept.values())[1:] for value in own) > self._cap_bytes:
            del kept[min(place for place in kept if place)]

    def _count_alone(self, path: SegmentPath, batches: int) -> None:
        self.counts.alone += batches * len(path)
        self.counts.alone_ms += batches * float(self._ms[list(path)].sum())


def most_for_time(paths: Sequence[SegmentPath], worth: Values, ms_E: Values, most: int) -> list[SegmentPath]:
    """Greedy choice: the first SubNet, then up to `most` in all, each time the one with the most worth per added time.

    worth (n,): of each SubNet. A SubNet adds the time of the segments that no chosen one reaches by the same path. TIME_ANYWAY
    times its latency is added; otherwise SubNets that differ only in a last segment would always come first.
    """
    left, chosen = list(range(1, len(paths))), list(paths[:1])
    ways = {path[:depth] for path in chosen for depth in range(1, len(path) + 1)}

    def cost_ms(path: SegmentPath) -> float:
        own_ms = sum(float(ms_E[one]) for depth, one in enumerate(path, 1) if path[:depth] not in ways)
        return own_ms + TIME_ANYWAY * float(ms_E[list(path)].sum())

    while left and len(chosen) < most:
        best = max(left, key=lambda at: worth[at] / cost_ms(paths[at]))
        left.remove(best)
        chosen.append(paths[best])
        ways.update(paths[best][:depth] for depth in range(1, len(paths[best]) + 1))
    return chosen


def _common(one: SegmentPath, other: SegmentPath) -> int:
    """The number of first segments that two SubNets have in common."""
    for depth, (own, others) in enumerate(zip(one, other, strict=False)):
        if own != others:
            return depth
    return min(len(one), len(other))


def _wanted(common: Sequence[int]) -> set[int]:
    """The depths of the first SubNet at which a later one branches off, while all between them share the path so far."""
    found, least = set[int](), common[0]
    for depth in common:
        if depth <= least:
            found.add(depth)
            least = depth
        if not least:
            break
    return found
