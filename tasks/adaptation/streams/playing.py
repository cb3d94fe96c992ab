"""A method plays a stream: correctness of its answers, window by window. Legend: N images of the stream, B batch."""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tasks.adaptation.streams.players import StreamPlayer
from tasks.base.schemas.streams import StreamEvent, StreamPhase
from tasks.data.drift import DriftSettings, StreamBatch, StreamPlan
from tasks.data.drift.corruptions import CLEAN
from tasks.data.images import resize
from tasks.data.samples import Size

Right = NDArray[np.bool_]
MIXED = "mixed"


class Played:
    """Correctness of a player's answers so far."""

    def __init__(self, window_images: int) -> None:
        self._window_images = window_images
        self.right_N: Right = np.zeros(0, dtype=np.bool_)
        self.events: list[StreamEvent] = []
        self.seconds = 0.0

    @property
    def windows(self) -> tuple[float, ...]:
        """Error of each window [%]; the last one may be shorter."""
        firsts = range(0, len(self.right_N), self._window_images)
        return tuple(error_percent(self.right_N[first : first + self._window_images]) for first in firsts)

    def of_phases(self, phases: Sequence[StreamPhase]) -> tuple[float, ...]:
        """Error of each phase [%]."""
        return tuple(error_percent(self.right_N[one.first : one.first + one.images]) for one in phases)


def error_percent(right_N: Right) -> float:
    """Share of wrong answers [%]."""
    return 100 * (1 - float(right_N.mean()))


def play(
    player: StreamPlayer,
    batches: Iterable[StreamBatch],
    size: Size,
    window_images: int,
    after: Callable[[Played, int], None],
) -> Played:
    """Play all batches, at (height, width). `after` is called after each batch with the state and the number of its images."""
    played = Played(window_images)
    for batch in batches:
        started = time.perf_counter()
        logits_BK = player.answer(resize(batch.x_BCHW, size))
        played.seconds += time.perf_counter() - started
        played.right_N = np.concatenate([played.right_N, (logits_BK.argmax(1) == batch.y_B).numpy()])
        played.events += [StreamEvent(image=one.image, kind=one.kind, reason=one.reason) for one in player.new_events()]
        after(played, len(batch.y_B))
    return played


def phases_of(plan: StreamPlan, drift: DriftSettings) -> tuple[StreamPhase, ...]:
    """Runs of one corruption; a mixed stream is one phase."""
    if drift.stream == MIXED:
        return (StreamPhase(first=0, images=len(plan.image), name=MIXED),)
    names = np.where(plan.severity == CLEAN, len(drift.corruptions), plan.corruption)
    edges = [0, *(np.flatnonzero(np.diff(names)) + 1).tolist(), len(names)]
    titles = (*drift.corruptions, "clean")
    return tuple(
        StreamPhase(first=first, images=end - first, name=titles[names[first]]) for first, end in pairwise(edges)
    )
