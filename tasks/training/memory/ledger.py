"""Bytes and seconds of a program before it runs: which tensors are alive, and what the disk is doing meanwhile."""

from collections import Counter
from collections.abc import Hashable


class Ledger:
    """Adds up bytes by tensor lifetimes, and seconds with one disk that works beside the operators."""

    def __init__(self) -> None:
        self.bytes = 0
        self.peak = 0
        self.seconds = 0.0
        self._sizes: dict[Hashable, int] = {}
        self._references: Counter[Hashable] = Counter()
        self._disk_free_s = 0.0
        self._ready_s: dict[Hashable, float] = {}

    def take(self, key: Hashable, size: int) -> None:
        """A tensor begins to live."""
        if self._references[key] == 0:
            self._sizes[key] = size
            self.bytes += size
            self.peak = max(self.peak, self.bytes)
        self._references[key] += 1

    def free(self, key: Hashable) -> None:
        """A reference to a tensor ends; with the last one, its life."""
        self._references[key] -= 1
        if self._references[key] == 0:
            self.bytes -= self._sizes.pop(key)

    def alone(self, key: Hashable) -> bool:
        """Whether a tensor has one reference."""
        return self._references[key] == 1

    def lives(self, key: Hashable) -> bool:
        return self._references[key] > 0

    def work(self, seconds: float, spike: int = 0) -> None:
        """Work that needs bytes for itself while it runs."""
        self.seconds += seconds
        self.peak = max(self.peak, self.bytes + spike)

    def disk(self, key: Hashable, seconds: float) -> None:
        """Work of the disk for a tensor begins when the disk is free."""
        self._disk_free_s = max(self._disk_free_s, self.seconds) + seconds
        self._ready_s[key] = self._disk_free_s

    def wait(self, key: Hashable) -> None:
        """Until the disk has done the work for a tensor."""
        self.seconds = max(self.seconds, self._ready_s.pop(key))
