"""Variants in the pool: a SubNet and the exit at which it answers, its parts, and the scaling of samples to its size.

A part is the unit of loading and freeing: one ONNX file, or one net of ncnn. Images are scaled bilinearly with
anti-aliasing, as in training; of texts, a SubNet takes the first words.

Legend: N samples, C channels, H height, W width; O output size, I input size.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Array
from adaptive_runtime.base.errors import AdaptiveError, NotBackError
from adaptive_runtime.bundle.bundles import BundledSubNet, BundleFormat, NetFigures
from adaptive_runtime.bundle.chains import (
    ChainAnswers,
    ChainManifest,
    ChainRun,
    ChainRuntime,
    ExitChain,
    InputPreparation,
    InputsPreparation,
    JoinedFiles,
    OnnxChain,
    SamplePreparation,
)
from adaptive_runtime.exits import Decider
from adaptive_runtime.pool.prepared import VariantError, failure
from adaptive_runtime.samples.inputs import GivenPreparation, NumbersPreparation, TextPreparation, of_length, packed
from adaptive_runtime.samples.pictures import weights

AnyArray = NDArray[Any]
BILINEAR = "bilinear, antialiased"


def scaling(
    before: tuple[int, int], after: tuple[int, int], interpolation: str
) -> Callable[[AnyArray], AnyArray] | None:
    """A function that scales images (N, C, *before) to (N, C, *after); None if not needed. AdaptiveError: another method."""
    if before == after:
        return None
    if interpolation != BILINEAR:
        raise AdaptiveError("preparation", f"size_interpolation '{interpolation}'", allowed=BILINEAR)
    rows_OI, columns_OI = (weights(*sizes) for sizes in zip(before, after, strict=True))
    columns_IO = np.ascontiguousarray(columns_OI.T)

    def scaled(x_NCHW: AnyArray) -> AnyArray:
        return np.ascontiguousarray(rows_OI @ (x_NCHW @ columns_IO))

    return scaled


def scaling_of(preparation: SamplePreparation, input_shape: tuple[int, ...]) -> Callable[[AnyArray], AnyArray] | None:
    """A function that scales samples of the data's own size for a SubNet with this input shape; None if not needed."""
    if isinstance(preparation, TextPreparation | GivenPreparation):
        return _scaling_of_input(preparation)
    if isinstance(preparation, InputsPreparation):
        scales = {name: _scaling_of_input(one) for name, one in preparation.inputs.items()}
        return partial(_scaled_inputs, scales) if any(scales.values()) else None
    height, width = input_shape[-2:]
    return scaling((preparation.resolution,) * 2, (height, width), preparation.size_interpolation)


def _scaling_of_input(one: InputPreparation) -> Callable[[AnyArray], AnyArray] | None:
    if isinstance(one, NumbersPreparation):
        return None
    if isinstance(one, GivenPreparation):
        if one.shape == one.size:
            return None
        if len(one.shape) == 1:
            return partial(of_length, length=one.size[0])
        first = 0 if one.has_channels_last else 1
        before, after = (sizes[first : first + 2] for sizes in (one.shape, one.size))
        scale = scaling((before[0], before[1]), (after[0], after[1]), one.size_interpolation)
        return partial(_scaled_with_channels_last, scale) if scale and one.has_channels_last else scale
    if isinstance(one, TextPreparation):
        (length,) = one.size
        return None if length == one.length else partial(of_length, length=length)
    return scaling((one.resolution,) * 2, one.size, one.size_interpolation)


def _scaled_with_channels_last(scale: Callable[[AnyArray], AnyArray], x_NHWC: AnyArray) -> AnyArray:
    return np.ascontiguousarray(scale(x_NHWC.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1))


def _scaled_inputs(scales: Mapping[str, Callable[[AnyArray], AnyArray] | None], x_N: AnyArray) -> AnyArray:
    return packed({name: x_N[name] if scale is None else scale(x_N[name]) for name, scale in scales.items()})


