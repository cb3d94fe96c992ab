"""A module as the list of its operators in running order, with the storage of every value.

torch.export traces the module in the mode that it is in, at one shape. Every node gives one value (or, for views
such as `unbind`, a tuple of views). A view has no storage of its own: `base` is the node whose storage it reads.
"""

import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves, tree_map

from tasks.base.errors import UserError, shortened

OF_SHAPES = frozenset(name for one in ("empty", "zeros", "ones", "full") for name in (f"new_{one}", f"{one}_like"))
"""Operators that read a shape alone, so that no gradient goes back through them."""


@dataclass(frozen=True, slots=True)
class ReadsNode:
    """That an argument is the value of a node."""

    node: int


@dataclass(slots=True)
class StepNode:
    """One operator, or one source of tensors.

    kind: "operator", "input", "parameter", "buffer" or "constant"; `name` is what the module calls such a tensor.
    shape, stride: those of the value; for a tuple, of its first part. bytes: of the value's own storage; 0 for views.
    value_bytes: of the value itself, as large as its gradient. wants: for each of `inputs`, whether its gradient is
    needed. pure: whether a second run gives the same value and changes nothing else.
    """

    index: int
    kind: str
    name: str
    target: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[int, ...] = ()
    shape: torch.Size = field(default_factory=torch.Size)
    stride: tuple[int, ...] = ()
    bytes: int = 0
    value_bytes: int = 0
    parts: int = 1
    floating: bool = True
    base: int = -1
    gradient: bool = False
    wants: tuple[bool, ...] = ()
    pure: bool = True

    @property
    def operator(self) -> str:
        """The operator's name without its overload, "conv2d"."""
        return self.target.overloadpacket.__name__ if isinstance(self.target, torch._ops.OpOverload) else "getitem"

    @property
    def view(self) -> bool:
        return self.base != self.index

    def argument(self, place: int, default: Any = None) -> Any:
        """An argument by its place in the operator's schema."""
        return self.args[place] if place < len(self.args) else default

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """All arguments with tensors in the places of reads. tensors: one for each of `inputs`, in order."""
        given = iter(tensors)
        return tree_map(
            lambda leaf: next(given) if isinstance(leaf, ReadsNode) else leaf,
            (self.args, self.kwargs),
            is_leaf=lambda leaf: isinstance(leaf, ReadsNode),
        )

    def run(self, tensors: Sequence[Any]) -> Any:
        """The operator's value."""
        assert self.target is not None
        args, kwargs = self.arguments(tensors)
        return self.target(*args, **kwargs)


