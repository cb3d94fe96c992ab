"""Runs of a chain in ncnn, with one net that continues from its computed values."""

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.chains.manifest import ChainManifest
from adaptive_runtime.bundle.chains.runs import Array, ChainRun, own_settings
from adaptive_runtime.samples.several import unpacked

POOLS = ("blob_allocator", "workspace_allocator")
NO_ALLOCATOR = "none"
THREAD_SAFE = {"UnlockedPoolAllocator": "PoolAllocator"}
"""Thread-safe memory pools that replace the pools with which one thread was measured."""


class NcnnChain:
    """One net in ncnn, one sample at a time: extracting an answer computes only the missing values, and nothing twice."""

    batch = 1

    def __init__(self, manifest: ChainManifest, folder: Path) -> None:
        import ncnn

        self._matrix_of = ncnn.Mat
        self.net = ncnn.Net()
        own = own_settings(manifest, "ncnn")
        settings = {name: THREAD_SAFE.get(str(value), value) for name, value in own.items()}
        self._pools = {
            name: getattr(ncnn, str(settings[name]))()
            for name in POOLS
            if settings.get(name, NO_ALLOCATOR) != NO_ALLOCATOR
        }
        for name, value in {**settings, **self._pools}.items():
            if value != NO_ALLOCATOR:
                setattr(self.net.opt, name, value)
        param, weights = (next(name for name in manifest.files if name.endswith(end)) for end in (".param", ".bin"))
        if self.net.load_param(str(folder / param)) or self.net.load_model(str(folder / weights)):
            raise AdaptiveError(
                str(folder / param), "ncnn cannot load it", next_step="install the ncnn that it was made for"
            )
        self.inputs = tuple(one.name for one in manifest.input.every)
        self.outputs = tuple(segment.outputs[0].name for segment in manifest.segments)
        self.close = weakref.finalize(self, free_net, self.net, tuple(self._pools.values()))
        """Free the net, at the latest when nothing refers to the chain any more."""

    def start(self, x_NCHW: Array) -> ChainRun:
        """A run at its start, with one sample (1, C, H, W)."""
        extractor = self.net.create_extractor()
        for name, values in zip(self.inputs, unpacked(x_NCHW), strict=True):
            # a Mat over numpy's memory lacks ncnn's alignment and crashes vector code; the clone has it
            extractor.input(name, self._matrix_of(values[0]).clone())
        return _NcnnRun(self, extractor)


def free_net(net: Any, pools: Sequence[Any]) -> None:
    """Free a net, then its memory pools: the other order crashes."""
    net.clear()
    for pool in pools:
        pool.clear()


class _NcnnRun:
    __slots__ = ("_chain", "_extractor", "_outputs")

    def __init__(self, chain: NcnnChain, extractor: Any) -> None:
        self._chain, self._extractor, self._outputs = chain, extractor, iter(chain.outputs)

    def __del__(self) -> None:
        """Free the extractor before the net, which may be freed with this run."""
        self._extractor = None

    def next(self) -> Array:
        name = next(self._outputs)
        status, answer = self._extractor.extract(name)
        if status != 0:
            raise AdaptiveError(f"output '{name}'", f"ncnn failed with code {status}")
        found: Array = np.array(answer).reshape(1, -1)
        return found

    def keep(self, mask_N: NDArray[np.bool_]) -> None:
        assert mask_N.all(), "one sample goes on or not"
