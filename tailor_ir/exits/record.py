"""The record that a kind of heads fills in."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tailor_ir.alternatives.sketch import Sketch


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A head to be written at the exit of the sketch's site.

    most_macs: multiply-accumulates that its convolution may take, for all samples of the traced shapes. generator: random
    generator of its first weights, seeded by the place.
    """

    sketch: Sketch
    classes: int
    most_macs: int
    generator: torch.Generator


Write = Callable[[Head], str]
"""Writes a head into its sketch; returns the value (B, K) of its answer. NotHere if no head is possible there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadKind:
    """One kind of heads, with the name by which a space requests it."""

    name: str
    write: Write
