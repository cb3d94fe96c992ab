"""Adaptation of weights in a separate thread, so that requests do not wait for it.

Legend: N samples, C channels, H height, W width.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.weight_options import WeightOptions
from adaptive_runtime.base.weight_state import WeightEvent, WeightEventKind, WeightsState
from adaptive_runtime.pool import SubNetPool, Variant, VariantError, failure
from adaptive_runtime.weights.side_file import AdaptedFiles
from adaptive_runtime.weights.statistics import Array
from adaptive_runtime.weights.subnet import AdaptedSubnet, adaptable

LOG = logging.getLogger("adaptive_runtime")
MOST_EVENTS = 100


class WeightAdaptation:
    """Observes served images and adapts the SubNet that served them.

    Only whole SubNets adapt, not chains that end early. AdaptiveError: no SubNet of the pool can adapt, or the state folder
    cannot be made.
    """

    def __init__(self, pool: SubNetPool, options: WeightOptions) -> None:
        self._pool, self.options = pool, options
        self._needed = _images_at_once(pool)
        self._files = None if options.state is None else AdaptedFiles(options.state)
        self._subnets: dict[str, AdaptedSubnet] = {}
        self._failed: set[str] = set()
        self._events: deque[WeightEvent] = deque(maxlen=MOST_EVENTS)
        self._waiting: deque[Array] = deque()
        self._serving: str | None = None
        self._count, self._left_out, self._busy, self._closed = 0, 0, False, False
        self._may_adapt, self._is_ending = True, False
        self._changed = threading.Condition()
        self._worker = threading.Thread(target=self._work, name="adaptive-runtime-weights", daemon=True)

    def start(self, serving: Variant) -> None:
        """Observe images from now on; load the saved adaptation of `serving` first."""
        self._serving = serving.digest if serving.digest in self._needed else None
        self._busy = self._serving is not None
        self._worker.start()

    def stop(self) -> None:
        """Stop observing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._worker.join()

    def let(self, *, adapt: bool) -> None:
        """Allow or forbid adaptation from now on. If forbidden, no images are observed, and the source's weights serve.

        The memory for observing is freed and side files are removed. When adaptation is allowed again, it starts from the
        source's weights.
        """
        if adapt == self._may_adapt:
            return
        with self._changed:
            self._may_adapt = adapt
            self._is_ending |= not adapt
            self._waiting.clear()
            self._count = 0
            self._changed.notify_all()

    def served(self, variant: Variant, x_NCHW: Array) -> None:
        """Take over samples that a variant has answered, in the bundle's size. Takes as long as copying them."""
        digest, is_whole = variant.digest, variant == variant.whole and not variant.placed
        if not is_whole or digest not in self._needed or digest in self._failed:
            return
        with self._changed:
            if not self._may_adapt:
                return
            if digest != self._serving:
                self._serving, self._count = digest, 0
                self._waiting.clear()
            if self._count + len(x_NCHW) > max(self.options.waiting_images, self._needed[digest]):
                self._left_out += len(x_NCHW)
                return
            self._waiting.append(x_NCHW.copy())  # its owner may write there again
            self._count += len(x_NCHW)
            if self._is_due:
                self._changed.notify_all()

    def wait(self) -> None:
        """Wait until all images were processed, except a rest too small for a batch."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not (self._busy or self._is_due or self._is_ending))

    @property
    def state(self) -> WeightsState:
        """The current state."""
        subnets = {digest: one.state for digest, one in list(self._subnets.items())}
        return WeightsState(subnets, self._left_out, tuple(self._events))

    @property
    def _is_due(self) -> bool:
        """Whether enough images wait for a batch."""
        return self._serving is not None and self._count >= self._needed[self._serving]

    def _work(self) -> None:
        if self._serving is not None:
            self._look(self._serving, [])
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or self._is_due or self._is_ending)
                if self._closed:
                    return
                self._busy, ends, self._is_ending = True, self._is_ending, False
                digest, found = self._serving or "", list(self._waiting)
                self._waiting.clear()
                self._count = 0
            if ends:
                self._end()
            else:
                self._look(digest, found)

    def _end(self) -> None:
        """Let all SubNets serve with the source's weights, free the observers, and forget earlier adaptation."""
        for digest, subnet in list(self._subnets.items()):
            images = subnet.guard.images
            self._give_up(subnet)
            del self._subnets[digest]
            self._tell(digest, "off", images, "a rule lets no weights adapt now; the bundle's serve")
        if self._files is not None:
            for digest in self._needed:
                self._files.remove(digest)

    def _look(self, digest: str, parts: list[Array]) -> None:
        """Let a SubNet process images; if that fails, it serves with the source's weights from then on."""
        if digest in self._failed:
            return
        try:
            _guarded(partial(self._pool.answerer(Variant(digest)).work, self._observe, digest, parts))
        except VariantError as error:
            self._failed.add(digest)
            self._tell(digest, "failed", 0, str(error))
            if (subnet := self._subnets.pop(digest, None)) is not None:
                self._give_up(subnet)

    def _give_up(self, subnet: AdaptedSubnet) -> None:
        """Return a SubNet to the source's weights, if possible, and free its observers."""
        subnet.release()
        try:
            _guarded(subnet.serve_source)
        except VariantError as error:
            self._tell(subnet.digest, "failed", 0, str(error))

    def _observe(self, digest: str, parts: list[Array]) -> None:
        if digest not in self._subnets:
            for other in self._subnets.values():
                other.release()
            self._subnets[digest] = AdaptedSubnet(self._pool, digest, self.options, self._files)
        subnet, size = self._subnets[digest], self._needed[digest]
        if not parts:
            return
        x_NCHW = np.concatenate(parts)
        for start in range(0, len(x_NCHW), size):
            for event in subnet.observe(x_NCHW[start : start + size]):
                self._tell(digest, event.kind, event.image, event.reason)

    def _tell(self, digest: str, kind: WeightEventKind, image: int, reason: str) -> None:
        self._events.append(WeightEvent(time.monotonic(), digest, kind, image, reason))
        LOG.warning("weights of SubNet %s after %d images: %s: %s", digest, image, kind, reason)


def _images_at_once(pool: SubNetPool) -> dict[str, int]:
    """Batch size by digest, for SubNets that can adapt. AdaptiveError: none can."""
    found, first = dict[str, int](), AdaptiveError("weights", "the bundle has no SubNets")
    for one in pool.bundle.manifest.subnets:
        try:
            found[one.digest] = adaptable(pool, one.digest).images
        except AdaptiveError as error:
            first = error
    if not found:
        raise first
    return found


def _guarded(look: Callable[[], None]) -> None:
    try:
        look()
    except Exception as error:  # runtimes raise many kinds, none of them ours
        raise VariantError(failure(error)) from error
