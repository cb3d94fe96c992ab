"""The steps that a runtime executes for a network, in order: nodes that run as one, and changes of layout.

The rules are ONNX Runtime's on a CPU, all graph optimisations on, as observed in its optimised files and in what it asks
its allocator for (`benchmarks/memory.py`); `Rules` leaves out what another runtime does not do:

- a convolution takes up its BatchNorm, the addition of a residual (written over that residual) and an activation; it and an
  average pooling do the padding before them;
- convolutions and poolings work on channels in blocks, and so do activations after them; where a neighbour does not, the
  tensor is laid out anew; a convolution that reads channels that are no multiple of four, or whose groups fill no blocks,
  copies its patches;
- reshapes are views, and so are transposes that only move the channels; a matrix product does transposes and
  scales itself; what is transposed and then split is split first;
- linear maps work on rows (positions, channels); an activation is written over what it reads, if nobody reads that again;
- steps run depth first from the outputs, of several inputs the one that is defined last comes first; the file's own nodes
  are defined before those on blocks, these before what takes tensors out of blocks (in the runtime in an order that differs
  from session to session), and last are convolutions that took up an addition outside of blocks.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from tailor_ir.axes import Axis
from tailor_ir.graph import Graph, Node
from tailor_ir.memory.layouts import Layout, Rules, in_blocks, read_as
from tailor_ir.memory.steps import RuntimeStep, Steps
from tailor_ir.ops.elementwise import ACTIVATIONS
from tailor_ir.spaces.needs import DerivedColumns, find_needs
from tailor_ir.spaces.presence import Presence, Producers, Selection
from tailor_ir.spaces.structure import Structure

VIEWS = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
CHANNELS_LAST, CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
MOVABLE = ACTIVATIONS | {"Add", "Div", "Mul", "Sub"}
FUSED_INTO_CONV = frozenset(("Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh"))
FUSED_INTO_LINEAR = frozenset(("LeakyRelu", "Relu", "Sigmoid", "Tanh"))
PADDED = frozenset(("Relu", "Sigmoid", "Tanh"))  # on blocks, padding included, where they are no part of a convolution
KEEP_BLOCKS = frozenset(("Gelu", "Silu"))  # never part of a convolution, but computed on its blocks, padding included
POOLS = frozenset(("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"))
IN_PLACE = frozenset(
    ("Celu", "Clip", "Elu", "HardSigmoid", "LeakyRelu", "LogSoftmax", "Relu", "Selu", "Sigmoid", "Softmax", "Softplus")
).union(("Softsign", "Tanh", "ThresholdedRelu"))
REPEATED = (("mode", "nearest"), ("coordinate_transformation_mode", "asymmetric"), ("nearest_mode", "floor"))
"""A Resize on blocks: every position several times."""
LAST = 1e6  # behind all other positions
FUNCTIONS = frozenset(("HardSwish", "Mish"))  # run as two, where they are no part of a convolution


@dataclass(slots=True)
class _OpenStep:
    """A step that may still take up nodes."""

    position: float  # of its last node
    unit: Hashable  # `Structure.unit_of`; nodes of other units are not taken up
    reads: list[str]
    writes: tuple[str, ...]
    wanted: Layout = "plain"  # of what it reads
    in_place: tuple[str, ...] = ()
    view: bool = False
    relayout: bool = False
    norms: bool = False  # whether it can still take up a BatchNorm,
    sums: bool = False  # an addition
    late: bool = False  # whether it took up an addition outside of blocks, which the runtime does after all else
    activations: frozenset[str] = frozenset()  # or one of these


@dataclass(slots=True)
class _Planner:
    graph: Graph
    axes: Mapping[str, tuple[Axis, ...]]
    unit_of: Mapping[str, Hashable]
    sources: Producers
    sizes_of: Callable[[Axis], frozenset[int]]
    rules: Rules
    data: frozenset[str] = frozenset()
    makers: Mapping[str, Node] = field(default_factory=dict)
    consumers: Mapping[str, Sequence[Node]] = field(default_factory=dict)
    drafts: list[_OpenStep] = field(default_factory=list)
    by_output: dict[str, _OpenStep] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    new_axes: dict[str, tuple[Axis, ...]] = field(default_factory=dict)
    typed_like: dict[str, str] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    deciding: dict[str, Axis] = field(default_factory=dict)
    padded: dict[str, str] = field(default_factory=dict)  # result of a Pad that the reader does itself -> what it pads
    channels_last: set[str] = field(default_factory=set)  # values that are stored so, though their axes say otherwise
    transposed: dict[str, tuple[int, ...]] = field(default_factory=dict)  # value -> permutation that follows a Split

    def plan(self, selections: Sequence[Selection], columns: DerivedColumns) -> Steps:
        """All steps, each with its presence. columns: as of `find_needs`."""
        self.data, self.consumers = _computed(self.graph), self.graph.consumers()
        self.makers = self.graph.producers()
        self.layouts = dict.fromkeys(self.graph.inputs, "plain")
        for position, node in enumerate(self.graph.nodes):
            if not self.data.isdisjoint(node.outputs):
                inputs = tuple(self.padded.get(name, name) for name in node.inputs if name in self.data)
                if self._pads_for_another(node):
                    self.padded[node.outputs[0]] = inputs[0]
                elif not self._taken_up(node, inputs, position):
                    self._add(node, inputs, position)
        for position, draft in enumerate(self._ordered(), start=len(self.graph.nodes)):
            if self.layouts[draft.writes[0]] not in ("plain", "rows"):  # these are made last, in this order
                draft.position = position
        self._relayouts()
        for position, draft in enumerate(self._ordered()):
            if draft.late:
                draft.position = 2 * LAST + position
        drafts = self._ordered()
        needs = find_needs([(draft.reads, draft.writes) for draft in drafts], self.graph.outputs, selections, columns)
        steps = tuple(map(_step, drafts, needs.steps))
        axes = {name: self.new_axes.get(name) or self.axes[name] for name in self.layouts}
        typed_like = {name: self.typed_like.get(name, name) for name in self.layouts}
        return Steps(
            steps=steps,
            layouts=self.layouts,
            axes=axes,
            typed_like=typed_like,
            groups=self.groups,
            deciding=self.deciding,
            derived=tuple(columns.derived),
        )

    # -- what runs as one --------------------------------------------------------------------------------------------

    def _taken_up(self, node: Node, inputs: Sequence[str], position: int) -> bool:
        """Whether the node became part of the step before it."""
        for name in self._operands(node, inputs):
            before = self.by_output.get(name)
            if (
                before is None
                or before.writes[0] != name
                or (len(before.writes) > 1 and before.writes[1] not in self.groups)
                or before.unit != self.unit_of[node.name]
                or len(self.consumers[name]) > 1
                or name in self.graph.outputs
            ):
                continue
            if node.op == "BatchNormalization":
                fits = before.norms
            elif node.op == "Add":
                fits = before.sums and len(inputs) == 2 and self._residual(inputs, name) is not None
            else:
                fits = node.op in before.activations
            if fits:
                self._merge(before, node, inputs, name, position)
                return True
        return False

    def _operands(self, node: Node, inputs: Sequence[str]) -> list[str]:
        """The operands in the order in which they are asked: outside of blocks, the second convolution adds the first."""
        names = list(dict.fromkeys(inputs))
        return names if node.op != "Add" or self.layouts[names[0]] == "blocked" else names[::-1]

    def _residual(self, inputs: Sequence[str], name: str) -> str | None:
        """The value that is added to `name`; None when it has other axes, or is not in blocks and `name` is."""
        (other,) = [i for i in inputs if i != name] or [name]
        alike = self.layouts[name] != "blocked" or self.layouts[other] == "blocked"
        return other if other != name and alike and self._same_axes(other, name) else None

    def _same_axes(self, name: str, other: str) -> bool:
        """Whether two values have equal axes. Axes of an image are compared by size: one size comes about in many ways."""
        shape, axes, others = self.graph.shapes[name], self.axes[name], self.axes[other]
        return shape == self.graph.shapes[other] and (axes == others or (len(shape) == 4 and axes[:2] == others[:2]))

    def _merge(self, before: _OpenStep, node: Node, inputs: Sequence[str], name: str, position: int) -> None:
        if node.op == "Add":
            other = self._residual(inputs, name)
            assert other is not None
            before.reads.append(other)
            before.in_place = (other,)
            before.late = self.layouts[name] != "blocked"
        before.norms, before.sums = False, before.sums and node.op == "BatchNormalization"
        if node.op in before.activations:
            before.activations = frozenset()
        layout = self.layouts.pop(name)
        del self.by_output[name]
        if name in self.deciding:
            self.deciding[node.outputs[0]] = self.deciding.pop(name)
        before.writes, before.position = (node.outputs[0], *before.writes[1:]), position
        self.by_output[before.writes[0]] = before
        self.layouts[before.writes[0]] = layout

    def _add(self, node: Node, inputs: tuple[str, ...], position: int) -> None:
        draft = _OpenStep(
            position, self.unit_of[node.name], list(dict.fromkeys(inputs)), tuple(filter(None, node.outputs))
        )
        layout: Layout = "plain"
        if node.op == "Conv" and node.inputs[1] not in self.data:
            draft.norms, draft.activations = True, FUSED_INTO_CONV
            draft.sums = self.rules.channel_block > 1
            if self._blocked_conv(node):
                layout, draft.wanted = self._conv_layouts(node, self.axes[inputs[0]][1])
            if layout != "blocked" and self._copies_patches(node):
                self._add_patches(node, draft)
                if layout != "plain":
                    self.deciding[draft.writes[1]] = self.axes[inputs[0]][1]
        elif self._blocked_pool(node):
            layout = draft.wanted = self._settled("whole", self.axes[inputs[0]][1])
        elif inputs and all(self.layouts[name] == "blocked" for name in inputs) and self._keeps_blocks(node, inputs):
            padded = node.op in ("Add", "Resize") or node.op in KEEP_BLOCKS or node.op in PADDED
            layout = draft.wanted = "blocked" if padded else self._settled("whole", self.axes[inputs[0]][1])
        elif node.op == "Linear":
            layout, draft.norms, draft.activations = "rows", True, FUSED_INTO_LINEAR
        elif node.op in VIEWS or (node.op == "Transpose" and self._free(node)) or self._scales_product(node, inputs):
            draft.view = True
        if node.op in MOVABLE and layout == "plain":
            self._move_channels(node, draft)
        if node.op in IN_PLACE:
            draft.in_place = tuple(draft.reads)
        if node.op in FUNCTIONS and layout == "plain":
            self._add_inner(node, draft, "plain")
        if node.op == "GroupNorm":  # normalised in another shape, scaled, shifted
            self._add_inner(node, draft, "rows")
            self._add_inner(node, draft, "plain")
            draft.reads = draft.reads[-1:]
        self._enter(draft, layout)
        if node.op in ("Split", "Squeeze") and inputs[0] in self.transposed:
            self._transpose_results(node, draft)

    def _move_channels(self, node: Node, draft: _OpenStep) -> None:
        """Keep the channels last if all operands have them last; else transpose the operands that have."""
        (name,) = node.outputs
        operands = [i for i in draft.reads if self.axes[i] == self.axes[name]]
        if operands and self.channels_last.issuperset(operands):
            self.channels_last.add(name)
            self.new_axes[name] = tuple(self.axes[name][i] for i in CHANNELS_LAST)
            return
        for operand in self.channels_last.intersection(operands):
            new = f"{operand}/first"
            if new not in self.layouts:
                self.typed_like[new], self.new_axes[new] = operand, self.axes[operand]
                self._enter(_OpenStep(draft.position - 0.5, None, [operand], (new,)), "plain")
            draft.reads[draft.reads.index(operand)] = new

    def _add_inner(self, node: Node, draft: _OpenStep, layout: Layout) -> None:
        """One step of an operator that the runtime executes as several; the next step reads its result, too."""
        (name,) = node.outputs
        inner = f"{name}/inner {layout}"
        self.typed_like[inner], self.new_axes[inner] = name, self.axes[name]
        self._enter(_OpenStep(draft.position - 0.5, draft.unit, draft.reads[-1:], (inner,)), layout)
        draft.reads.append(inner)

    def _copies_patches(self, node: Node) -> bool:
        """Whether the runtime copies patches for a convolution that works on no blocks (im2col). 1 × 1 kernels need no copy."""
        direct = (
            not any(node.ints("pads", (0,)))
            and set(node.ints("strides", (1,))) == {1}
            and set(self.graph.shapes[node.inputs[1]][2:]) == {1}
        )
        return not direct

    def _add_patches(self, node: Node, draft: _OpenStep) -> None:
        name = f"{node.outputs[0]}/patches"
        self.typed_like[name], self.groups[name] = node.outputs[0], node.int("group", 1)
        self.new_axes[name] = (*self.axes[node.inputs[1]], *self.axes[node.outputs[0]][2:])
        draft.writes = (*draft.writes, name)

    def _enter(self, draft: _OpenStep, layout: Layout) -> None:
        self.drafts.append(draft)
        for name in draft.writes:
            self.by_output[name] = draft
            self.layouts[name] = "im2col" if name in self.groups else layout

    def _settled(self, layout: Layout, channels: Axis) -> Layout:
        """Replace a layout that depends on the number of channels by a fixed one, if all SubNets agree on it."""
        sizes = self.sizes_of(channels)
        if layout == "many" and min(sizes) >= self.rules.channel_block:
            layout = "aligned"  # one name for what is the same, so that a change of layout is made once
        found = {in_blocks(size, layout, self.rules) for size in sizes}
        if len(found) > 1:
            return layout
        return "blocked" if found.pop() else "plain"

    def _conv_layouts(self, node: Node, channels: Axis) -> tuple[Layout, Layout]:
        """Layouts of what a convolution writes and reads. channels: that it reads."""
        groups = node.int("group", 1)
        written = self._settled(read_as(groups), channels)
        if written == "read":
            self.deciding[node.outputs[0]] = channels
        return written, written if groups > 1 else self._settled("many", channels)

    def _blocked_pool(self, node: Node) -> bool:
        """Whether a pooling works on blocks of channels if they are whole, whatever the layout of what it reads."""
        return (
            node.op in POOLS
            and len(node.outputs) == 1
            and len(self.graph.shapes[node.inputs[0]]) == 4 < self.rules.channel_block
        )

    def _pads_for_another(self, node: Node) -> bool:
        """Whether a padding is done by the convolution or pooling that reads it. Source: onnxruntime, PadFusion.

        That is so where its number is stated; it is taken to be zero. A padding that crops keeps or shrinks its sizes.
        """
        users = self.consumers.get(node.outputs[0], ())
        stated = self.rules.channel_block > 1 and node.op == "Pad" and len(node.inputs) > 2 and bool(node.inputs[2])
        if not stated or node.attribute("mode", "constant") != "constant" or len(users) != 1:
            return False
        before, after = self.graph.shapes[node.inputs[0]], self.graph.shapes[node.outputs[0]]
        grown = before[:2] == after[:2] and before != after and all(a <= b for a, b in zip(before, after, strict=True))
        return grown and users[0].op in ("AveragePool", "Conv") and node.outputs[0] not in self.graph.outputs

    def _free(self, node: Node) -> bool:
        """Whether the runtime executes no step for this transpose.

        A transpose that the runtime moves behind the following Split is entered in `transposed`.
        """
        order, users = node.ints("perm"), self.consumers.get(node.outputs[0], ())
        if order == CHANNELS_FIRST:
            self.channels_last.add(node.outputs[0])
        if order in (CHANNELS_FIRST, CHANNELS_LAST):
            return True
        if node.inputs[0] in self.transposed:
            return False
        if len(users) == 1 and users[0].op == "Split" and node.outputs[0] not in self.graph.outputs:
            self.transposed[node.outputs[0]] = order
            return True
        *rest, before, last = range(len(order))
        return order == (*rest, last, before) and all(user.op == "MatMul" for user in users)

    def _scales_product(self, node: Node, inputs: Sequence[str]) -> bool:
        """Whether the node multiplies by one number, and a matrix product before or after it takes that over."""
        if node.op not in ("Mul", "Div") or len(inputs) != 1:
            return False
        numbers = all(prod(self.graph.shapes[name]) == 1 for name in node.inputs if name not in self.data)
        maker, users = self.makers.get(inputs[0]), self.consumers.get(node.outputs[0], ())
        after = maker is not None and maker.op == "MatMul" and len(self.consumers[inputs[0]]) == 1
        return numbers and (after or (bool(users) and all(user.op == "MatMul" for user in users)))

    def _transpose_results(self, node: Node, draft: _OpenStep) -> None:
        """Transpose each result of a Split or Squeeze by itself; a result whose only reader is a transpose is left to it."""
        order = self.transposed[node.inputs[0]]
        if node.op == "Split":
            draft.writes = tuple(f"{name}/split" for name in draft.writes)
            for name in filter(None, node.outputs):
                part = f"{name}/split"
                self.layouts[part], self.typed_like[part], self.by_output[part] = "plain", name, draft
                self.new_axes[part] = tuple(self.axes[name][order.index(axis)] for axis in range(len(order)))
                self._enter(_OpenStep(draft.position, draft.unit, [part], (name,), view=self._waits(name)), "plain")
                if self._waits(name):
                    self.transposed[name] = order
        elif self._waits(node.outputs[0]):
            self.transposed[node.outputs[0]] = order

    def _waits(self, name: str) -> bool:
        """Whether the only reader of a value, also through a Squeeze, is a transpose."""
        users = self.consumers.get(name, ())
        if len(users) != 1 or name in self.graph.outputs:
            return False
        return users[0].op == "Transpose" or (users[0].op == "Squeeze" and self._waits(users[0].outputs[0]))

    def _blocked_conv(self, node: Node) -> bool:
        """Whether a convolution works on blocks of channels. Source: onnxruntime, NchwcTransformer."""
        block, shape = self.rules.channel_block, self.graph.shapes[node.inputs[1]]
        if block == 1 or len(shape) != 4:
            return False
        groups = node.int("group", 1)
        depthwise = shape[1] == 1 and shape[0] == groups
        return groups == 1 or depthwise or (shape[1] % block == 0 and shape[0] // groups % block == 0)

    def _keeps_blocks(self, node: Node, inputs: Sequence[str]) -> bool:
        same = all(self._same_axes(name, inputs[0]) for name in inputs)
        if node.op in ("Add", "Mul"):
            return same and len(inputs) == 2
        if node.op == "Concat":
            block = self.rules.channel_block
            return node.int("axis", 0) == 1 and all(self.graph.shapes[name][1] % block == 0 for name in inputs)
        if node.op in KEEP_BLOCKS:
            return True
        if node.op == "Resize":
            return all(node.attribute(name) == wanted for name, wanted in REPEATED)
        return len(inputs) == 1 and (node.op in POOLS or node.op in FUSED_INTO_CONV or node.op == "BatchNormalization")

    # -- layouts -----------------------------------------------------------------------------------------------------

    def _relayouts(self) -> None:
        """Add the steps that change layouts: one step for each value and layout, shared by all its readers."""
        for draft in tuple(self.drafts):
            renamed = {
                name: self._relayout(name, draft.wanted, self._made_at(name, draft))
                for name in draft.reads
                if self._may_differ(name, draft.wanted)
            }
            draft.reads = [renamed.get(name, name) for name in draft.reads]
            draft.in_place = tuple(renamed.get(name, name) for name in draft.in_place)

    def _relayout(self, name: str, wanted: Layout, position: float) -> str:
        new = f"{name}/{wanted}"
        if new not in self.layouts:
            self._enter(_OpenStep(position, None, [name], (new,), relayout=True), wanted)
            moved = [u.outputs[0] for u in self.consumers.get(name, ()) if u.op == "Transpose" and self._free(u)]
            self.typed_like[new] = name
            self.new_axes[new] = self.axes[moved[0] if moved and wanted == "plain" else name]
        return new

    def _made_at(self, name: str, reader: _OpenStep) -> float:
        """The position of a change of layout: into blocks right before the reader, out of blocks after all others."""
        if self.layouts[name] in ("plain", "rows"):
            return reader.position - 0.5
        return LAST + self.by_output[name].position

    def _may_differ(self, name: str, wanted: Layout) -> bool:
        """Whether the producer of a value has another layout than its reader wants, in some SubNet."""
        layouts = {self.layouts[source] for source, _ in self.sources.all_of(name)}
        return any(own != wanted and {own, wanted} != {"plain", "rows"} for own in layouts)

    # -- order -------------------------------------------------------------------------------------------------------

    def _ordered(self) -> list[_OpenStep]:
        """Steps depth first from the outputs. Of several inputs, the one with the last position comes first."""
        read = {source for draft in self.drafts for source in self._read_by(draft)}
        leaves = [draft for draft in self.drafts if read.isdisjoint(draft.writes)]
        stack = [(draft, False) for draft in sorted(leaves, key=lambda d: d.position)]
        seen: set[int] = set()
        ordered: list[_OpenStep] = []
        while stack:
            draft, done = stack.pop()
            if done:
                ordered.append(draft)
            elif id(draft) not in seen:
                seen.add(id(draft))
                stack.append((draft, True))
                makers = {id(d): d for name in self._read_by(draft) if (d := self.by_output.get(name)) is not None}
                stack += [(maker, False) for maker in sorted(makers.values(), key=lambda d: d.position)]
        return ordered

    def _read_by(self, draft: _OpenStep) -> list[str]:
        """The values that a step reads, and those that it reads in their place in some SubNet."""
        return [source for name in draft.reads for source in (name, *(other for other, _ in self.sources.all_of(name)))]


def _step(draft: _OpenStep, present: Presence) -> RuntimeStep:
    return RuntimeStep(
        reads=tuple(draft.reads),
        writes=draft.writes,
        present=present,
        in_place=draft.in_place,
        view=draft.view,
        relayout=draft.relayout,
    )


def _computed(graph: Graph) -> frozenset[str]:
    """Values that depend on the network's input. Other values are constants, which the runtime folds."""
    found = set(graph.inputs)
    for node in graph.nodes:
        if not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return frozenset(found)


def find_steps(structure: Structure, sizes_of: Callable[[Axis], frozenset[int]], rules: Rules) -> Steps:
    """The steps of all SubNets. sizes_of: an axis -> its sizes in all SubNets."""
    unit_of, space = structure.unit_of(), structure.space
    planner = _Planner(structure.graph, structure.axis_map.axes, unit_of, space.sources, sizes_of, rules)
    return planner.plan(space.selections, DerivedColumns.of(len(space.variables), space.derived))
