"""Memory that ONNX Runtime itself uses for the activations of a model, byte by byte, to check predictions.

A custom allocator counts every allocation of the CPU provider in a run: tensors and the kernels' temporary buffers, as
requested. It is registered with the runtime's environment and forwards to aligned_alloc. The runtime's arena is queried, too:
it serves the same requests from chunks that it does not split if the rest would be smaller than the request, so its bytes in
use depend on the earlier releases.

The C API is called through ctypes, since the Python API has neither. Its functions are found by their position in a table to
which new functions are only appended (onnxruntime_c_api.h); the table of version 23 is the first with AllocatorGetStats.
"""

import ctypes
import platform
import re
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from tailor_ir.memory.layouts import Event, Request, Rules

API_VERSION = 23
FUNCTIONS = {
    "GetErrorMessage": 2,
    "CreateEnv": 3,
    "CreateSessionFromArray": 8,
    "Run": 9,
    "CreateSessionOptions": 10,
    "SetSessionExecutionMode": 13,
    "EnableMemPattern": 16,
    "DisableMemPattern": 17,
    "SetSessionLogSeverityLevel": 22,
    "SetSessionGraphOptimizationLevel": 23,
    "SetIntraOpNumThreads": 24,
    "CreateTensorWithDataAsOrtValue": 49,
    "CreateCpuMemoryInfo": 69,
    "AllocatorAlloc": 75,
    "AllocatorFree": 76,
    "ReleaseMemoryInfo": 94,
    "ReleaseSession": 95,
    "ReleaseValue": 96,
    "ReleaseSessionOptions": 100,
    "AddSessionConfigEntry": 130,
    "CreateAllocator": 131,
    "ReleaseAllocator": 132,
    "RegisterAllocator": 176,
    "GetKeyValue": 297,
    "ReleaseKeyValuePairs": 300,
    "AllocatorGetStats": 319,
}
DISABLE_ALL, ENABLE_ALL, WARNING_AND_WORSE, ERRORS = 0, 99, 2, 3
SEQUENTIAL, PARALLEL = 0, 1
PRIORITY_BASED = 1
OPTIONS_BYTES = 128  # from their beginning; enough to find the fields that no C function sets
ARENA, DEVICE = 1, 0
FLOAT = 1
ALIGNMENT = 64

Pointer = ctypes.c_void_p
Alloc = ctypes.CFUNCTYPE(Pointer, Pointer, ctypes.c_size_t)
Free = ctypes.CFUNCTYPE(None, Pointer, Pointer)
Info = ctypes.CFUNCTYPE(Pointer, Pointer)


