"""Stored BatchNorm statistics of SubNets, valid as long as recomputation would give the same."""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable

from profiling_agents.messages import MIB
from tailor_ir import Elastic, Statistics


class KnownStatistics:
    """Statistics by the SubNet's digest; the least recently used make room. For one set of calibration images.

    Statistics of another network, or from before its weights changed, are dropped.
    """

    def __init__(self, limit_mib: float = 64) -> None:
        self._left_bytes = limit_mib * MIB
        self._found: OrderedDict[str, Statistics] = OrderedDict()
        self._network: weakref.ref[Elastic] | None = None
        self._version: Hashable = None
        self._lock = threading.Lock()

    def get(self, elastic: Elastic, digest: str) -> Statistics | None:
        """The stored statistics of this SubNet; None if there are none."""
        with self._lock:
            self._forget_others(elastic)
            found = self._found.get(digest)
            if found is None:
                return None
            self._found.move_to_end(digest)
            return dict(found)

    def put(self, elastic: Elastic, digest: str, statistics: Statistics) -> None:
        """Store the statistics of this SubNet, if there is room for them."""
        with self._lock:
            self._forget_others(elastic)
            if self._version is None:
                return
            self._found[digest] = dict(statistics)
            self._left_bytes -= _bytes(statistics)
            while self._left_bytes < 0:
                self._drop()

    def _forget_others(self, elastic: Elastic) -> None:
        version = elastic.version
        if self._network is None or self._network() is not elastic or self._version != version:
            while self._found:
                self._drop()
            self._network, self._version = weakref.ref(elastic), version

    def _drop(self) -> None:
        _, oldest = self._found.popitem(last=False)
        self._left_bytes += _bytes(oldest)


def _bytes(statistics: Statistics) -> int:
    return sum(tensor.nbytes for tensor in statistics.values())
