"""Plans of SubNets: calls of modules on values, cuts of stored tensors, and values that are kept between runs.

The weights of a SubNet are cuts of the SuperNet's: the first channels, the first positions of sequences, and positions
of images resampled to the resolution.

Marks of tensors differ after every change, so that values computed from the tensors can be cached until then. Torch
counts the changes of each tensor, but not the changes by its fused optimisers. Their steps are counted here for the
whole process; the only cost is an occasional needless recomputation.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from tailor_ir import axes as ax
from tailor_ir.axes import Axis, Sizes
from tailor_ir.graph import Graph, Node, Tensors
from tailor_ir.structure.propagation import AxisMap


@dataclass(slots=True)
class _FusedSteps:
    """The number of steps of fused optimisers so far; a hook of torch."""

    count: int = 0

    def __call__(self, optimiser: torch.optim.Optimizer, arguments: Any, options: Any) -> None:
        self.count += any(group.get("fused") for group in optimiser.param_groups)


_fused = _FusedSteps()
register_optimizer_step_post_hook(_fused)


def version_of(tensors: Sequence[torch.Tensor]) -> Hashable:
    """The present mark of tensors; None for tensors of inference mode, whose changes nobody counts."""
    if any(tensor.is_inference() for tensor in tensors):
        return None
    return (_fused.count, *[(tensor.data_ptr(), tensor._version) for tensor in tensors])


Cut = Callable[[torch.Tensor], torch.Tensor]
MATRICES_KEPT = 256


def is_labels(tensor: torch.Tensor) -> bool:
    """Whether a constant's values are labels (a mask), so that interpolated values have no meaning."""
    return not tensor.is_floating_point() or len(tensor.unique()) <= 2


def make_cut(axes: Sequence[ax.Axis], sizes: ax.Sizes, *, labels: bool = False) -> Cut | None:
    """The cut of a stored tensor under a config; None if it is used whole. `labels`: take the nearest position."""
    cutter = _Cutter(sizes, labels, channels=True)
    return _in_steps([cutter.cut(dim, axis) for dim, axis in enumerate(axes)])


def make_resampler(axes: Sequence[ax.Axis], sizes: ax.Sizes, dims: Iterable[int]) -> Cut | None:
    """The resampling of positions along `dims` to the resolution, after all other cuts; None if they do not change."""
    cutter = _Cutter(sizes, labels=False, channels=False)
    return _in_steps([cutter.cut(dim, axes[dim]) for dim in dims])


