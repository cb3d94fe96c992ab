"""A process that makes load: it computes, or streams through memory, for a share of each period.

    python -m adaptive_runtime.traces.burner cpu|bandwidth

Lines of standard input are shares from 0 to 1; the last one holds. The process ends when its input ends, so also when whoever
started it dies.
"""

import itertools
import os
import select
import sys
import time
from collections.abc import Callable, Mapping

import numpy as np

from adaptive_runtime.shares import clipped_share

PERIOD_S = 0.02
STREAM_MIB = 64
PIECE = 1 << 18
"""Values of one copy, 2 MiB: short beside the period."""


def computing() -> Callable[[], object]:
    """Arithmetic that needs no memory."""
    return lambda: sum(range(1000))


def streaming() -> Callable[[], object]:
    """Copies through a memory that no cache holds."""
    source = np.ones(STREAM_MIB << 17)
    target = np.zeros_like(source)
    pieces = itertools.cycle(range(0, len(source), PIECE))

    def piece() -> None:
        start = next(pieces)
        np.copyto(target[start : start + PIECE], source[start : start + PIECE])

    return piece


WORK: Mapping[str, Callable[[], Callable[[], object]]] = {"cpu": computing, "bandwidth": streaming}


class ToldShare:
    """The share that standard input told last."""

    def __init__(self) -> None:
        self.share, self._begun = 0.0, b""

    def wait(self, seconds: float) -> bool:
        """Wait for a new share so long at most; False: the input has ended."""
        ready, _, _ = select.select([0], [], [], max(0.0, seconds))
        if not ready:
            return True
        read = os.read(0, 1 << 12)
        *lines, self._begun = (self._begun + read).split(b"\n")
        if lines:
            self.share = clipped_share(float(lines[-1]))
        return bool(read)


def main(kind: str) -> None:
    work, shares = WORK[kind](), ToldShare()
    print("ready", flush=True)
    alive = True
    while alive:
        start = time.monotonic()
        until = start + shares.share * PERIOD_S
        while time.monotonic() < until:
            work()
        alive = shares.wait(start + PERIOD_S - time.monotonic() if shares.share else PERIOD_S * 50)


if __name__ == "__main__":
    main(sys.argv[1])
