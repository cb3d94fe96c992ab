"""Plans of SubNets: calls of modules on values, cuts of stored tensors, and values that are kept between runs."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from tailor_ir.axes import Axis, Sizes
from tailor_ir.graph import Node
from tailor_ir.subnets.cuts import Cut, make_cut
from tailor_ir.subnets.versions import version_of

CUTS_KEPT = 64  # of tensors with the same axes
Key = TypeVar("Key")
Value = TypeVar("Value")


class Call(NamedTuple):
    """A node with its operands and results by name. released: values that no later call reads."""

    node: Node
    operands: tuple[str, ...]
    outputs: tuple[str, ...]
    released: tuple[str, ...]


class Wiring(NamedTuple):
    """A call. stored: the stored tensors among its operands. data: operands and results that depend on the input."""

    call: Call
    stored: dict[str, None]
    data: tuple[str, ...]
    depends_on_input: bool


class Outline(NamedTuple):
    """The calls that all SubNets with the same chosen producers share.

    stored: tensors that the calls read. weight_calls: calls that depend on stored tensors alone. calls: the remaining ones.
    """

    stored: tuple[str, ...]
    weight_calls: tuple[Call, ...]
    calls: tuple[Call, ...]
    outputs: tuple[str, ...]


class Plan(NamedTuple):
    """The plan of one SubNet: a module for each call of the outline, and a cut for each stored tensor."""

    outline: Outline
    cuts: tuple[Cut | None, ...]
    weight_modules: tuple[nn.Module, ...]
    modules: tuple[nn.Module, ...]


class Instruction(NamedTuple):
    """A call with its module, and the cuts of the stored tensors among its operands.

    Equal instructions after equal ones compute equal values, whatever follows.
    """

    module: nn.Module
    operands: tuple[str, ...]
    outputs: tuple[str, ...]
    cuts: tuple[tuple[str, Cut | None], ...]


class Program(NamedTuple):
    """All instructions of one SubNet; a weight computed from others is computed just before it is first needed."""

    instructions: tuple[Instruction, ...]
    outputs: tuple[str, ...]


class Cuts:
    """The cuts of all tensors with the same axes."""

    def __init__(self, axes: tuple[Axis, ...], *, labels: bool) -> None:
        self._axes, self._labels = axes, labels
        # keyed by groups, not by the axes' own sizes: 2 heads of 16 are as many channels as 4 of 8, but different ones
        self._leaves = tuple(frozenset().union(*(axis.leaves for axis in axes)))
        self._known: dict[tuple[int, ...], Cut | None] = {}

    def __call__(self, sizes: Sizes) -> Cut | None:
        key = tuple(map(sizes, self._leaves))
        if key not in self._known:
            if len(self._known) >= CUTS_KEPT:
                self._known.pop(next(iter(self._known)))
            self._known[key] = make_cut(self._axes, sizes, labels=self._labels)
        return self._known[key]


@dataclass(frozen=True, slots=True)
class FixedValues:
    """Values that are computed from stored tensors alone, and the tensors' version at that time."""

    sources: Sequence[torch.Tensor]
    version: Hashable
    values: dict[str, torch.Tensor]

    def holds(self, sources: Sequence[torch.Tensor]) -> bool:
        """Whether the tensors are still the same and unchanged."""
        same = all(a is b for a, b in zip(self.sources, sources, strict=True))
        return same and version_of(sources) == self.version


def can_keep(sources: Sequence[torch.Tensor]) -> bool:
    """Whether changes of the tensors can be detected, and values computed from them do not depend on the context."""
    device = sources[0].device.type
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return not autocast and not any(source.is_inference() for source in sources)


def run(
    calls: Sequence[Call], modules: Sequence[nn.Module], values: dict[str, torch.Tensor], kept: Collection[str] = ()
) -> None:
    """Add the results of calls to values. Values that no later call reads are released, except for `kept`."""
    for (_, operands, outputs, released), module in zip(calls, modules, strict=True):
        result = module(*[values[name] for name in operands])
        if len(outputs) == 1:
            values[outputs[0]] = result
        else:
            values.update(zip(outputs, result, strict=True))
        for name in released:
            if name not in kept:
                del values[name]


def execute(
    instructions: Iterable[Instruction], tensor: Callable[[str], torch.Tensor], values: dict[str, torch.Tensor]
) -> None:
    """Add the results of instructions, and the cuts that they read, to values. tensor: a stored tensor by its name."""
    for module, operands, outputs, cuts in instructions:
        for name, cut in cuts:
            if name not in values:
                values[name] = tensor(name) if cut is None else cut(tensor(name))
        result = module(*[values[name] for name in operands])
        values.update({outputs[0]: result} if len(outputs) == 1 else zip(outputs, result, strict=True))


def last_reads(instructions: Sequence[Instruction], kept: Collection[str] = ()) -> list[tuple[str, ...]]:
    """For each instruction, the values that no later one reads, except for `kept`."""
    found: list[tuple[str, ...]] = []
    later = set(kept)
    for instruction in reversed(instructions):
        names = dict.fromkeys((*instruction.operands, *instruction.outputs, *(name for name, _ in instruction.cuts)))
        found.append(tuple(name for name in names if name and name not in later))
        later.update(names)
    return found[::-1]


def remembered(known: OrderedDict[Key, Value], key: Key, limit: int, make: Callable[[], Value]) -> Value:
    """The value of a key, created if it is new; the least recently used one is dropped beyond the limit."""
    if key not in known:
        known[key] = make()
        if len(known) > limit:
            known.popitem(last=False)
    known.move_to_end(key)
    return known[key]
