"""Threads that ask a deployed model while another thread switches its SubNets."""

import threading
from collections.abc import Callable
from functools import partial

import numpy as np

from adaptive_runtime import DeployedModel, ModelAnswer
from tests.support.threads import all_at_once, beside

Answers = list[tuple[int, ModelAnswer]]
"""Each with the number of the image that was asked for."""


def answers_while_switched(
    model: DeployedModel,
    x_NCHW: np.ndarray,
    threads: int,
    enough: Callable[[Answers], bool],
    switch: Callable[[], None],
) -> Answers:
    """The answers to images, one at a time, of threads each of which asks until it has enough.

    switch: called again and again meanwhile, in a thread of its own.
    """
    found: list[Answers] = [[] for _ in range(threads)]
    over = threading.Event()

    def keep_switching() -> None:
        while not over.is_set():
            switch()

    def ask(mine: Answers) -> None:
        while not (over.is_set() or enough(mine)):
            at = len(mine) % len(x_NCHW)
            mine.append((at, model.infer(x_NCHW[at : at + 1])))

    with beside(keep_switching, over=over):
        all_at_once(*(partial(ask, mine) for mine in found))
    return [pair for mine in found for pair in mine]
