"""Batches that are read ahead are the same ones, and nothing is left running."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from tasks.data import Batch
from tasks.data.dataset import AHEAD, prefetched

CPU = torch.device("cpu")


def batches(count: int, seen: list[int], fault: Exception | None = None) -> Iterator[Batch]:
    for number in range(count):
        seen.append(number)
        yield torch.full((1, 1, 2, 2), float(number)), torch.tensor([number])
    if fault is not None:
        raise fault


def threads() -> int:
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


def test_the_same_batches_come_in_the_same_order_and_are_read_ahead() -> None:
    seen: list[int] = []
    found: list[tuple[int, int]] = []
    for x_BCHW, y_B in prefetched(batches(6, seen), CPU):
        if not found:
            until = time.monotonic() + 60
            while len(seen) < 1 + AHEAD and time.monotonic() < until:
                time.sleep(0.01)
            assert len(seen) >= 1 + AHEAD
        found.append((int(x_BCHW[0, 0, 0, 0]), int(y_B)))
    assert found == [(number, number) for number in range(6)]
    assert threads() == 0


def test_what_reading_raises_comes_after_the_batches_before_it() -> None:
    found = []
    with pytest.raises(ValueError, match="torn"):
        found += [int(y_B) for _, y_B in prefetched(batches(2, [], ValueError("torn")), CPU)]
    assert threads() == 0


def test_leaving_early_ends_the_thread() -> None:
    seen: list[int] = []
    for _ in prefetched(batches(1000, seen), CPU):
        break
    until = time.monotonic() + 60
    while threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert threads() == 0
    assert len(seen) < 10