class Allocator(ctypes.Structure):
    """The C struct OrtAllocator."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("alloc", Alloc),
        ("free", Free),
        ("info", Info),
        ("reserve", Alloc),
        ("get_stats", Pointer),
        ("alloc_on_stream", Pointer),
    )


@dataclass
class CountedMemory:
    """Allocates memory and counts it."""

    live: dict[int, int] = field(default_factory=dict)
    now: int = 0
    peak: int = 0

    def __post_init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._aligned_alloc, self._free = libc.aligned_alloc, libc.free
        self._aligned_alloc.restype, self._aligned_alloc.argtypes = Pointer, (ctypes.c_size_t, ctypes.c_size_t)
        self._free.restype, self._free.argtypes = None, (Pointer,)

    def alloc(self, _: int, size: int) -> int:
        address: int = self._aligned_alloc(ALIGNMENT, max(-(-size // ALIGNMENT), 1) * ALIGNMENT)
        self.live[address] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        return address

    def free(self, _: int, address: int | None) -> None:
        if address:
            self.now -= self.live.pop(address)
            self._free(address)


@dataclass(frozen=True)
class Peaks:
    """Peak bytes beyond those of the weights.

    In the first run of a model, `asked`: requested from the allocator, and `arena`: in use in the arena. `planned`: requested
    in later runs, when all tensors are in one block that was planned in the first run (memory patterns).
    """

    asked: int
    arena: int
    planned: int


class Runtime:
    """ONNX Runtime with all optimisations, one thread, and counted memory. One per process: `runtime()`."""

    def __init__(self) -> None:
        (file,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
        library = ctypes.CDLL(str(file))
        library.OrtGetApiBase.restype = ctypes.POINTER(Pointer * 2)
        get_api = ctypes.CFUNCTYPE(Pointer, ctypes.c_uint32)(library.OrtGetApiBase().contents[0])
        self._api = ctypes.cast(get_api(API_VERSION), ctypes.POINTER(Pointer * (max(FUNCTIONS.values()) + 1))).contents
        self._as_it_stands = False
        self._counter = CountedMemory()
        self._environment = self._make("CreateEnv", ctypes.c_int(ERRORS), ctypes.c_char_p(b"memory"))
        self._cpu = self._make("CreateCpuMemoryInfo", ctypes.c_int(DEVICE), ctypes.c_int(0))
        self._allocator = Allocator(
            API_VERSION,
            Alloc(self._counter.alloc),
            Free(self._counter.free),
            Info(lambda _: self._cpu.value),
            Alloc(self._counter.alloc),
        )
        self._call("RegisterAllocator", self._environment, ctypes.byref(self._allocator))

    def peaks(self, model: bytes, x: np.ndarray, *, as_it_stands: bool = False) -> Peaks:
        """Peaks of a model with one input, float32. as_it_stands: run it like files of `tailor_ir.memory.planned_file`."""
        self._as_it_stands = as_it_stands
        first, later = (self._asked(model, x, later) for later in (False, True))
        return Peaks(asked=first, arena=self._arena(model, x), planned=later)

    def _asked(self, model: bytes, x: np.ndarray, later: bool) -> int:
        session = self._session(model, own_allocator=True, patterns=later)
        if later:
            self._run(session, model, x)
        before = self._counter.peak = self._counter.now
        self._run(session, model, x)
        self._release("Session", session)
        return self._counter.peak - before

    def replay(self, events: Iterable[Event]) -> list[int]:
        """Bytes in use in a new arena of the runtime after each event; nothing is written to the memory."""
        model = _smallest_model()
        live: dict[Hashable, Pointer] = {}
        in_use = []
        with self._fresh_arena(model) as (_, arena):
            before = self._statistic(arena, b"InUse")
            for event in events:
                if isinstance(event, Request):
                    live[event.tensor] = self._make("AllocatorAlloc", arena, ctypes.c_size_t(event.bytes_))
                else:
                    self._call("AllocatorFree", arena, live.pop(event.tensor))
                in_use.append(self._statistic(arena, b"InUse") - before)
            for address in live.values():
                self._call("AllocatorFree", arena, address)
        return in_use

    def _arena(self, model: bytes, x: np.ndarray) -> int:
        with self._fresh_arena(model) as (session, arena):
            before = self._statistic(arena, b"InUse")
            self._run(session, model, x)
            return self._statistic(arena, b"MaxInUse") - before

    @contextmanager
    def _fresh_arena(self, model: bytes) -> Iterator[tuple[Pointer, Pointer]]:
        """A session that has not run yet, and its arena."""
        session = self._session(model, own_allocator=False)
        info = self._make("CreateCpuMemoryInfo", ctypes.c_int(ARENA), ctypes.c_int(0))
        arena = self._make("CreateAllocator", session, info)
        try:
            yield session, arena
        finally:
            for kind, handle in (("Allocator", arena), ("MemoryInfo", info), ("Session", session)):
                self._release(kind, handle)

    def _session(self, model: bytes, own_allocator: bool, patterns: bool = False) -> Pointer:
        options = self._make("CreateSessionOptions")
        self._call("SetIntraOpNumThreads", options, ctypes.c_int(1))
        self._call(
            "SetSessionGraphOptimizationLevel", options, ctypes.c_int(DISABLE_ALL if self._as_it_stands else ENABLE_ALL)
        )
        if self._as_it_stands:
            self._keep_order(options)
        self._call("SetSessionLogSeverityLevel", options, ctypes.c_int(WARNING_AND_WORSE))
        if not patterns:
            self._call("DisableMemPattern", options)
        if own_allocator:
            key, value = ctypes.c_char_p(b"session.use_env_allocators"), ctypes.c_char_p(b"1")
            self._call("AddSessionConfigEntry", options, key, value)
        content, content_bytes = ctypes.c_char_p(model), ctypes.c_size_t(len(model))
        session = self._make("CreateSessionFromArray", self._environment, content, content_bytes, options)
        self._release("SessionOptions", options)
        return session

    def _keep_order(self, options: Pointer) -> None:
        """Set execution by priority, without memory reuse, in fields of the C++ structure next to fields that functions set.

        The fields are the second integer, after the execution mode, and the byte after that of memory patterns.
        """
        assert options.value is not None
        fields = (ctypes.c_ubyte * OPTIONS_BYTES).from_address(options.value)
        mode = self._changed(options, fields, "SetSessionExecutionMode", ctypes.c_int(PARALLEL))
        self._call("SetSessionExecutionMode", options, ctypes.c_int(SEQUENTIAL))
        patterns = self._changed(options, fields, "DisableMemPattern")
        self._call("EnableMemPattern", options)
        order, reuse = mode + ctypes.sizeof(ctypes.c_int), patterns + 1
        assert (mode, fields[order], fields[reuse]) == (0, 0, 1)
        fields[order], fields[reuse] = PRIORITY_BASED, 0

    def _changed(self, options: Pointer, fields: Any, function: str, *arguments: Any) -> int:
        """The offset of the one byte of the options that a function changes."""
        before = bytes(fields)
        self._call(function, options, *arguments)
        (at,) = (at for at, (old, new) in enumerate(zip(before, bytes(fields), strict=True)) if old != new)
        return at

    def _run(self, session: Pointer, model: bytes, x: np.ndarray) -> None:
        graph = onnx.load_model_from_string(model).graph
        x = np.ascontiguousarray(x, np.float32)
        shape = (ctypes.c_int64 * x.ndim)(*x.shape)
        value = self._make(
            "CreateTensorWithDataAsOrtValue",
            self._cpu,
            Pointer(x.ctypes.data),
            ctypes.c_size_t(x.nbytes),
            ctypes.cast(shape, Pointer),
            ctypes.c_size_t(x.ndim),
            ctypes.c_int(FLOAT),
        )
        names = [graph.input[0].name], [output.name for output in graph.output]
        inputs, outputs = (ctypes.c_char_p * 1)(names[0][0].encode()), (ctypes.c_char_p * len(names[1]))()
        outputs[:] = [name.encode() for name in names[1]]
        values, results = (Pointer * 1)(value), (Pointer * len(names[1]))()
        self._call(
            "Run",
            session,
            Pointer(),
            ctypes.cast(inputs, Pointer),
            ctypes.cast(values, Pointer),
            ctypes.c_size_t(1),
            ctypes.cast(outputs, Pointer),
            ctypes.c_size_t(len(names[1])),
            ctypes.cast(results, Pointer),
        )
        for result in (value, *map(Pointer, results)):
            self._release("Value", result)

    def _statistic(self, allocator: Pointer, name: bytes) -> int:
        pairs = self._make("AllocatorGetStats", allocator)
        value = self._function("GetKeyValue", ctypes.c_char_p, Pointer, ctypes.c_char_p)(pairs, name)
        number = int(value)
        self._release("KeyValuePairs", pairs)
        return number

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        address = self._api[FUNCTIONS[name]]
        assert address is not None
        return ctypes.CFUNCTYPE(result, *arguments)(address)

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a function of the C API; RuntimeError with the runtime's message if it fails."""
        plain = [ctypes.cast(a, Pointer) if not isinstance(a, ctypes._SimpleCData) else a for a in arguments]
        status = self._function(name, Pointer, *map(type, plain))(*plain)
        if status:
            message: bytes = self._function("GetErrorMessage", ctypes.c_char_p, Pointer)(status)
            raise RuntimeError(f"onnxruntime, {name}: {message.decode()}")

    def _make(self, name: str, *arguments: Any) -> Pointer:
        """Call a function whose last argument is a pointer to its result."""
        handle = Pointer()
        self._call(name, *arguments, ctypes.byref(handle))
        return handle

    def _release(self, kind: str, handle: Pointer) -> None:
        self._function(f"Release{kind}", None, Pointer)(handle)


def _smallest_model() -> bytes:
    """A minimal model, to get the arena of its session."""
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1,)) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "smallest", [x], [y])
    opset = onnx.helper.make_opsetid("", 17)
    model: bytes = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()
    return model


def _channel_block() -> int:
    """Number of channels stored side by side by the runtime on this machine. Source: onnxruntime, MlasNchwcGetBlockSize."""
    if platform.machine() == "aarch64":
        return 16
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return 16 if flags and "avx512f" in flags[1].split() else 8


HERE = Rules(channel_block=_channel_block())
"""The rules of the runtime on this machine."""


@cache
def runtime() -> Runtime:
    """The runtime of this process; only one, since it keeps the allocator until the process ends."""
    return Runtime()
