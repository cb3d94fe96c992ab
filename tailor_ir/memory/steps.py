"""The steps of a network as a runtime executes it: what each reads and writes, and how values lie in memory."""

from collections.abc import Mapping
from dataclasses import dataclass

from tailor_ir.axes import Axis
from tailor_ir.memory.layouts import Layout
from tailor_ir.spaces.presence import Presence


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeStep:
    """One step, and the SubNets that run it.

    in_place: what it reads and may write over, most wanted first. view: what it writes is what it reads. relayout: a view
    where what it reads lies in the layout of what it writes (another producer may change that).
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    present: Presence
    in_place: tuple[str, ...] = ()
    view: bool = False
    relayout: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """All steps of all SubNets in their order; layout, axes and element type of every value that they read or write.

    `kinds`: value -> the value of the network that has its element type. `groups`: patches of a convolution -> its groups.
    """

    steps: tuple[RuntimeStep, ...]
    layouts: Mapping[str, Layout]
    axes: Mapping[str, tuple[Axis, ...]]
    kinds: Mapping[str, str]
    groups: Mapping[str, int]