class PoolPart:
    """A part by name. value: the loaded object; None: not loaded. need_mib: its largest memory while it is loaded.

    used: number of the latest request that used it. own: loads it from its file; loads: the present way of loading. bring:
    loads it into the pool.
    """

    __slots__ = ("_bring", "_kept_mib", "loads", "name", "need_mib", "own", "used", "value")
    CLOCK: ClassVar[Iterator[int]] = itertools.count(1)

    def __init__(
        self, name: str, loads: Callable[[], Any], need_mib: float, bring: Callable[["PoolPart"], Any]
    ) -> None:
        self.name, self.own, self.loads, self.need_mib, self._bring = name, loads, loads, need_mib, bring
        self.value: Any = None
        self.used = 0
        self._kept_mib = 0.0

    def brought(self) -> Any:
        """The loaded object; if it is not loaded, other parts make room and it is loaded now."""
        value, self.used = self.value, next(self.CLOCK)
        return self._bring(self) if value is None else value

    @property
    def kept_mib(self) -> float:
        """Memory of the loaded part, as far as known."""
        return self._kept_mib or self.need_mib

    def grew(self, mib: float, kept_mib: float) -> None:
        """Record that the process grew by `mib` while the part was loaded, and by `kept_mib` afterwards.

        Both underestimate if the part reused memory that others had freed, so neither value ever shrinks.
        """
        self.need_mib = max(mib, self.need_mib)
        self._kept_mib = max(kept_mib, self._kept_mib)


Found = TypeVar("Found")
Work = Callable[..., Found]
STACK_FRAME = re.compile(r" in SubNet (\S+) in (\S+)\n")
"""Digest and format of a SubNet for which a thread works, in the stack traces of a crashed process."""


class Variant(NamedTuple):
    """A SubNet by its digest: whole; up to an exit of its chain; or `early`, by thresholds, sample by sample.

    form: the format of its files; None: the first format of the pool that the SubNet has. placed: over several devices, whole.
    """

    digest: str
    exit: str | None = None
    early: bool = False
    form: BundleFormat | None = None
    placed: bool = False

    @property
    def whole(self) -> "Variant":
        """The whole SubNet in the same format and place."""
        return Variant(self.digest, form=self.form, placed=self.placed)

    @property
    def files(self) -> str:
        """The SubNet in its format and place, in words."""
        if self.placed:
            return f"{self.digest} over devices"
        return self.digest if self.form is None else f"{self.digest} in {self.form}"


class PlacedRuntime(ChainRuntime, Protocol):
    """Runs a SubNet over several devices, for one request. devices: those that have run parts of it.

    A run gives up once when a fallback has to begin (NotBackError). away: its answer, when it arrives; the run returns it if
    called again. leave: the answer is no longer wanted. until_s: of `time.monotonic`; the fallback's answer is held until then.
    """

    until_s: float

    @property
    def devices(self) -> tuple[str, ...]: ...

    @property
    def away(self) -> Future[Any]: ...

    def leave(self) -> None: ...


class PlacedRuns(Protocol):
    """Makes a runtime over several devices for a time limit [ms], or None: no limit, and a number of samples together.

    fallback_ms: time of a fallback for these samples; the run gives up early enough for it; None: no fallback.
    """

    def __call__(self, within_ms: float | None, samples: int, fallback_ms: float | None = None) -> PlacedRuntime: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VariantInference:
    """The way from samples to a variant's answers. chain: of its parts. decider: decides after each exit; None: it is whole.

    scale: brings samples in the bundle's own size to the SubNet's; None: they have it.
    """

    chain: ExitChain
    decider: Decider | None = None
    scale: Callable[[Array], Array] | None = None


