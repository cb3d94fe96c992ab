"""Activations in few bits, from the forward pass to the backward pass.

| coding | bits | of which values | what is lost |
|---|---|---|---|
| gate | 1 | outputs of ReLU and its like, where the backward pass asks only whether a gradient passes | nothing |
| window offsets | 8 | the place of each maximum in its window, instead of an index of 64 bits | nothing |
| groups of 8 bits | 8.25 | all others | rounding, to a 255th of the range of 256 neighbours |
| groups of 4 bits | 4.25 | all others | rounding, to a 15th of that range |

Source of the groups: ActNN (ICML 2021). All work goes in chunks that fit a core's cache, so that the transient
memory is small.

Tensors that wait on disk, written and read by a thread while operators run.

Peak of memory of a training step, counted: the bytes of all tensor storages that are alive at the same time.

Storages are seen where torch's dispatcher hands out tensors, and are gone when torch frees them. So the count has
everything that autograd saves, gradients, and what an optimiser keeps. Scratch memory inside a kernel (a
convolution's reordered weights) is not a tensor and is not in the count.
"""

import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from profiling_agents.messages import MIB

GROUP = 256
CHUNK = 2**18
"""Elements that are coded at once."""
SMALLEST_RANGE = 1e-30
Bits = Literal[4, 8]


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, CHUNK):
        yield start, min(start + CHUNK, count)


def gate_bytes(count: int) -> int:
    """Size of the gates of `count` elements [bytes]."""
    return -(-count // 8)


@dataclass(frozen=True, slots=True)
class Gates:
    """Whether each element of a tensor lies strictly between two bounds; one bit each."""

    packed: Tensor
    shape: torch.Size

    @staticmethod
    def of(value: Tensor, lower: float, upper: float) -> "Gates":
        """value: any shape; a gradient passes where lower < value < upper."""
        flat = value.reshape(-1)
        packed = torch.empty(gate_bytes(len(flat)), dtype=torch.uint8)
        for start, end in _chunks(len(flat)):
            part = flat[start:end]
            inside = part > lower
            if upper != float("inf"):
                inside &= part < upper
            packed[start // 8 : gate_bytes(end)] = torch.from_numpy(np.packbits(inside.numpy()))
        return Gates(packed, value.shape)

    def times(self, gradient: Tensor, into: Tensor | None = None) -> Tensor:
        """The gradient where it passes, elsewhere 0; same shape. into: a contiguous tensor that takes it, maybe
        `gradient` itself."""
        flat = gradient.reshape(-1)
        passed = torch.empty(len(flat), dtype=gradient.dtype) if into is None else into.view(-1)
        for start, end in _chunks(len(flat)):
            bits = np.unpackbits(self.packed[start // 8 : gate_bytes(end)].numpy(), count=end - start)
            torch.mul(flat[start:end], torch.from_numpy(bits), out=passed[start:end])
        return passed.view(self.shape)


def group_bytes(count: int, bits: Bits) -> int:
    """Size of `count` elements in groups [bytes]."""
    groups = -(-count // GROUP)
    return groups * (GROUP * bits // 8 + 8)


@dataclass(frozen=True, slots=True)
class CodedGroups:
    """A tensor of floats as 8 or 4 bits an element.

    codes: uint8, two elements in one where they have 4 bits. least, step: float32 (groups, 1), of each group of 256 neighbours.
    """

    codes: Tensor
    least: Tensor
    step: Tensor
    shape: torch.Size
    bits: Bits

    @staticmethod
    def of(value: Tensor, bits: Bits) -> "CodedGroups":
        """value: float32, any shape."""
        flat = value.reshape(-1)
        groups = -(-len(flat) // GROUP)
        codes = torch.empty(groups * GROUP * bits // 8, dtype=torch.uint8)
        least, step = torch.empty(groups, 1), torch.empty(groups, 1)
        whole = len(flat) - len(flat) % GROUP
        for start, end in [*_chunks(whole), *([(whole, len(flat))] if whole < len(flat) else [])]:
            part = flat[start:end]
            if end % GROUP:
                part = torch.cat([part, part[-1:].expand(GROUP - end % GROUP)])
            rows = slice(start // GROUP, -(-end // GROUP))
            part = part.view(-1, GROUP)
            low, high = torch.aminmax(part, dim=1, keepdim=True)
            width = (high - low).div_(2**bits - 1).clamp_(min=SMALLEST_RANGE)
            least[rows], step[rows] = low, width
            code = (part - low).div_(width).round_().to(torch.uint8).view(-1)
            if bits == 4:
                code = code[::2] | (code[1::2] << 4)
            first = start * bits // 8
            codes[first : first + len(code)] = code
        return CodedGroups(codes, least, step, value.shape, bits)

    def value(self) -> Tensor:
        """The tensor, float32, rounded."""
        decoded = torch.empty(self.shape.numel())
        for start, end in _chunks(len(decoded)):
            rows = slice(start // GROUP, -(-end // GROUP))
            code = self.codes[start * self.bits // 8 : rows.stop * GROUP * self.bits // 8]
            if self.bits == 4:
                code = torch.stack([code & 15, code >> 4], dim=1)
            part = code.view(-1, GROUP).to(torch.float32).mul_(self.step[rows]).add_(self.least[rows])
            decoded[start:end] = part.view(-1)[: end - start]
        return decoded.view(self.shape)


@dataclass(frozen=True, slots=True)
class CodedWindows:
    """Windows of a max-pooling over an image of `height` × `width` pixels."""

    width: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def _corners(self, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        top = (torch.arange(rows) * self.stride[0] - self.padding[0]).view(-1, 1)
        left = (torch.arange(columns) * self.stride[1] - self.padding[1]).view(1, -1)
        return top, left

    def offsets(self, indices: Tensor) -> Tensor:
        """Places in windows, uint8 (B, C, H, W), of indices into the image, int64 (B, C, H, W)."""
        top, left = self._corners(*indices.shape[-2:])
        found = torch.empty(indices.shape, dtype=torch.uint8)
        for sample, index in zip(found, indices, strict=True):
            row = torch.div(index, self.width, rounding_mode="floor")
            column = index - row * self.width
            down, right = (row - top) // self.dilation[0], (column - left) // self.dilation[1]
            sample.copy_(down * self.kernel[1] + right)
        return found

    def indices(self, offsets: Tensor) -> Tensor:
        """The inverse of `offsets`."""
        top, left = self._corners(*offsets.shape[-2:])
        found = torch.empty(offsets.shape, dtype=torch.int64)
        for index, sample in zip(found, offsets, strict=True):
            place = sample.to(torch.int64)
            down = torch.div(place, self.kernel[1], rounding_mode="floor")
            row = top + down * self.dilation[0]
            column = left + (place - down * self.kernel[1]) * self.dilation[1]
            index.copy_(row * self.width + column)
        return found


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


class StorageCount(TorchDispatchMode):
    """Bytes of the storages that are alive, and their peak, while this context is entered.

    given: tensors that are there before, a network's weights and its input; they count from the beginning.
    """

    def __init__(self, given: Iterable[torch.Tensor] = ()) -> None:
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
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        return given

    def _add(self, tensor: torch.Tensor) -> None:
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


def tensors_of(module: nn.Module, optimiser: torch.optim.Optimizer | None = None) -> list[torch.Tensor]:
    """What a training step finds: parameters, buffers, gradients that are kept, and the optimiser's state."""
    found = [*module.parameters(), *module.buffers()]
    found += [p.grad for p in module.parameters() if p.grad is not None]
    if optimiser is not None:
        found += [t for state in optimiser.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    return found
