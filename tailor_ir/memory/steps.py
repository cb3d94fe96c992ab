"""The steps of a network as a runtime executes them: the values that each reads and writes, and their layouts in memory."""

from collections.abc import Mapping
from dataclasses import dataclass

from solvers.tables import Derived
from tailor_ir.axes import Axis
from tailor_ir.memory.layouts import Layout
from tailor_ir.spaces.presence import Presence


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeStep:
    """One step, and the SubNets that run it.

    in_place: operands whose memory the result may reuse, the preferred one first. view: the result shares the operand's memory.
    relayout: the step changes the layout; it is a view in SubNets whose operand already has that layout.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    present: Presence
    in_place: tuple[str, ...] = ()
    view: bool = False
    relayout: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """All steps of all SubNets in order; layout, axes and element type of every value that they read or write.

    typed_like: value -> the value of the network with the same element type. groups: patches of a convolution -> its groups.
    deciding: value -> the axis that decides on blocks instead of its own (layout "read"). derived: derived columns of extended
    codes: the space's, then further ones.
    """

    steps: tuple[RuntimeStep, ...]
    layouts: Mapping[str, Layout]
    axes: Mapping[str, tuple[Axis, ...]]
    typed_like: Mapping[str, str]
    groups: Mapping[str, int]
    deciding: Mapping[str, Axis]
    derived: tuple[Derived, ...] = ()
