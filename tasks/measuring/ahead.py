"""Items in batches, and preparation of the next batch while the device works on the last."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from profiling_agents.messages import Capabilities
from profiling_agents.sensing.machine import running_system

T = TypeVar("T")
U = TypeVar("U")


def pieces(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """`size` items at a time, in order; the last piece may have fewer."""
    return (items[first : first + size] for first in range(0, len(items), size))


def ahead(items: Iterable[T], prepare: Callable[[T], U], device: Capabilities) -> Iterator[U]:
    """`map(prepare, items)`; the next item is prepared in a thread while the device works on the last.

    If the device is part of this machine, nothing is prepared ahead: it would share memory and caches with the measurements.
    """
    if device.running_system is not None and device.running_system == running_system():
        yield from map(prepare, items)
        return
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting: Future[U] | None = None
        for item in items:
            following = pool.submit(prepare, item)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()
