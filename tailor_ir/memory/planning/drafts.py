"""Steps while they are planned: the nodes that they may still absorb, and the properties of their values."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from tailor_ir.axes import Axis
from tailor_ir.graph import Graph, Node
from tailor_ir.memory.layouts import Layout, Rules
from tailor_ir.memory.steps import RuntimeStep
from tailor_ir.spaces.presence import Presence, Producers

LAST = 1e6  # after all other positions


@dataclass(slots=True)
class OpenStep:
    """A step that may still absorb nodes."""

    position: float  # of its last node
    unit: Hashable  # `Structure.unit_of`; nodes of other units are not absorbed
    reads: list[str]
    writes: tuple[str, ...]
    wanted: Layout = "plain"  # layout of its inputs
    in_place: tuple[str, ...] = ()
    view: bool = False
    relayout: bool = False
    norms: bool = False  # whether it can still absorb a BatchNorm,
    sums: bool = False  # an addition,
    late: bool = False  # whether it absorbed an addition outside of blocks; the runtime executes such steps last
    activations: frozenset[str] = frozenset()  # or one of these

    def closed(self, present: Presence) -> RuntimeStep:
        """The executable step, for the SubNets that have it."""
        return RuntimeStep(
            reads=tuple(self.reads),
            writes=self.writes,
            present=present,
            in_place=self.in_place,
            view=self.view,
            relayout=self.relayout,
        )


@dataclass(slots=True)
class Drafts:
    """The steps of a network so far, in no order, and their values.

    sizes_of: an axis -> its sizes in all SubNets. data: values that depend on the network's input; others are constants, which
    the runtime folds. makers, consumers: as in `Graph`. by_output: the step that writes a value. new_axes: of values that the
    graph does not have, or has with other axes; typed_like: for each of these, a value of the same type. groups and deciding:
    as in `Steps`.
    """

    graph: Graph
    axes: Mapping[str, tuple[Axis, ...]]
    unit_of: Mapping[str, Hashable]
    sources: Producers
    sizes_of: Callable[[Axis], frozenset[int]]
    rules: Rules
    data: frozenset[str] = field(init=False)
    makers: Mapping[str, Node] = field(init=False)
    consumers: Mapping[str, Sequence[Node]] = field(init=False)
    steps: list[OpenStep] = field(default_factory=list)
    by_output: dict[str, OpenStep] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(init=False)
    new_axes: dict[str, tuple[Axis, ...]] = field(default_factory=dict)
    typed_like: dict[str, str] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    deciding: dict[str, Axis] = field(default_factory=dict)
    padded: dict[str, str] = field(default_factory=dict)  # result of a Pad that its reader does -> the Pad's input
    channels_last: set[str] = field(default_factory=set)  # values stored with channels last, although their axes differ
    transposed: dict[str, tuple[int, ...]] = field(default_factory=dict)  # value -> permutation that follows a Split

    def __post_init__(self) -> None:
        self.data, self.consumers = _computed(self.graph), self.graph.consumers()
        self.makers = self.graph.producers()
        self.layouts = dict.fromkeys(self.graph.inputs, "plain")

    def enter(self, draft: OpenStep, layout: Layout) -> None:
        self.steps.append(draft)
        for name in draft.writes:
            self.by_output[name] = draft
            self.layouts[name] = "im2col" if name in self.groups else layout

    def same_axes(self, name: str, other: str) -> bool:
        """Whether two values have equal axes. Image axes are compared by size: one size can be derived in several ways."""
        shape, axes, others = self.graph.shapes[name], self.axes[name], self.axes[other]
        return shape == self.graph.shapes[other] and (axes == others or (len(shape) == 4 and axes[:2] == others[:2]))


def _computed(graph: Graph) -> frozenset[str]:
    """Values that depend on the network's input."""
    found = set(graph.inputs)
    for node in graph.nodes:
        if not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return frozenset(found)
