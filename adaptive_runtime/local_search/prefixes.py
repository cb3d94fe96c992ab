"""Evaluation of many SubNets on the same images: depth-first over the tree of common prefixes, without repeated runs.

Features are kept only at depths where a later SubNet branches off, and are freed after the last such SubNet. Source:
AdaptiveNet (MobiCom 2023) §5.

Legend: n SubNets, N samples, K classes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.local_search.space import Floats, Path

Array = NDArray[np.float32]
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

    def __init__(self, run: RunSegment, ms_E: Floats, cap_bytes: float = np.inf) -> None:
        self._run, self._ms, self._cap_bytes = run, ms_E, cap_bytes
        self.counts = RunCounts()

    def logits(self, paths: Sequence[Path], batches: Sequence[Array]) -> Iterator[tuple[int, Array]]:
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

    def _through(self, path: Path, kept: dict[int, list[Array]], reached: int, wanted: set[int]) -> list[Array]:
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
        while sum(map(_bytes, list(kept.values())[1:])) > self._cap_bytes:
            del kept[min(place for place in kept if place)]

    def _count_alone(self, path: Path, batches: int) -> None:
        self.counts.alone += batches * len(path)
        self.counts.alone_ms += batches * float(self._ms[list(path)].sum())


def most_for_time(paths: Sequence[Path], worth: Floats, ms_E: Floats, most: int) -> list[Path]:
    """Greedy choice: the first SubNet, then up to `most` in all, each time the one with the most worth per added time.

    worth (n,): of each SubNet. A SubNet adds the time of the segments that no chosen one reaches by the same path. TIME_ANYWAY
    times its latency is added; otherwise SubNets that differ only in a last segment would always come first.
    """
    left, chosen = list(range(1, len(paths))), list(paths[:1])
    ways = {path[:depth] for path in chosen for depth in range(1, len(path) + 1)}

    def cost_ms(path: Path) -> float:
        own_ms = sum(float(ms_E[one]) for depth, one in enumerate(path, 1) if path[:depth] not in ways)
        return own_ms + TIME_ANYWAY * float(ms_E[list(path)].sum())

    while left and len(chosen) < most:
        best = max(left, key=lambda at: worth[at] / cost_ms(paths[at]))
        left.remove(best)
        chosen.append(paths[best])
        ways.update(paths[best][:depth] for depth in range(1, len(paths[best]) + 1))
    return chosen


def _common(one: Path, other: Path) -> int:
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


def _bytes(values: Sequence[Array]) -> int:
    return sum(value.nbytes for value in values)