class Answerer:
    """A variant that can answer. form: the format of its files, also if the variant does not name it.

    needed: parts without which it does not start; parts: all that its samples may reach. work: calls a function with arguments;
    stack traces show it under the name of SubNet and format. over: runs it over several devices, if it is placed; it then has
    no parts of the pool. chain, decider, scale: those of its inference.
    """

    __slots__ = ("chain", "decider", "form", "needed", "over", "parts", "scale", "subnet", "variant", "work")

    def __init__(
        self,
        variant: Variant,
        subnet: BundledSubNet,
        form: BundleFormat,
        inference: VariantInference,
        *,
        needed: tuple[PoolPart, ...] = (),
        parts: tuple[PoolPart, ...] = (),
        over: PlacedRuns | None = None,
    ) -> None:
        self.variant, self.subnet, self.form = variant, subnet, form
        self.chain, self.decider, self.scale = inference.chain, inference.decider, inference.scale
        self.needed, self.parts, self.over = needed, parts, over
        self.work = _named(f"SubNet {variant.digest} in {form}")

    @property
    def figures(self) -> NetFigures:
        """Figures of the whole SubNet in this format."""
        return self.subnet.figures_of(self.form)

    @property
    def is_warm(self) -> bool:
        """Whether it starts without loading a part."""
        return all(part.value is not None for part in self.needed)

    @property
    def is_loaded(self) -> bool:
        """Whether none of its samples has to wait for loading."""
        return all(part.value is not None for part in self.parts)

    @property
    def need_mib(self) -> float:
        """Memory that it needs to start [MiB], as far as known."""
        return sum(part.need_mib for part in self.needed)

    def answer(self, x_NCHW: Array, runtime: PlacedRuntime | None = None) -> ChainAnswers:
        """Answers of samples in the bundle's own size, which are scaled to the SubNet's. VariantError, NotBackError.

        runtime: of this request, if the variant is placed over several devices.
        """
        chain = self._chain(runtime)
        return self._run(x_NCHW, lambda x: chain.infer(x, self.decider))

    def outputs(self, x_NCHW: Array, runtime: PlacedRuntime | None = None) -> Array:
        """Raw outputs of such samples, flattened to (N, numbers). VariantError, NotBackError."""
        return self._run(x_NCHW, self._chain(runtime).outputs)

    def _chain(self, runtime: PlacedRuntime | None) -> ExitChain:
        return self.chain if runtime is None else ExitChain(self.chain.manifest, runtime)

    def _run(self, x_NCHW: Array, run: Callable[[Array], Found]) -> Found:
        try:
            found: Found = self.work(run, x_NCHW if self.scale is None else self.scale(x_NCHW))
            return found
        except NotBackError:
            raise
        except Exception as error:  # runtimes raise many kinds, none of them ours
            raise VariantError(failure(error)) from error


def _named(name: str) -> Work[Any]:
    """`_call` under another name; this costs nothing at run time and needs no source file."""
    return cast(Work[Any], FunctionType(_call.__code__.replace(co_name=name, co_qualname=name), globals()))


def _call(work: Work[Found], *given: Any) -> Found:
    return work(*given)


def runtime_of(manifest: ChainManifest, parts: tuple[PoolPart, ...]) -> ChainRuntime:
    """Runs the parts of a variant, which are loaded when they run."""
    if len(parts) > len(manifest.segments):
        return JoinedFiles(manifest, len(parts), lambda at: parts[at].brought())
    if manifest.format == "onnx":
        return OnnxChain(manifest, lambda at: parts[at].brought())
    return _PooledNet(parts[0])


class _PooledNet:
    """A net of ncnn that is fetched from the pool when samples come."""

    batch: int | None = 1

    def __init__(self, net: PoolPart) -> None:
        self._net = net

    def start(self, x_NCHW: Array) -> ChainRun:
        """A run at its start, with one sample (1, C, H, W)."""
        run: ChainRun = self._net.brought().start(x_NCHW)
        return run

    def close(self) -> None:
        """Do nothing: the pool frees the net."""
