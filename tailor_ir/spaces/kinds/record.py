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

    A kind proposes variables for the whole network, for each stage, for what stages and blocks leave over, or for each
    block; in this order, and of several kinds in the order of `KINDS`. A proposal adds a variable to the draft, and what the
    variable does: `Draft.size` (a group's sizes) or `Draft.select` (a value's producers).

    phase: when progressive training opens the kind's choices, ascending; None: from the start.
    uniform: which multiplier of a whole network the kind belongs to in the baselines that shrink all alike.
    divides: its choices are numbers of channels, or of heads.
    seen: the shapes of a stage tell the choice, so that tables of layers do not repeat it.
    part: the part of a Transformer block that selectors know the kind's blocks by, beside the block's own name.
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
