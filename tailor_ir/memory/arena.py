"""How much of onnxruntime's arena is in use at most, for a given sequence of requests and frees.

The arena of the CPU provider with its default settings (best fit with coalescing): requests are rounded up to 256 bytes
and served from the smallest free chunk that holds them; the chunk is split only where it is at least twice as large as the
request, or 128 MiB would be left over; a freed chunk is joined with free neighbours. Where no chunk fits, a region is added:
1 MiB at first, twice as much each time up to 1 GiB, and twice as much again until the request fits. What it has in use is the
sum of its chunks in use, what was not split off included. Weights are no part of it: they have blocks of their own. Source:
onnxruntime, BFCArena, and its own statistics (`tests/ir/test_arena.py`).
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

ROUNDED_TO_BYTES = 256
FIRST_REGION_BYTES = 2**20
MAX_REST_BYTES = 128 * 2**20
MAX_DOUBLED_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class Request:
    """`tensor` asks for memory."""

    tensor: Hashable
    bytes_: int


@dataclass(frozen=True, slots=True)
class Release:
    """`tensor` gives its memory back."""

    tensor: Hashable


Event = Request | Release


@dataclass(slots=True)
class _Chunk:
    bytes_: int
    used: bool = False


@dataclass(slots=True)
class Arena:
    """Empty at first. `in_use`, `peak` [bytes] are its own statistics, `regions` lists of chunks in address order."""

    in_use: int = 0
    peak: int = 0
    regions: list[list[_Chunk]] = field(default_factory=list)
    _next_region: int = FIRST_REGION_BYTES
    _places: dict[Hashable, tuple[list[_Chunk], _Chunk]] = field(default_factory=dict)

    def request(self, tensor: Hashable, bytes_: int) -> None:
        """No bytes take no chunk."""
        assert tensor not in self._places, tensor
        if bytes_ == 0:
            return
        rounded = -(-bytes_ // ROUNDED_TO_BYTES) * ROUNDED_TO_BYTES
        found = self._best_fit(rounded) or self._add_region(rounded)
        region, chunk = self._places[tensor] = found
        rest = chunk.bytes_ - rounded
        if chunk.bytes_ >= 2 * rounded or rest >= MAX_REST_BYTES:
            chunk.bytes_ = rounded
            region.insert(_position(region, chunk) + 1, _Chunk(rest))
        chunk.used = True
        self.in_use += chunk.bytes_
        self.peak = max(self.peak, self.in_use)

    def release(self, tensor: Hashable) -> None:
        """Nothing for a tensor without bytes."""
        if tensor not in self._places:
            return
        region, chunk = self._places.pop(tensor)
        chunk.used = False
        self.in_use -= chunk.bytes_
        at = _position(region, chunk)
        for neighbour in (at + 1, at - 1):
            if 0 <= neighbour < len(region) and not region[neighbour].used:
                chunk.bytes_ += region[neighbour].bytes_
                region[neighbour].bytes_ = 0
        region[:] = [kept for kept in region if kept.bytes_]

    def _best_fit(self, bytes_: int) -> tuple[list[_Chunk], _Chunk] | None:
        """The smallest; of equal ones that with the lowest address. Later regions have lower ones: mappings grow down."""
        free = ((r, c) for r in reversed(self.regions) for c in r if not c.used and c.bytes_ >= bytes_)
        return min(free, key=lambda place: place[1].bytes_, default=None)

    def _add_region(self, bytes_: int) -> tuple[list[_Chunk], _Chunk]:
        before = self._next_region
        while self._next_region < bytes_:
            self._next_region *= 2
        region = [_Chunk(self._next_region)]
        if self._next_region == before:
            self._next_region = min(2 * self._next_region, MAX_DOUBLED_BYTES)
        self.regions.append(region)
        return region, region[0]


def _position(region: list[_Chunk], chunk: _Chunk) -> int:
    """By identity: chunks of the same size are equal."""
    return next(at for at, other in enumerate(region) if other is chunk)


def arena_peak(events: Iterable[Event]) -> int:
    """Bytes in use at most in an arena that was empty before."""
    arena = Arena()
    for event in events:
        if isinstance(event, Request):
            arena.request(event.tensor, event.bytes_)
        else:
            arena.release(event.tensor)
    return arena.peak
