"""What autograd saves for the backward pass waits on disk; gradients are those of plain torch, bit by bit.

Works for every network and every shape, since nothing is known of the network: torch hands over each tensor that an
operator saves, and asks for it in the backward pass.
"""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tasks.training.memory.disk import SwapFile

SMALLEST_WAITING_BYTES = 2**14
"""Smaller tensors are kept as they are."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class _WaitingStorage:
    """The bytes of a storage on disk. read: the storage that they were read into, while somebody has it."""

    key: int
    source: weakref.ref[torch.UntypedStorage]
    version: int
    read: weakref.ref[torch.UntypedStorage] | None = None


@dataclass(frozen=True, slots=True)
class _WaitingTensor:
    storage: _WaitingStorage
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


@dataclass
class WaitingTensors:
    """Saved tensors of forward passes: the first `kept_bytes` of each pass stay in memory, the others wait on disk.

    folder: of the file; None: that of temporary files.
    """

    kept_bytes: int
    folder: str | None = None
    written_bytes: int = 0
    _file: SwapFile = field(init=False)
    _on_disk: "weakref.WeakValueDictionary[int, _WaitingStorage]" = field(init=False)

    def __post_init__(self) -> None:
        self._file = SwapFile(self.folder)
        self._closed = weakref.finalize(self, self._file.__exit__)
        self._on_disk = weakref.WeakValueDictionary()
        self._keys = 0

    @contextmanager
    def forward(self, staying: Iterable[Tensor]) -> Iterator[None]:
        """A forward pass; the backward pass may be inside, or follow. staying: weights and the like, in memory anyway."""
        if not self._on_disk:
            self._file.clear()
        self._staying = {tensor.untyped_storage()._cdata for tensor in staying}
        self._kept: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._left = self.kept_bytes
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            yield

    def close(self) -> None:
        """The file is gone."""
        self._closed()

    def _pack(self, tensor: Tensor) -> Tensor | _WaitingTensor:
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if size < SMALLEST_WAITING_BYTES or storage._cdata in self._staying or tensor.layout != torch.strided:
            return tensor
        kept = self._kept.get(storage._cdata)
        if kept is not None and kept() is not None:
            return tensor
        if size <= self._left:
            self._left -= size
            self._kept[storage._cdata] = weakref.ref(storage)
            return tensor
        return _WaitingTensor(
            self._written(storage, tensor._version),
            tensor.shape,
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.dtype,
        )

    def _written(self, storage: torch.UntypedStorage, version: int) -> _WaitingStorage:
        """A storage that several operators save is written once."""
        known = self._on_disk.get(storage._cdata)
        if known is not None and known.version == version and known.source() is not None:
            return known
        self._keys += 1
        self._file.write(self._keys, torch.empty(0, dtype=torch.uint8).set_(storage))
        self._file.wait(self._keys)
        self.written_bytes += storage.nbytes()
        found = _WaitingStorage(self._keys, weakref.ref(storage), version)
        self._on_disk[storage._cdata] = found
        return found

    @torch.no_grad()
    def _unpack(self, saved: Tensor | _WaitingTensor) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        waiting = saved.storage
        storage = None if waiting.read is None else waiting.read()
        if storage is None:
            content = self._file.fetch(waiting.key)
            self._file.wait(waiting.key)
            storage = content.untyped_storage()
            waiting.read = weakref.ref(storage)
        return torch.empty(0, dtype=saved.dtype).set_(storage, saved.offset, saved.shape, saved.stride)
