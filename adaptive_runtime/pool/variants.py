"""Variants: a SubNet of a bundle and the exit at which it answers, ready to answer.

Legend: N samples, C channels, H height, W width.
"""

import re
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.bundles import BundledSubNet, BundleFormat, NetFigures
from adaptive_runtime.chains import ChainAnswers, ExitChain
from adaptive_runtime.exits import Decider
from adaptive_runtime.pool.parts import PoolPart, VariantError, failure

Array = NDArray[np.float32]
Found = TypeVar("Found")
Work = Callable[..., Found]
STACK_FRAME = re.compile(r" in SubNet (\S+) in (\S+)\n")
"""Digest and format of a SubNet that a thread works for, in the stacks of a process that has crashed."""


class Variant(NamedTuple):
    """What answers: a SubNet by its digest, whole; up to an exit of its chain; or `early`, by thresholds, sample by sample.

    form: the format of its files; None: the first one of the pool that the SubNet has.
    """

    digest: str
    exit: str | None = None
    early: bool = False
    form: BundleFormat | None = None

    @property
    def whole(self) -> "Variant":
        """The whole SubNet in the same format."""
        return Variant(self.digest, form=self.form)

    @property
    def files(self) -> str:
        """The SubNet in its format, in words."""
        return self.digest if self.form is None else f"{self.digest} in {self.form}"


class Answerer:
    """A variant that can answer. form: the format of its files, also where the variant does not name it.

    needed: parts without which it does not start; parts: all that its samples may come to. work: calls what it is given, with
    what follows; stacks show it by the SubNet and the format.
    """

    __slots__ = ("chain", "decider", "form", "needed", "parts", "scale", "subnet", "variant", "work")

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
    ) -> None:
        self.variant, self.subnet, self.form = variant, subnet, form
        self.chain, self.decider = chain, decider
        self.needed, self.parts, self.scale = needed, parts, scale
        self.work = _named(f"SubNet {variant.digest} in {form}")

    @property
    def figures(self) -> NetFigures:
        """What is known of the whole SubNet in this format."""
        return self.subnet.figures_of(self.form)

    @property
    def is_warm(self) -> bool:
        """Whether it starts without loading anything."""
        return all(part.value is not None for part in self.needed)

    @property
    def is_loaded(self) -> bool:
        """Whether no sample of it has to wait for loading."""
        return all(part.value is not None for part in self.parts)

    @property
    def need_mib(self) -> float:
        """What it takes to start [MiB], as far as is known."""
        return sum(part.need_mib for part in self.needed)

    def answer(self, x_NCHW: Array) -> ChainAnswers:
        """Answers of samples in the bundle's own size, which are scaled to the SubNet's. VariantError."""
        return self._run(x_NCHW, lambda x: self.chain.infer(x, self.decider))

    def outputs(self, x_NCHW: Array) -> Array:
        """Raw outputs of such samples, flat: (N, numbers). VariantError."""
        return self._run(x_NCHW, self.chain.outputs)

    def _run(self, x_NCHW: Array, run: Callable[[Array], Found]) -> Found:
        try:
            found: Found = self.work(run, x_NCHW if self.scale is None else self.scale(x_NCHW))
            return found
        except Exception as error:  # runtimes raise many kinds, none of them ours
            raise VariantError(failure(error)) from error


def _named(name: str) -> Work[Any]:
    """`_call` by another name, which costs nothing while it runs, and which no file has to keep."""
    return cast(Work[Any], FunctionType(_call.__code__.replace(co_name=name, co_qualname=name), globals()))


def _call(work: Work[Found], *given: Any) -> Found:
    return work(*given)
