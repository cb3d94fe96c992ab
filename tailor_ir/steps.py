"""What a runtime executes of a network, one step after the other: nodes that run as one, and changes of layout.

The rules are ONNX Runtime's on a CPU, all graph optimisations on, as observed in its optimised files and in what it asks
its allocator for (`benchmarks/memory.py`); `Rules` leaves out what another runtime does not do:

- a convolution takes up its BatchNorm, the addition of a residual (written over that residual) and an activation;
- convolutions and poolings work on channels in blocks, and so do activations after them; where a neighbour does not, the
  tensor is laid out anew; a convolution whose groups fill no blocks copies its patches;
- reshapes are views, and so are transposes that only move the channels; a matrix product does transposes and
  scales itself; what is transposed and then split is split first;
- linear maps work on rows (positions, channels); an activation is written over what it reads, if nobody reads that again;
- steps run depth first from the outputs, of several inputs the one that is defined last comes first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from tailor_ir.axes import Axis
from tailor_ir.graph import Graph, Node
from tailor_ir.ops.elementwise import ACTIVATIONS

Form = Literal["plain", "blocked", "whole", "many", "rows", "im2col"]
"""How a tensor lies in memory: as it is; channels padded to whole blocks; the same, but only where they fill their blocks,
or where they fill at least one; all axes but the last as one; the patches of a convolution, for the time of its step."""

VIEWS = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
CHANNELS_LAST, CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
MOVABLE = ACTIVATIONS | {"Add", "Div", "Mul", "Sub"}
FUSED_INTO_CONV = frozenset(("Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh"))
FUSED_INTO_LINEAR = frozenset(("LeakyRelu", "Relu", "Sigmoid", "Tanh"))
KEEP_BLOCKS = frozenset(("Gelu", "Silu"))  # never part of a convolution, but computed on its blocks, padding included
POOLS = frozenset(("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"))
IN_PLACE = frozenset(
    ("Celu", "Clip", "Elu", "HardSigmoid", "LeakyRelu", "LogSoftmax", "Relu", "Selu", "Sigmoid", "Softmax", "Softplus")
).union(("Softsign", "Tanh", "ThresholdedRelu"))
FUNCTIONS = frozenset(("HardSwish", "Mish"))  # run as two, where they are no part of a convolution
SEGMENT_BYTES = 4 * 128 * 128  # im2col of as many positions as one step of the matrix product takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """channel_block: channels that lie side by side (onnxruntime: 16 with AVX-512 or NEON, 8 with AVX2); 1: no blocks.

    same_shape: a tensor takes the place of one that is no longer read and has the same shape, and no other is freed
    in between (onnxruntime's "memory reuse"); otherwise everything is freed when it is read for the last time.
    """

    channel_block: int = 16
    same_shape: bool = True


ONNXRUNTIME = Rules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step. `block`: position of its block, None when it stays in every SubNet that needs what it writes.

    in_place: what it reads and may write over, most wanted first. view: what it writes is what it reads. relayout: a view
    where what it reads lies in the form of what it writes (a skipped block may change that).
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    block: int | None = None
    in_place: tuple[str, ...] = ()
    view: bool = False
    relayout: bool = False


@dataclass(slots=True)
class _Draft:
    """A step that may still take up nodes."""

    position: float  # of its last node
    block: int | None
    reads: list[str]
    writes: tuple[str, ...]
    wanted: Form = "plain"  # of what it reads
    in_place: tuple[str, ...] = ()
    view: bool = False
    relayout: bool = False
    norms: bool = False  # whether it can still take up a BatchNorm,
    sums: bool = False  # an addition
    activations: frozenset[str] = frozenset()  # or one of these


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """All steps of the largest network in their order; form, axes and element type of every value that they read or write.

    `kinds`: value -> the value of the network that has its element type. `groups`: patches of a convolution -> its groups.
    """

    steps: tuple[Step, ...]
    forms: Mapping[str, Form]
    axes: Mapping[str, tuple[Axis, ...]]
    kinds: Mapping[str, str]
    groups: Mapping[str, int]


@dataclass(slots=True)
class _Planner:
    graph: Graph
    axes: Mapping[str, tuple[Axis, ...]]
    block_of: Mapping[str, int]
    sizes_of: Callable[[Axis], frozenset[int]]
    rules: Rules
    data: frozenset[str] = frozenset()
    makers: Mapping[str, Node] = field(default_factory=dict)
    consumers: Mapping[str, Sequence[Node]] = field(default_factory=dict)
    drafts: list[_Draft] = field(default_factory=list)
    by_output: dict[str, _Draft] = field(default_factory=dict)
    forms: dict[str, Form] = field(default_factory=dict)
    new_axes: dict[str, tuple[Axis, ...]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    channels_last: set[str] = field(default_factory=set)  # values that lie so, though their first axis is the channels
    transposed: dict[str, tuple[int, ...]] = field(default_factory=dict)  # not yet, value -> permutation

    def plan(self, aliases: Mapping[str, str]) -> Steps:
        """aliases: what a skipped block's exit stands for."""
        self.data, self.consumers = _computed(self.graph), self.graph.consumers()
        self.makers = self.graph.producers()
        self.forms = dict.fromkeys(self.graph.inputs, "plain")
        for position, node in enumerate(self.graph.nodes):
            if not self.data.isdisjoint(node.outputs):
                inputs = tuple(name for name in node.inputs if name in self.data)
                if not self._taken_up(node, inputs, position):
                    self._add(node, inputs, position)
        for position, draft in enumerate(self._ordered(), start=len(self.graph.nodes)):
            if self.forms[draft.writes[0]] not in ("plain", "rows"):  # these are made last, in this order
                draft.position = position
        self._relayouts(aliases)
        steps = tuple(self._step(draft) for draft in self._ordered())
        axes = {name: self.new_axes.get(name) or self.axes[name] for name in self.forms}
        kinds = {name: self.kinds.get(name, name) for name in self.forms}
        return Steps(steps=steps, forms=self.forms, axes=axes, kinds=kinds, groups=self.groups)

    # -- what runs as one --------------------------------------------------------------------------------------------

    def _taken_up(self, node: Node, inputs: Sequence[str], position: int) -> bool:
        """Whether the node became part of the step before it."""
        for name in dict.fromkeys(inputs):
            before = self.by_output.get(name)
            if (
                before is None
                or before.writes[0] != name
                or (len(before.writes) > 1 and before.writes[1] not in self.groups)
                or before.block != self.block_of.get(node.name)
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

    def _residual(self, inputs: Sequence[str], name: str) -> str | None:
        """What is added to `name`; None when it lies in another form."""
        (other,) = [i for i in inputs if i != name] or [name]
        alike = self.forms[other] == "blocked" and self.axes[other] == self.axes[name]
        return other if other != name and alike else None

    def _merge(self, before: _Draft, node: Node, inputs: Sequence[str], name: str, position: int) -> None:
        if node.op == "Add":
            other = self._residual(inputs, name)
            assert other is not None
            before.reads.append(other)
            before.in_place = (other,)
        before.norms, before.sums = False, before.sums and node.op == "BatchNormalization"
        if node.op in before.activations:
            before.activations = frozenset()
        form = self.forms.pop(name)
        del self.by_output[name]
        before.writes, before.position = (node.outputs[0], *before.writes[1:]), position
        self.by_output[before.writes[0]] = before
        self.forms[before.writes[0]] = form

    def _add(self, node: Node, inputs: tuple[str, ...], position: int) -> None:
        draft = _Draft(
            position, self.block_of.get(node.name), list(dict.fromkeys(inputs)), tuple(filter(None, node.outputs))
        )
        form: Form = "plain"
        if node.op == "Conv" and node.inputs[1] not in self.data:
            draft.norms, draft.activations = True, FUSED_INTO_CONV
            if self._blocked_conv(node):
                form, draft.sums = "blocked", True
                grouped = node.int("group", 1) > 1
                draft.wanted = "blocked" if grouped else self._settled("many", self.axes[inputs[0]][1])
            elif self._copies_patches(node):
                self._add_patches(node, draft)
        elif inputs and all(self.forms[name] == "blocked" for name in inputs) and self._keeps_blocks(node, inputs):
            padded = node.op == "Add" or node.op in KEEP_BLOCKS
            form = draft.wanted = "blocked" if padded else self._settled("whole", self.axes[inputs[0]][1])
        elif node.op == "Linear":
            form, draft.norms, draft.activations = "rows", True, FUSED_INTO_LINEAR
        elif node.op in VIEWS or (node.op == "Transpose" and self._free(node)) or self._scales_product(node, inputs):
            draft.view = True
        if node.op in MOVABLE and form == "plain":
            self._move_channels(node, draft)
        if node.op in IN_PLACE:
            draft.in_place = tuple(draft.reads)
        if node.op in FUNCTIONS and form == "plain":
            self._add_inner(node, draft, "plain")
        if node.op == "GroupNorm":  # normalised in another shape, scaled, shifted
            self._add_inner(node, draft, "rows")
            self._add_inner(node, draft, "plain")
            draft.reads = draft.reads[-1:]
        self._enter(draft, form)
        if node.op in ("Split", "Squeeze") and inputs[0] in self.transposed:
            self._transpose_results(node, draft)

    def _move_channels(self, node: Node, draft: _Draft) -> None:
        """Work on channels that come last, if all operands have them there; else those that have are transposed."""
        (name,) = node.outputs
        operands = [i for i in draft.reads if self.axes[i] == self.axes[name]]
        if operands and self.channels_last.issuperset(operands):
            self.channels_last.add(name)
            self.new_axes[name] = tuple(self.axes[name][i] for i in CHANNELS_LAST)
            return
        for operand in self.channels_last.intersection(operands):
            new = f"{operand}/first"
            if new not in self.forms:
                self.kinds[new], self.new_axes[new] = operand, self.axes[operand]
                self._enter(_Draft(draft.position - 0.5, None, [operand], (new,)), "plain")
            draft.reads[draft.reads.index(operand)] = new

    def _add_inner(self, node: Node, draft: _Draft, form: Form) -> None:
        """A part of an operator that is run as several; what comes after reads its result, too."""
        (name,) = node.outputs
        inner = f"{name}/inner {form}"
        self.kinds[inner], self.new_axes[inner] = name, self.axes[name]
        self._enter(_Draft(draft.position - 0.5, draft.block, draft.reads[-1:], (inner,)), form)
        draft.reads.append(inner)

    def _copies_patches(self, node: Node) -> bool:
        """Whether a convolution that works on no blocks is a matrix product of patches that are not just its input."""
        direct = (
            not any(node.ints("pads", (0,)))
            and set(node.ints("strides", (1,))) == {1}
            and set(self.graph.shapes[node.inputs[1]][2:]) == {1}
        )
        return not direct

    def _add_patches(self, node: Node, draft: _Draft) -> None:
        name = f"{node.outputs[0]}/patches"
        self.kinds[name], self.groups[name] = node.outputs[0], node.int("group", 1)
        self.new_axes[name] = (*self.axes[node.inputs[1]], *self.axes[node.outputs[0]][2:])
        draft.writes = (*draft.writes, name)

    def _enter(self, draft: _Draft, form: Form) -> None:
        self.drafts.append(draft)
        for name in draft.writes:
            self.by_output[name] = draft
            self.forms[name] = "im2col" if name in self.groups else form

    def _settled(self, form: Form, channels: Axis) -> Form:
        """A form that depends on the number of channels, as one that does not, where no SubNet makes a difference."""
        block = self.rules.channel_block
        whole = {size >= block if form == "many" else size % block == 0 for size in self.sizes_of(channels)}
        if len(whole) > 1:
            return form
        return "blocked" if whole.pop() else "plain"

    def _free(self, node: Node) -> bool:
        """Whether a transpose costs nothing where it stands; notes those that are done after what follows."""
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
        """Whether a matrix product before or after does the multiplication by one number itself."""
        if node.op not in ("Mul", "Div") or len(inputs) != 1:
            return False
        numbers = all(prod(self.graph.shapes[name]) == 1 for name in node.inputs if name not in self.data)
        maker, users = self.makers.get(inputs[0]), self.consumers.get(node.outputs[0], ())
        after = maker is not None and maker.op == "MatMul" and len(self.consumers[inputs[0]]) == 1
        return numbers and (after or (bool(users) and all(user.op == "MatMul" for user in users)))

    def _transpose_results(self, node: Node, draft: _Draft) -> None:
        """What was to be transposed before is now, each result by itself, unless its only reader transposes anyway."""
        order = self.transposed[node.inputs[0]]
        if node.op == "Split":
            draft.writes = tuple(f"{name}/split" for name in draft.writes)
            for name in filter(None, node.outputs):
                part = f"{name}/split"
                self.forms[part], self.kinds[part], self.by_output[part] = "plain", name, draft
                self.new_axes[part] = tuple(self.axes[name][order.index(axis)] for axis in range(len(order)))
                self._enter(_Draft(draft.position, draft.block, [part], (name,), view=self._waits(name)), "plain")
                if self._waits(name):
                    self.transposed[name] = order
        elif self._waits(node.outputs[0]):
            self.transposed[node.outputs[0]] = order

    def _waits(self, name: str) -> bool:
        """Whether the only reader of a value, axes of one aside, is a transpose."""
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
        same = all(self.axes[name] == self.axes[inputs[0]] for name in inputs)
        if node.op in ("Add", "Mul"):
            return same and len(inputs) == 2
        if node.op == "Concat":
            block = self.rules.channel_block
            return node.int("axis", 0) == 1 and all(self.graph.shapes[name][1] % block == 0 for name in inputs)
        if node.op in KEEP_BLOCKS:
            return True
        return len(inputs) == 1 and (node.op in POOLS or node.op in FUSED_INTO_CONV or node.op == "BatchNormalization")

    # -- layouts -----------------------------------------------------------------------------------------------------

    def _relayouts(self, aliases: Mapping[str, str]) -> None:
        """Add steps that lay a value out anew, one for all that read it so."""
        for draft in tuple(self.drafts):
            renamed = {
                name: self._relayout(name, draft.wanted)
                for name in draft.reads
                if self._may_differ(name, draft.wanted, aliases)
            }
            draft.reads = [renamed.get(name, name) for name in draft.reads]
            draft.in_place = tuple(renamed.get(name, name) for name in draft.in_place)

    def _relayout(self, name: str, wanted: Form) -> str:
        new = f"{name}/{wanted}"
        if new not in self.forms:
            position = self.by_output[name].position if name in self.by_output else -1.0
            self._enter(_Draft(position + 0.5, None, [name], (new,), relayout=True), wanted)
            moved = [u.outputs[0] for u in self.consumers.get(name, ()) if u.op == "Transpose" and self._free(u)]
            self.kinds[new] = name
            self.new_axes[new] = self.axes[moved[0] if moved and wanted == "plain" else name]
        return new

    def _may_differ(self, name: str, wanted: Form, aliases: Mapping[str, str]) -> bool:
        at: str | None = name
        while at is not None:
            if self.forms[at] != wanted and {self.forms[at], wanted} != {"plain", "rows"}:
                return True
            at = aliases.get(at)
        return False

    # -- order -------------------------------------------------------------------------------------------------------

    def _ordered(self) -> list[_Draft]:
        """Depth first from the outputs; of several inputs the one with the last position comes first."""
        read = {name for draft in self.drafts for name in draft.reads}
        leaves = [draft for draft in self.drafts if read.isdisjoint(draft.writes)]
        stack = [(draft, False) for draft in sorted(leaves, key=lambda d: d.position)]
        seen: set[int] = set()
        ordered: list[_Draft] = []
        while stack:
            draft, done = stack.pop()
            if done:
                ordered.append(draft)
            elif id(draft) not in seen:
                seen.add(id(draft))
                stack.append((draft, True))
                makers = {id(d): d for name in draft.reads if (d := self.by_output.get(name)) is not None}
                stack += [(maker, False) for maker in sorted(makers.values(), key=lambda d: d.position)]
        return ordered

    def _step(self, draft: _Draft) -> Step:
        return Step(
            reads=tuple(draft.reads),
            writes=draft.writes,
            block=draft.block,
            in_place=draft.in_place,
            view=draft.view,
            relayout=draft.relayout,
        )


def _computed(graph: Graph) -> frozenset[str]:
    """Values that depend on what goes in; what only has one entry for each sample is folded into the weights."""
    found = set(graph.inputs)
    for node in graph.nodes:
        if not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return frozenset(found)


def find_steps(
    graph: Graph,
    axes: Mapping[str, tuple[Axis, ...]],
    block_of: Mapping[str, int],
    aliases: Mapping[str, str],
    sizes_of: Callable[[Axis], frozenset[int]],
    rules: Rules = ONNXRUNTIME,
) -> Steps:
    """The steps of the largest network.

    axes: of every value. block_of: node name -> position of its block; nodes of different blocks never run as one, since
    one of them may be skipped. aliases: exit of a block that can be skipped -> its entry. sizes_of: an axis -> its sizes
    in all SubNets.
    """
    return _Planner(graph, axes, block_of, sizes_of, rules).plan(aliases)


def in_blocks(channels: int, form: Form, rules: Rules) -> bool:
    """Whether a tensor of this form and number of channels lies in blocks."""
    if form == "whole":
        return channels % rules.channel_block == 0
    return form == "blocked" or (form == "many" and channels >= rules.channel_block)


def laid_out(shape: Sequence[int], form: Form, rules: Rules) -> tuple[int, ...]:
    """The shape with the padding that its form asks for."""
    if len(shape) > 1 and in_blocks(shape[1], form, rules):
        block = rules.channel_block
        return (shape[0], -(-shape[1] // block) * block, *shape[2:])
    return tuple(shape)


def patches_bytes(shape: Sequence[int], groups: int) -> int:
    """Of a convolution with weights (filters, channels, *kernel) followed by its result's positions, `shape`.

    A segment at a time, unless there are more filters than positions. Source: onnxruntime, MlasConvPrepare.
    """
    filters, positions = shape[0] // groups, shape[2 + (len(shape) - 2) // 2 :]
    patch = shape[1 : -len(positions)]
    return 4 * prod(positions) * prod(patch) if filters > prod(positions) else SEGMENT_BYTES


def stored_shape(shape: Sequence[int], form: Form, rules: Rules) -> tuple[int, ...]:
    """The shape in which it is stored."""
    return (prod(shape[:-1]), shape[-1]) if form == "rows" else laid_out(shape, form, rules)
