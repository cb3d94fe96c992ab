"""Tensors that wait on disk, written and read by a thread while operators run."""

import os
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import torch
from torch import Tensor


class SwapFile:
    """A file without a name for tensors; it is gone with the process, or when it is closed."""

    def __init__(self, folder: str | None = None) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by __exit__)
        self._thread = ThreadPoolExecutor(1, "swap")
        self._end = 0
        self._places: dict[int, tuple[int, torch.Size, torch.dtype]] = {}
        self._work: dict[int, Future[None]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        self._file.close()

    def write(self, key: int, value: Tensor) -> None:
        """Begin to write a tensor, which must not change until `wait`. One like it with the same key is overwritten."""
        place = self._places.get(key)
        if place is None or place[1:] != (value.shape, value.dtype):
            place = (self._end, value.shape, value.dtype)
            self._end += value.nbytes
        self._places[key] = place
        self._work[key] = self._thread.submit(self._all, os.pwrite, [value.contiguous()], place[0])

    def fetch(self, key: int) -> Tensor:
        """The tensor of a key; its values are there after `wait`."""
        place, shape, dtype = self._places[key]
        value = torch.empty(shape, dtype=dtype)
        self._work[key] = self._thread.submit(self._all, _read, [value], place)
        return value

    def wait(self, key: int) -> None:
        """Until the work for a key is done. Errors: OSError of the file system, as it comes."""
        if key in self._work:
            self._work.pop(key).result()

    def writing(self, key: int) -> bool:
        """Whether the work for a key was begun and not waited for."""
        return key in self._work

    def clear(self) -> None:
        """Forget all tensors, and use the file from its beginning."""
        for key in list(self._work):
            self.wait(key)
        self._places.clear()
        self._end = 0

    def _all(self, call: object, box: list[Tensor], place: int) -> None:
        """box: the tensor, which is taken out, since the thread keeps its arguments for a moment when the work is done."""
        content = buffer_of(box.pop())
        while content:
            done = call(self._file.fileno(), content, place)  # type: ignore[operator]
            if not done:
                raise OSError(f"swap file: ended at byte {place}")
            content, place = content[done:], place + done


def buffer_of(value: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, shared with it."""
    content: Any = value.detach().view(-1).view(torch.uint8).numpy()
    return memoryview(content)


def _read(descriptor: int, content: memoryview, place: int) -> int:
    return os.preadv(descriptor, [content], place)