def kept_positions(axes: Sequence[ax.Axis], sizes: ax.Sizes) -> tuple[np.ndarray, ...] | None:
    """For each dimension the stored positions that a config keeps; None if entries are interpolated from several."""
    cutter = _Cutter(sizes, labels=False, channels=True)
    found = []
    for dim, axis in enumerate(axes):
        match cutter.cut(dim, axis):
            case None:
                found.append(np.arange(axis.size))
            case _Range(start=start, length=length):
                found.append(np.arange(start, start + length))
            case _Positions() as chosen:
                found.append(chosen.positions)
            case _:
                return None
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Cutter:
    """Finds the cuts of single dimensions. `channels`: also cut channels and kernels, not only positions."""

    sizes: ax.Sizes
    labels: bool
    channels: bool

    def cut(self, dim: int, axis: ax.Axis) -> Cut | None:
        if self.sizes(axis) == axis.size:
            return None
        if axis.spatial:
            return self._resampled(dim, axis)
        return self._selected(dim, axis) if axis.groups and self.channels else None

    def _resampled(self, dim: int, axis: ax.Axis) -> Cut | None:
        """The first positions of sequences, or interpolated positions, separately for each factor and each piece."""
        match axis:
            case ax.Product():
                inner = _in_steps([self.cut(dim + i, factor) for i, factor in enumerate(axis.factors)])
                return None if inner is None else _Factors(dim, self._stored(axis.factors), inner)
            case ax.Concat():
                return _Pieces(dim, self._stored(axis.pieces), tuple(self.cut(dim, piece) for piece in axis.pieces))
            case _ if axis.sequential:
                return _Range(dim, 0, self.sizes(axis))
            case _:
                return _Interpolation(dim, axis.size, self.sizes(axis), self.labels)

    def _stored(self, parts: Sequence[ax.Axis]) -> tuple[int, ...]:
        """Sizes before the cut."""
        return tuple(part.size if part.spatial or self.channels else self.sizes(part) for part in parts)

    def _selected(self, dim: int, axis: ax.Axis) -> Cut:
        size = self.sizes(axis)
        match axis:
            case ax.Channels():
                return _Range(dim, 0, size)
            case ax.Kernel():
                return _Range(dim, (axis.size - size) // 2, size)
            case _:
                kept = {
                    leaf.group: np.arange(self.sizes(leaf)) for leaf in axis.leaves if isinstance(leaf, ax.Channels)
                }
                positions = ax.surviving(axis, kept)
                first = int(positions[0])
                together = bool((positions == np.arange(first, first + len(positions))).all())
                return _Range(dim, first, len(positions)) if together else _Positions(dim, positions)


def _in_steps(found: Sequence[Cut | None]) -> Cut | None:
    steps = tuple(step for step in found if step is not None)
    if not steps:
        return None
    return steps[0] if len(steps) == 1 else _CutSteps(steps)


@dataclass(frozen=True, slots=True)
class _CutSteps:
    """Several cuts of one tensor, applied one after the other."""

    steps: tuple[Cut, ...]

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            tensor = step(tensor)
        return tensor


@dataclass(frozen=True, slots=True)
class _Range:
    """A view of a range along one dimension: a prefix of channels, a kernel's centre."""

    dim: int
    start: int
    length: int

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.narrow(self.dim, self.start, self.length)


class _Positions:
    """A copy of chosen positions along one dimension."""

    __slots__ = ("_on", "dim", "positions")

    def __init__(self, dim: int, positions: np.ndarray) -> None:
        self.dim, self.positions = dim, positions
        index = torch.from_numpy(positions)
        self._on = {index.device: index}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        index = self._on.get(tensor.device)
        if index is None:
            with torch.inference_mode(False):  # kept, and later used where gradients are needed
                index = self._on[tensor.device] = next(iter(self._on.values())).to(tensor.device)
        return tensor.index_select(self.dim, index)


@dataclass(frozen=True, slots=True)
class _Factors:
    """A cut of the factors that one dimension is the row-major flattening of."""

    dim: int
    sizes: tuple[int, ...]
    inner: Cut

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        last = self.dim + len(self.sizes) - 1
        return self.inner(tensor.unflatten(self.dim, self.sizes)).flatten(self.dim, last)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Cuts of the pieces that one dimension is the concatenation of."""

    dim: int
    sizes: tuple[int, ...]
    inner: tuple[Cut | None, ...]

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        pieces = zip(tensor.split(list(self.sizes), self.dim), self.inner, strict=True)
        return torch.cat([piece if cut is None else cut(piece) for piece, cut in pieces], self.dim)


@dataclass(frozen=True, slots=True)
class _Interpolation:
    """Entries for positions along one dimension at another resolution: bicubic, or nearest for labels.

    Source: DeiT (ICML 2021), positional embeddings at other resolutions.
    """

    dim: int
    stored: int
    wanted: int
    labels: bool

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.labels:
            return tensor.index_select(self.dim, _nearest(self.stored, self.wanted, tensor.device))
        matrix = _bicubic(self.stored, self.wanted, tensor.dtype, tensor.device)
        return (tensor.movedim(self.dim, -1) @ matrix).movedim(-1, self.dim)


@lru_cache(maxsize=MATRICES_KEPT)
def _bicubic(stored: int, wanted: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Weights (stored, wanted) of bicubic interpolation between positions."""
    with torch.inference_mode(False):  # kept, and later used where gradients are needed
        each = torch.eye(stored, dtype=torch.float64)[None, :, :, None]  # one channel for each stored position
        taken = F.interpolate(each, size=(wanted, 1), mode="bicubic", align_corners=False)
        return taken[0, :, :, 0].to(dtype).to(device)


@lru_cache(maxsize=MATRICES_KEPT)
def _nearest(stored: int, wanted: int, device: torch.device) -> torch.Tensor:
    """The nearest stored position (wanted,) for each wanted position."""
    with torch.inference_mode(False):
        positions = torch.arange(stored, dtype=torch.float64)[None, None]
        return F.interpolate(positions, size=wanted, mode="nearest-exact")[0, 0].long().to(device)


def importance(graph: Graph, tensors: Tensors, axis_map: AxisMap, group: int) -> np.ndarray:
    """How much each channel of a group gives to the layers that read it: its standard deviation times the L1 norm of weights.

    BatchNorms tell standard deviations by their scales, and weights count as folding would make them, so that the order of
    channels is the same whether norms were folded and put back, or never were. A group without norms, or that no layer
    reads, goes by the L1 norm of all weights (two dimensions or more) that involve it. Source: Wanda (ICLR 2024).
    """
    variance, read, made = np.zeros((3, axis_map.groups[group]))
    folding = folding_factors(graph, tensors)
    transposed = {node.inputs[1] for node in graph.nodes if node.op == "ConvTranspose"}
    for norm in _stored_norms(graph, tensors):
        if _is_of(axis_map.axes.get(norm.inputs[1], ()), group):
            scale, own = (tensors[norm.inputs[position]].double() for position in (1, 4))
            variance += (scale.square() * own / (own + norm.float("epsilon", 1e-5))).numpy()
    for name in graph.parameters:
        axes = axis_map.axes.get(name, ())
        if len(axes) < 2 or not _is_of(axes, group):
            continue
        weight = tensors[name].double()
        if name in folding:
            weight = weight * folding[name].reshape(-1, *(1,) * (weight.ndim - 1))
        for dim in (dim for dim in range(len(axes)) if _is_of(axes[dim : dim + 1], group)):
            total = made if dim == (name in transposed) else read
            total += weight.abs().sum([d for d in range(len(axes)) if d != dim]).numpy()
    found: np.ndarray = np.sqrt(variance) * read if variance.any() and read.any() else read + made
    return found


def _stored_norms(graph: Graph, tensors: Tensors) -> list[Node]:
    """BatchNorms whose scales and statistics are stored."""
    return [n for n in graph.nodes if n.op == "BatchNormalization" and tensors.keys() >= {*n.inputs[1:5]}]


def _is_of(axes: Sequence[Axis], group: int) -> bool:
    """Whether one of the axes is that of a group's channels."""
    return any(isinstance(axis, ax.Channels) and axis.group == group for axis in axes)


def folding_factors(graph: Graph, tensors: Tensors) -> Tensors:
    """The factor (O,) of each result channel by which a BatchNorm scales the weight of the layer before it, by the weight.

    For a weight of several layers the last one's norm counts.
    """
    producers, found = graph.producers(), {}
    for norm in _stored_norms(graph, tensors):
        before = producers.get(norm.inputs[0])
        if before is not None and graph.norms_results(before, norm):
            scale, variance = (tensors[norm.inputs[position]].double() for position in (1, 4))
            found[before.inputs[1]] = scale / (variance + norm.float("epsilon", 1e-5)).sqrt()
    return found


def sort_channels(graph: Graph, tensors: Tensors, axis_map: AxisMap, groups: Sequence[int]) -> Tensors:
    """Tensors of the same function, with the channels of `groups` sorted by falling importance wherever they occur."""
    order = {group: np.argsort(-importance(graph, tensors, axis_map, group), kind="stable") for group in groups}
    return reordered(tensors, axis_map, order)


def reordered(tensors: Tensors, axis_map: AxisMap, order: Mapping[int, np.ndarray]) -> Tensors:
    """Every tensor with the channels of some groups permuted (`order` by group: the channel that comes first, second, …).

    The function stays the same for groups that no operator reads in their order (`AxisMap.ordered`).
    """
    result: Tensors = {}
    for name, tensor in tensors.items():
        for dim, axis in enumerate(axis_map.axes[name]):
            if axis.groups & order.keys():
                positions = torch.from_numpy(ax.surviving(axis, order))
                tensor = tensor.index_select(dim, positions)
        result[name] = tensor
    return result


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
