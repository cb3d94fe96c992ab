"""Replacement of models while a service runs: SubNets that a search on the device finds join the served ones.

Legend: N samples, C channels, H height, W width.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import FOUND_FILE
from adaptive_runtime.model.deployed import DeployedModel, ModelAnswer

LOG = logging.getLogger("adaptive_runtime.server")
LOOK_S = 1.0
Stamp = tuple[int, int, int]


class CurrentModel:
    """The model that currently answers; it may be replaced between two requests. Several threads may call it."""

    def __init__(self, model: DeployedModel) -> None:
        self.model = model
        self._running, self._held = 0, False
        self._changed = threading.Condition()

    def infer(self, x_NCHW: NDArray[np.float32], until_s: float, subnet: str | None) -> ModelAnswer:
        """Like `DeployedModel.infer`, with a deadline on the monotonic clock."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held)
            self._running += 1
            model = self.model
        try:
            return model.infer(x_NCHW, 1e3 * (until_s - time.monotonic()), subnet)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def replace(self, model: DeployedModel) -> None:
        """Switch to another model for the next request, which waits until running requests have ended."""
        with self._changed:
            self._held = True
            try:
                self._changed.wait_for(lambda: not self._running)
                model.take_over(self.model)
                before, self.model = self.model, model
            finally:
                self._held = False
                self._changed.notify_all()
        before.close()
        model.load_ahead()


class FoundFile:
    """The result file of a search in its folder. AdaptiveError: the folder does not exist."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise AdaptiveError(f"--also '{folder}'", "is no folder", next_step="name that of a search on this device")
        self.folder = folder
        self._stamp: Stamp | None = None

    def is_new(self) -> bool:
        """Whether the file changed since the last call; at the first call, whether it exists."""
        try:
            found = os.stat(self.folder / FOUND_FILE)
        except OSError:
            return False
        before, self._stamp = self._stamp, (found.st_ino, found.st_mtime_ns, found.st_size)
        return before != self._stamp


@contextmanager
def joined_by(found: FoundFile, current: CurrentModel, load: Callable[[], DeployedModel]) -> Iterator[None]:
    """Until the end of the block, replace the current model with one that includes a search's new SubNets.

    load: loads that model, beside the current one. An error is logged in one line, and the current model goes on.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            if not found.is_new():
                continue
            try:
                current.replace(load())
            except AdaptiveError as error:
                LOG.warning("%s; what serves goes on", error)
            else:
                LOG.warning("SubNets of '%s' have joined", found.folder)

    thread = threading.Thread(target=watch, name="joining", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
