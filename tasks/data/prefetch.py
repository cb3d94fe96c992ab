"""Batches that are read ahead, so that training does not wait for them."""

import threading
from collections.abc import Generator, Iterable
from contextlib import suppress
from functools import partial
from queue import Full, Queue

import torch

from tasks.data.batches import each
from tasks.data.dataset import Batch

AHEAD = 2
WAIT_S = 0.1


def prefetched(batches: Iterable[Batch], device: torch.device) -> Generator[Batch, None, None]:
    """The same batches in the same order, on `device`. A thread reads the next ones; its errors are raised here.

    Close the generator if not all batches are taken.
    """
    queue: Queue[Batch | BaseException | None] = Queue(AHEAD)
    left = threading.Event()

    def put(item: Batch | BaseException | None) -> None:
        while not left.is_set():
            with suppress(Full):
                queue.put(item, timeout=WAIT_S)
                return

    def read() -> None:
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)  # each thread has its own
            for x_BCHW, target in batches:
                put((each(x_BCHW, partial(_moved, device)), _moved(device, target)))
                if left.is_set():
                    return
            put(None)
        except BaseException as error:  # noqa: BLE001 - raised where the batch is wanted
            put(error)

    thread = threading.Thread(target=read, name="prefetch", daemon=True)
    thread.start()
    try:
        while (item := queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        left.set()
        thread.join()


def _moved(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
