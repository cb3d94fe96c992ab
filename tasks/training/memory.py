"""A training step within a budget of memory: bytes of tensors, counted, and saved tensors of autograd that wait on disk.

The count covers all tensor storages that are alive at the same time: weights, buffers, everything that autograd saves,
gradients, and the state of an optimiser. Storages are counted where torch's dispatcher returns tensors, until torch
frees them. Scratch memory inside a kernel (a convolution's reordered weights) is not a tensor and is not counted.

Steps whose saved tensors wait on disk give plain torch's gradients, bit by bit. This works for every network and every
shape: torch passes each tensor that an operator saves to a hook, and requests it in the backward pass. Trial steps find
how much of the saved tensors may stay in memory.
"""

import inspect
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from profiling_agents.messages import MIB
from tasks.base.errors import UserError

PROBE = 2**16


class StorageCount(TorchDispatchMode):
    """Bytes of the storages that are alive, and their peak, while this context is entered.

    given: tensors that exist before, such as a network's weights and its input; they count from the beginning.
    """

    def __init__(self, given: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.bytes = 0
        self.peak_bytes = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for tensor in given:
            self._add(tensor)

    @property
    def peak_mib(self) -> float:
        return self.peak_bytes / MIB

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(given):
            if isinstance(leaf, Tensor):
                self._add(leaf)
        return given

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return

        def forget(_: object) -> None:
            self.bytes -= size
            del self._alive[key]

        self._alive[key] = weakref.ref(storage, forget)
        self.bytes += size
        self.peak_bytes = max(self.peak_bytes, self.bytes)


def tensors_of(module: nn.Module, optimiser: torch.optim.Optimizer | None = None) -> list[Tensor]:
    """Tensors in memory before a training step: parameters, buffers, kept gradients, and the optimiser's state."""
    found = [*module.parameters(), *module.buffers()]
    found += [p.grad for p in module.parameters() if p.grad is not None]
    if optimiser is not None:
        found += [t for state in optimiser.state.values() for t in state.values() if isinstance(t, Tensor)]
    return found


def state_share(optimiser: torch.optim.Optimizer) -> float:
    """Bytes of state for each byte of a trained weight, after a step of an optimiser of the same kind and settings."""
    probe = nn.Parameter(torch.zeros(PROBE))
    probe.grad = torch.ones(PROBE)
    known = inspect.signature(type(optimiser)).parameters
    twin = type(optimiser)([probe], **{name: value for name, value in optimiser.defaults.items() if name in known})
    with StorageCount([probe, probe.grad]) as count:
        before = count.bytes
        twin.step()
        return (count.bytes - before) / probe.nbytes


SMALLEST_WAITING_BYTES = 2**14
"""Smaller tensors are kept as they are."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class _WaitingStorage:
    """The bytes of a storage, in the file from byte `place` on. read: the storage that holds them again, if it is alive."""

    place: int
    size: int
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


class StepMemory:
    """Saved tensors of forward passes: the first `kept_bytes` of each pass stay in memory, the others wait on disk.

    kept_bytes: None: all stay in memory. folder: of the file, which has no name; None: the folder of temporary files.
    OSError of the file system, as it comes.
    """

    def __init__(self, kept_bytes: int | None, folder: str | None = None) -> None:
        self._kept_bytes, self._end = kept_bytes, 0
        self._on_disk: weakref.WeakValueDictionary[int, _WaitingStorage] = weakref.WeakValueDictionary()
        if kept_bytes is not None:
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by close)
            self._close = weakref.finalize(self, self._file.close)

    @contextmanager
    def forward(self, staying: Iterable[Tensor]) -> Iterator[None]:
        """A forward pass; the backward pass may be inside, or follow. staying: weights and other tensors in memory anyway."""
        if self._kept_bytes is None:
            yield
            return
        if not self._on_disk:
            self._end = 0
        self._staying = {tensor.untyped_storage()._cdata for tensor in staying}
        self._kept: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._left = self._kept_bytes
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            yield

    def close(self) -> None:
        """Remove the file on disk."""
        if self._kept_bytes is not None:
            self._close()

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
        found = _WaitingStorage(self._end, storage.nbytes(), weakref.ref(storage), version)
        self._file.seek(found.place)
        self._file.write(torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data)
        self._file.flush()
        self._end += found.size
        self._on_disk[storage._cdata] = found
        return found

    @torch.no_grad()
    def _unpack(self, saved: Tensor | _WaitingTensor) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        waiting = saved.storage
        storage = None if waiting.read is None else waiting.read()
        if storage is None:
            content = torch.empty(waiting.size, dtype=torch.uint8)
            self._file.seek(waiting.place)
            if self._file.readinto(content.numpy().data) < waiting.size:
                raise OSError(f"activations on disk: the file ended before byte {waiting.place + waiting.size}")
            storage = content.untyped_storage()
            waiting.read = weakref.ref(storage)
        return torch.empty(0, dtype=saved.dtype).set_(storage, saved.offset, saved.shape, saved.stride)


MOST_TRIES = 4
CLOSE = 0.97
"""Share of the budget from which on a peak is near enough."""


@dataclass(frozen=True, slots=True)
class SavingPlan:
    """The treatment of saved tensors in a step. kept_bytes: bytes of each forward pass that stay in memory; None: all.

    peak_mib, plain_mib: counted peaks of all tensors in trial steps, by the plan and of plain torch. time_factor: of plain
    torch's time.
    """

    budget_mib: float
    peak_mib: float
    plain_mib: float
    time_factor: float
    kept_bytes: int | None = None

    def words(self) -> str:
        """The plan, its predicted peak and its time in one line, beside those of plain steps."""
        if self.kept_bytes is None:
            return f"plain steps of {self.peak_mib:.0f} MiB are within {self.budget_mib:g} MiB"
        kept = f"all but {self.kept_bytes / MIB:.0f} MiB of" if self.kept_bytes else "all of"
        return (
            f"{kept} the activations of a forward pass wait on disk: {self.peak_mib:.0f} MiB a step are predicted, of "
            f"{self.budget_mib:g}, in {self.time_factor:.2f} times the time; plain steps need {self.plain_mib:.0f} MiB"
        )


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

    step: the same work each time, without lasting effects. given: tensors in memory before a step; called before each trial.
    where: the setting, for errors. agreed: the peak [MiB] on which all processes agree, from that of this process.
    UserError for a budget that no plan meets, with the least feasible budget.
    """

    def tried(kept_bytes: int | None) -> tuple[float, float]:
        memory = StepMemory(kept_bytes, folder)
        with torch.random.fork_rng(devices=[]), StorageCount(given()) as count:
            start = time.perf_counter()
            step(memory)
            seconds = time.perf_counter() - start
        memory.close()
        return agreed(count.peak_mib), seconds

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
    """Rounded up to a tenth, so that it is a feasible budget."""
    return f"{int(mib * 10 + 1) / 10:.1f} MiB"
