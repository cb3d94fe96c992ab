"""Variants: a SubNet of a bundle and the exit at which it answers, ready to answer.

Legend: N samples, C channels, H height, W width.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.bundles import BundledSubNet
from adaptive_runtime.chains import ChainAnswers, ExitChain
from adaptive_runtime.exits import Decider
from adaptive_runtime.pool.parts import PoolPart, VariantError, failure

Array = NDArray[np.float32]


class Variant(NamedTuple):
    """What answers: a SubNet by its digest, whole; up to an exit of its chain; or `early`, by thresholds, sample by sample."""

    digest: str
    exit: str | None = None
    early: bool = False


class Answerer:
    """A variant that can answer. needed: parts without which it does not start; parts: all that its samples may come to."""

    __slots__ = ("chain", "decider", "needed", "parts", "scale", "subnet", "variant")

    def __init__(
        self,
        variant: Variant,
        subnet: BundledSubNet,
        chain: ExitChain,
        decider: Decider | None,
        needed: tuple[PoolPart, ...],
        parts: tuple[PoolPart, ...],
        scale: Callable[[Array], Array] | None,
    ) -> None:
        self.variant, self.subnet, self.chain, self.decider = variant, subnet, chain, decider
        self.needed, self.parts, self.scale = needed, parts, scale

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
        try:
            return self.chain.infer(x_NCHW if self.scale is None else self.scale(x_NCHW), self.decider)
        except Exception as error:  # runtimes raise many kinds, none of them ours
            raise VariantError(failure(error)) from error
