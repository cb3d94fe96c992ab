"""Preparing the next piece of work while the last is in use."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def ahead(items: Iterable[T], prepare: Callable[[T], U]) -> Iterator[U]:
    """`map(prepare, items)`, where the next is prepared in a thread while the caller works with the last."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting: Future[U] | None = None
        for item in items:
            following = pool.submit(prepare, item)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()
