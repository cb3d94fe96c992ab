"""Functions that run in threads of their own beside a test or a measurement; what fails in them is raised."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Work = Callable[[], object]


@contextmanager
def beside(*works: Work, over: threading.Event | None = None) -> Iterator[None]:
    """Call each function in a thread of its own while the block runs. The block's end waits for all of them.

    over: set where the block ends, and where a function fails, so that functions that look at it end. Raises, after a block
    that did not fail itself, the first error of a function.
    """
    errors, ends = list[BaseException](), over or threading.Event()

    def run(work: Work) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the block ends
            errors.append(error)
            ends.set()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def all_at_once(*works: Work) -> None:
    """Call each function in a thread of its own, and wait for all of them. Raises the first error of a function."""
    with beside(*works):
        pass
