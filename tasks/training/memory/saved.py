"""Plain steps of torch within a budget of memory: tensors saved by autograd wait on disk, as far as necessary.

Gradients equal plain torch's, bit by bit. This works for every network and every shape, since nothing is known of the
network: torch hands over each tensor that an operator saves, and asks for it in the backward pass. Trial steps find how
much of the saved tensors may stay in memory.
"""

import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from profiling_agents.messages import MIB
from tasks.base.errors import UserError
from tasks.training.memory.storage import StorageCount, SwapFile

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


MOST_TRIES = 4
CLOSE = 0.97
"""Share of the budget that is near enough."""


@dataclass(frozen=True, slots=True)
class SavingPlan:
    """What a step does with saved tensors. kept_bytes: of each forward pass, in memory; None: all.

    peak_mib, plain_mib: of all tensors, as tried out; of the plan, and of plain torch. time_factor: of plain torch's time.
    """

    budget_mib: float
    peak_mib: float
    plain_mib: float
    time_factor: float
    kept_bytes: int | None = None

    def words(self) -> str:
        """What is done, what it comes to, and beside what."""
        if self.kept_bytes is None:
            return f"plain steps of {self.peak_mib:.0f} MiB are within {self.budget_mib:g} MiB"
        kept = f"all but {self.kept_bytes / MIB:.0f} MiB of" if self.kept_bytes else "all of"
        return (
            f"{kept} the activations of a forward pass wait on disk: {self.peak_mib:.0f} MiB a step are predicted, of "
            f"{self.budget_mib:g}, in {self.time_factor:.2f} times the time; plain steps need {self.plain_mib:.0f} MiB"
        )


class StepMemory:
    """Carries a plan out: `forward` around each forward pass."""

    def __init__(self, kept_bytes: int | None, folder: str | None = None) -> None:
        self._waiting = None if kept_bytes is None else WaitingTensors(kept_bytes, folder)

    def forward(self, staying: Iterable[Tensor]) -> AbstractContextManager[None]:
        """A forward pass; the backward pass may be inside, or follow. staying: weights and the like."""
        return nullcontext() if self._waiting is None else self._waiting.forward(staying)

    def close(self) -> None:
        """The file on disk is gone."""
        if self._waiting is not None:
            self._waiting.close()


def fit(
    step: Callable[[StepMemory], object],
    budget_mib: float,
    *,
    where: str,
    given: Callable[[], Iterable[Tensor]] = list,
    folder: str | None = None,
    agreed: Callable[[float], float] = float,
) -> SavingPlan:
    """The fastest plan within a budget [MiB]: a step is tried out plain, then with all saved tensors on disk, then between.

    step: the same work each time, and no effect that lasts. given: what is in memory before a step. where: the setting,
    for errors. agreed: from a peak [MiB] that which all processes take.
    UserError for a budget that no plan meets, with the least that one does.
    """

    def tried(kept_bytes: int | None) -> tuple[float, float]:
        memory = StepMemory(kept_bytes, folder)
        start = time.perf_counter()
        with torch.random.fork_rng(devices=[]), StorageCount(given()) as count:
            step(memory)
        memory.close()
        return agreed(count.peak_mib), time.perf_counter() - start

    tried(None)  # the first step takes longer
    plain_mib, plain_s = tried(None)
    if plain_mib <= budget_mib:
        return SavingPlan(budget_mib, plain_mib, plain_mib, 1.0)
    kept, peak_mib = 0, tried(0)[0]
    if peak_mib > budget_mib:
        raise UserError(
            where,
            f"a step needs {peak_mib:.1f} MiB even with all activations on disk, and {plain_mib:.1f} MiB without",
            allowed=f"{_rounded_up(peak_mib)} or more",
            next_step="raise the budget, or take fewer images at once",
        )
    seconds = tried(0)[1]
    for _ in range(MOST_TRIES):
        if peak_mib > CLOSE * budget_mib:
            break
        more = kept + int((budget_mib - peak_mib) * MIB)
        more_mib, more_s = tried(more)
        if more_mib > budget_mib:
            break
        kept, peak_mib, seconds = more, more_mib, more_s
    return SavingPlan(budget_mib, peak_mib, plain_mib, seconds / plain_s, kept)


def _rounded_up(mib: float) -> str:
    """To a tenth, so that it is a budget that can be met."""
    return f"{int(mib * 10 + 1) / 10:.1f} MiB"
