"""Variants: a SubNet of a bundle and the exit at which it answers, ready to answer.

Legend: N samples, C channels, H height, W width.
"""

import re
from collections.abc import Callable
from concurrent.futures import Future
from types import FunctionType
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import NotBackError
from adaptive_runtime.bundle.bundles import BundledSubNet, BundleFormat, NetFigures
from adaptive_runtime.bundle.chains import ChainAnswers, ChainRuntime, ExitChain
from adaptive_runtime.exits import Decider
from adaptive_runtime.pool.parts import PoolPart, VariantError, failure

Array = NDArray[np.float32]
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

    stand_in_ms: time of a fallback for these samples; the run gives up early enough for it; None: no fallback.
    """

    def __call__(self, within_ms: float | None, samples: int, stand_in_ms: float | None = None) -> PlacedRuntime: ...


class Answerer:
    """A variant that can answer. form: the format of its files, also if the variant does not name it.

    needed: parts without which it does not start; parts: all that its samples may reach. work: calls a function with arguments;
    stack traces show it under the name of SubNet and format. over: runs it over several devices, if it is placed; it then has
    no
    parts of the pool.
    """

    __slots__ = ("chain", "decider", "form", "needed", "over", "parts", "scale", "subnet", "variant", "work")

    def __init__(
        self,
        variant: Variant,
        subnet: BundledSubNet,
        form: BundleFormat,
        chain: ExitChain,
        decider: Decider | None,
        needed: tuple[PoolPart, ...],
        parts: tuple[PoolPart, ...],
        scale: Callable[[Array], Array] | None,
        over: PlacedRuns | None = None,
    ) -> None:
        self.variant, self.subnet, self.form = variant, subnet, form
        self.chain, self.decider = chain, decider
        self.needed, self.parts, self.scale, self.over = needed, parts, scale, over
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