@dataclass(frozen=True)
class Network:
    """Nodes in running order. output: the node whose value the module gives."""

    nodes: tuple[StepNode, ...]
    output: int
    batch: int
    batch_statistics: bool
    """Whether an operator takes statistics over the samples of a batch."""

    @cached_property
    def readers(self) -> dict[int, list[StepNode]]:
        """For each node, the operators that read its value."""
        found: dict[int, list[StepNode]] = {node.index: [] for node in self.nodes}
        for node in self.operators:
            for read in node.inputs:
                found[read].append(node)
        return found

    @property
    def operators(self) -> Iterator[StepNode]:
        return (node for node in self.nodes if node.kind == "operator")

    def source(self, node: StepNode, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        """The tensor of a source. tensors: those of the module by name, constants included."""
        return x if node.kind == "input" else tensors[node.name]


def trace(module: nn.Module, x: Tensor) -> tuple[Network, dict[str, Tensor]]:
    """The network of a module for inputs like x, and constants that tracing found.

    Errors: modules that torch.export cannot trace, and those with several outputs, in one line.
    """
    where = f"training memory: network '{type(module).__name__}'"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, (x,), strict=False)
    except Exception as error:
        raise UserError(
            where,
            f"cannot be traced ({shortened(error)})",
            allowed="feed-forward networks without control flow that depends on values",
            next_step="train it without a budget",
        ) from error
    outputs = [leaf for node in program.graph.nodes if node.op == "output" for leaf in tree_leaves(node.args)]
    if len(outputs) != 1 or not isinstance(outputs[0], fx.Node):
        raise UserError(
            where, f"{len(outputs)} outputs", allowed="1", next_step="wrap it in a module that gives one of them"
        )
    names = {spec.arg.name: (spec.kind, spec.target) for spec in program.graph_signature.input_specs}
    trainable = {name for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    nodes, places = _nodes(program, names, where)
    _share_tied(nodes, dict(module.named_parameters(remove_duplicate=False)))
    _find_storages(nodes, program, names, x)
    _find_gradients(nodes, trainable)
    statistics = any(
        node.operator in ("batch_norm", "instance_norm") and node.argument(5) for node in nodes if node.target
    )
    return Network(tuple(nodes), places[outputs[0]], len(x), statistics), dict(program.constants)


def _nodes(program: Any, names: dict[str, Any], where: str) -> tuple[list[StepNode], dict[fx.Node, int]]:
    nodes: list[StepNode] = []
    places: dict[Any, int] = {}
    for each in program.graph.nodes:
        index = len(nodes)
        if each.op == "placeholder":
            kind, target = names[each.name]
            found = {
                InputKind.USER_INPUT: "input",
                InputKind.PARAMETER: "parameter",
                InputKind.BUFFER: "buffer",
            }.get(kind, "constant")
            nodes.append(StepNode(index, found, target or each.name, base=index))
        elif each.op == "call_function":
            nodes.append(_operator(index, each, places, where))
        elif each.op == "output":
            continue
        else:
            raise UserError(where, f"'{each.op}' in its trace", allowed="plain operators")
        places[each] = index
        target = nodes[-1].target
        if each.op == "call_function" and isinstance(target, torch._ops.OpOverload) and each.target is not target:
            places[each.args[0]] = index  # an operator in place became a plain one: later reads mean its result
    return nodes, places


def _share_tied(nodes: list[StepNode], parameters: dict[str, nn.Parameter]) -> None:
    """Operators that read one weight under two names read it under the first."""
    first: dict[int, int] = {}
    twins = {
        node.index: known
        for node in nodes
        if node.kind == "parameter" and (known := first.setdefault(id(parameters[node.name]), node.index)) != node.index
    }
    for node in nodes if twins else []:
        node.inputs = tuple(twins.get(read, read) for read in node.inputs)


def _operator(index: int, each: fx.Node, places: dict[fx.Node, int], where: str) -> StepNode:
    target, pure = each.target, True
    if isinstance(target, torch._ops.OpOverload):
        pure = not target._schema.is_mutable and not _draws(target, each)
        if target._schema.is_mutable and places_of_state(each):
            pure = False
        elif target._schema.is_mutable and (plain := _out_of_place(target)) is not None:
            target, pure = plain, True
    elif target is not operator.getitem:
        raise UserError(where, f"'{target}' in its trace", allowed="torch's own operators")
    args, kwargs = tree_map(
        lambda leaf: ReadsNode(places[leaf]) if isinstance(leaf, fx.Node) else leaf,
        (tuple(each.args), dict(each.kwargs)),
    )
    leaves = tree_leaves((args, kwargs), is_leaf=lambda leaf: isinstance(leaf, ReadsNode))
    inputs = tuple(leaf.node for leaf in leaves if isinstance(leaf, ReadsNode))
    return StepNode(index, "operator", each.name, target, args, kwargs, inputs, base=index, pure=pure)


def _draws(target: torch._ops.OpOverload, each: fx.Node) -> bool:
    """Whether an operator draws random numbers; dropout keeps what it drew, and attention draws with dropout alone."""
    name = target.overloadpacket.__name__
    if name == "scaled_dot_product_attention":
        return bool(each.kwargs.get("dropout_p", each.args[4] if len(each.args) > 4 else 0.0))
    return torch.Tag.nondeterministic_seeded in target.tags and name != "dropout"


def places_of_state(each: fx.Node) -> bool:
    """Whether an operator in place changes a tensor that the module keeps."""
    return isinstance(each.args[0], fx.Node) and each.args[0].op == "placeholder"


def _out_of_place(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    packet = target.overloadpacket.__name__
    plain = getattr(torch.ops.aten, packet.removesuffix("_"), None) if packet.endswith("_") else None
    return getattr(plain, target._overloadname, None) if plain is not None else None


def _find_storages(nodes: list[StepNode], program: Any, names: dict[str, Any], x: Tensor) -> None:
    """Shapes, sizes and views, by a run with tensors that have no memory."""
    state = {**program.state_dict, **program.constants}
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        values: list[Any] = []
        owners: dict[int, int] = {}
        kept: list[Any] = []
        for node in nodes:
            if node.kind == "operator":
                value = node.run([values[read] for read in node.inputs])
            else:
                value = mode.from_tensor(x if node.kind == "input" else state[node.name])
            parts = [leaf for leaf in tree_leaves(value) if isinstance(leaf, FakeTensor)]
            values.append(value)
            kept.extend(parts)
            if not parts:
                continue
            storages = {part.untyped_storage()._cdata: part for part in parts}
            node.shape, node.stride = parts[0].shape, parts[0].stride()
            node.value_bytes = sum(part.numel() * part.element_size() for part in parts)
            node.parts = len(parts)
            node.floating = parts[0].dtype == torch.float32
            owned = {owners.get(key, node.index) for key in storages}
            if len(storages) > 1 or len(owned) > 1:
                raise UserError(
                    "training memory",
                    f"operator '{node.operator}' gives several tensors",
                    allowed="operators that give one, and views",
                    next_step="train the network without a budget",
                )
            (node.base,) = owned
            for key, part in storages.items():
                owners.setdefault(key, node.index)
                node.bytes = part.untyped_storage().nbytes() if node.base == node.index else 0


def _find_gradients(nodes: list[StepNode], trainable: set[str]) -> None:
    for node in nodes:
        if node.kind == "operator":
            known = node.operator in OF_SHAPES
            node.wants = tuple(nodes[read].gradient and not known for read in node.inputs)
            node.gradient = any(node.wants)
            if node.gradient and not node.pure:
                raise UserError(
                    "training memory",
                    f"operator '{node.operator}' draws random numbers, or changes what it reads",
                    allowed="dropout, and operators whose second run gives the same",
                    next_step="train the network without a budget",
                )
        else:
            node.gradient = node.kind == "parameter" and node.name in trainable
