"""The record that a kind of variables fills in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tailor_ir.spaces.draft import Draft, NamedBlock
from tailor_ir.structure.regions import Stage

VariableScope = Literal["global", "stage", "block"]
Uniform = Literal["resolution", "width", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of variables.

    A kind proposes variables for the whole network, for each stage, for channels outside of stages and blocks, or for each
    block; in this order, and for several kinds in the order of `KINDS`. A proposal adds to the draft a variable and its effect:
    `Draft.size` (a group's sizes) or `Draft.select` (a value's producers).

    phase: position of the kind's choices in progressive training, ascending; None: open from the start. uniform: the multiplier
    of a whole network to which the kind belongs in the baselines that shrink everything alike. divides: its choices are numbers
    of channels or heads. seen: the choice follows from the shapes of a stage, so tables of layers do not repeat it. part: the
    part of a Transformer block by which selectors match the kind's blocks, besides the block's own name.
    """

    name: str
    scope: VariableScope
    phase: int | None
    uniform: Uniform = "other"
    divides: bool = False
    seen: bool = False
    part: str = ""
    of_network: Callable[[Draft], None] | None = None
    of_stage: Callable[[Draft, Stage], None] | None = None
    of_rest: Callable[[Draft, Sequence[NamedBlock]], None] | None = None
    of_block: Callable[[Draft, NamedBlock], None] | None = None
