"""Propagation of axes (one walk over the operators finds the axes of every value), and legal resolutions of a network.

At a legal input resolution, or length of token sequences, every side and axis is an integer, every position is kept,
and branches that meet have equal sizes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd, lcm

import torch

from tailor_ir import axes as ax
from tailor_ir.axes import Axis, Scaled, Sizes, Spatial, Window
from tailor_ir.dims import AxisTable, Dim, DimPool, Windows
from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Graph, Node, Tensors
from tailor_ir.ops import OPERATORS, NodeShapes, Propagation, find
from tailor_ir.ops.registry import Dims

MIXERS = frozenset(("Conv", "ConvTranspose", "Linear", "MatMul"))  # their weights sum over positions
COUNTED = "the number of its positions follows from the axis"
NO_POSITIONS = "the network reads neither an image nor a sequence of tokens"


@dataclass(frozen=True, slots=True)
class AxisMap:
    """`axes` by value name; `groups`: the full size of each channel group; `equal_sizes`: axes that a legal resolution makes
    equal; `needed`: axes of no value, which keep at least one position at a legal resolution.

    resolution_frozen: why the resolution cannot change; "" if it can. frozen: by value name, why each dimension cannot change;
    "" if it can, or if there is nothing to change. ordered: channel groups that an operator reads in their order, and why.
    batch_conflict: where the batch was joined with an axis that is not a batch; "" if never.
    """

    axes: Mapping[str, tuple[ax.Axis, ...]]
    groups: Mapping[int, int]
    equal_sizes: tuple[tuple[ax.Axis, ax.Axis], ...]
    resolution_frozen: str
    frozen: Mapping[str, tuple[str, ...]]
    ordered: Mapping[int, str]
    batch_conflict: str = ""
    needed: tuple[ax.Axis, ...] = ()

    def node_shapes(self, node: Node, sizes: ax.Sizes) -> NodeShapes:
        """Shapes of a node's operands and results."""
        inputs = [self.axes[name] if name else () for name in node.inputs]
        outputs = [self.axes[name] for name in node.outputs]
        return NodeShapes(
            full_inputs=tuple(tuple(axis.size for axis in axes) for axes in inputs),
            inputs=tuple(sizes.shape(axes) for axes in inputs),
            outputs=tuple(sizes.shape(axes) for axes in outputs),
            open_outputs=tuple(tuple(-1 if a.batched else sizes(a) for a in axes) for axes in outputs),
        )


def propagate(
    graph: Graph,
    tensors: Tensors,
    windows: Windows = "number",
    joins: Sequence[tuple[str, str]] = (),
    skips: Sequence[tuple[str, str]] = (),
) -> AxisMap:
    """Axes of every value and initializer.

    windows: whether the number or the size of windows grows with the resolution. joins: pairs of values that get equal axes.
    skips: likewise, so that the nodes between them can be skipped; a pair that would fix channels which are otherwise free, for
    example before the network's output, is ignored. Pairs whose axes cannot be equal are ignored, too.
    """
    p = Propagation(graph, tensors, DimPool(windows), data=graph.data_values())
    _read_inputs(p)
    for node in graph.nodes:
        for name, dims in zip(node.outputs, _results(node, p), strict=False):
            p.dims[name] = dims
            if (sizes := tuple(d.size for d in dims)) != graph.shapes[name]:
                raise ImportFailed(
                    f"{node.place}: gives {graph.shapes[name]}, and {sizes} by its operands; allowed: "
                    "operands as its specification has them; export the network again"
                )
    _join(p, joins)
    for name in graph.initializers - p.dims.keys():
        p.dims[name] = tuple(p.pool.fixed(size, "constant") for size in graph.shapes[name])
    for name in graph.outputs:
        for dim in p.dims[name]:
            p.pool.freeze_channels(dim, "network output")
    for node in graph.nodes:
        for dim in (dim for name in node.outputs for dim in p.dims.get(name, ())):
            p.pool.freeze_counted(dim, f"{node.place}: {COUNTED}")
    _join(p, skips, fixing=False)
    _freeze_unmovable(p)
    table = AxisTable()
    axes = {name: tuple(table.axis(dim) for dim in dims) for name, dims in p.dims.items()}
    equal = tuple((table.axis(a), table.axis(b)) for a, b in p.pool.equal_sizes)
    frozen = p.pool.resolution_frozen or ("" if graph.image or graph.sequences else NO_POSITIONS)
    return AxisMap(
        axes=axes,
        groups=dict(table.groups),
        equal_sizes=equal,
        resolution_frozen=frozen,
        frozen=_reasons(p),
        ordered=_ordered(p, table),
        batch_conflict=p.pool.batch_conflict,
        needed=tuple(map(table.axis, p.pool.needed)),
    )


def _results(node: Node, p: Propagation) -> tuple[Dims, ...]:
    """Dimensions of a node's results. ImportFailed for operands or attributes that the operator does not support."""
    try:
        return find(OPERATORS, node).axes(node, p)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ImportFailed(
            f"{node.place}: not in a form that can be read ({type(error).__name__}: {error}); "
            "allowed: operands and attributes as ONNX's specification has them; export the network again, or report it"
        ) from error


def _join(p: Propagation, pairs: Sequence[tuple[str, str]], fixing: bool = True) -> None:
    """Give pairs of values equal axes if they fit. fixing: also if that fixes free channels."""
    for first, second in pairs:
        dims = list(zip(p.dims[first], p.dims[second], strict=True))
        if all(p.pool.fits(a, b) and (fixing or not p.pool.fixes(a, b)) for a, b in dims):
            for a, b in dims:
                p.pool.unify(a, b, "the same before and after a layer that can be left out")


def _read_inputs(p: Propagation) -> None:
    """Dimensions of the inputs: one batch, on any axis, and one resolution.

    Images of another size than the first keep their ratio to it.

    Without images, the length of token sequences replaces the resolution.
    """
    graph = p.graph
    batch = p.pool.batch(graph.samples)
    sides = [p.pool.spatial(index, size) for index, size in enumerate(graph.positions if graph.image else ())]
    steps = [p.pool.length(size) for size in graph.positions if graph.sequences]
    for name in graph.inputs:
        sizes, axis = graph.shapes[name], graph.batch_axis(name)
        dims = [batch if i == axis else p.pool.fixed(size, "network input") for i, size in enumerate(sizes)]
        if name in graph.sequences:
            dims[1:] = steps
        elif len(dims) == 4 and axis == 0:
            for side, at in zip(sides, graph.sides_of(name), strict=True):
                dims[at] = p.pool.scaled(side, sizes[at], side.size)
        p.dims[name] = tuple(dims)


def _reasons(p: Propagation) -> dict[str, tuple[str, ...]]:
    known: dict[int, str] = {}

    def why(dim: Dim) -> str:
        root = dim.root
        if id(root) not in known:
            parts = root.form.parts
            own = root.reason if root.form.kind == "fixed" else ""
            known[id(root)] = own or next((reason for part in parts if (reason := why(part))), "")
        return known[id(root)]

    return {name: tuple(why(dim) for dim in dims) for name, dims in p.dims.items()}


def _ordered(p: Propagation, table: AxisTable) -> dict[int, str]:
    """Channel groups whose order matters to an operator, with the first such operator.

    All other groups may be permuted: each operator then gives the same result along axes with the same permutation.
    """
    found: dict[int, str] = {}
    for node in p.graph.nodes:
        for dim in find(OPERATORS, node).ordered(node, p):
            for group in table.axis(dim).channel_groups:
                found.setdefault(group, f"{node.place} reads them in their order")
    return found


def _freeze_unmovable(p: Propagation) -> None:
    """Freeze the resolution for stored tensors with an entry for each position that cannot be resampled.

    Look-ups by position depend on the resolution alone: they need all channels.
    """
    consumers, table = p.graph.consumers(), AxisTable()
    for node in p.graph.nodes:
        if node.op == "Gather" and node.outputs[0] not in p.data:
            for dim in p.dims[node.outputs[0]]:
                moves = p.pool.depends_on_input(dim) and not table.axis(dim).channel_groups
                if not moves and dim.root not in [d.root for d in p.dims[node.inputs[0]]]:
                    p.freeze((dim,), node, "is looked up by position")
    table = AxisTable()
    for name in (*p.graph.parameters, *p.graph.constants):
        axes = [table.axis(dim) for dim in p.dims.get(name, ())]
        if not ax.spatial_in(axes):
            continue
        users = consumers.get(name, [])
        tensor = p.tensors[name]
        values = tensor.is_floating_point() or tensor.dtype == torch.bool or any(axis.sequential for axis in axes)
        mixed = next((node for node in users if _sums_over_positions(node, name, axes)), None)
        if mixed is not None or not values:
            where = mixed or users[0]
            reason = f"{where.place}: '{name}' has one entry for each position"
            for dim in p.dims[name]:
                p.pool.freeze_positions(dim, reason)


def _sums_over_positions(node: Node, name: str, axes: Sequence[ax.Axis]) -> bool:
    """Whether an operator sums over the positions of a stored tensor.

    A convolution or linear map that is applied to the tensor sums over its channels, not over its positions.
    """
    channels = {"Conv": 1, "ConvTranspose": 1, "Linear": -1}.get(node.op)
    applied = channels is not None and node.inputs[0] == name and not axes[channels].spatial
    return node.op in MIXERS and not applied


PROPOSED_SHARES = (0.5, 0.75)  # of the network's own resolution, which is always proposed, too
NEAR_SHARE = 0.05  # largest distance of a rounder resolution from a proposed share, as a share of the network's own
ROUNDEST = 32  # a resolution is rounder the larger the power of two (up to this) that divides it
SMALLEST_PART = 0.9  # of the smallest share; legal resolutions below it are not proposed


class Resolutions:
    """Legality of input sizes for one network. A size is the first side of the input; the others keep their ratio to it."""

    def __init__(self, axis_map: AxisMap, sides: Sequence[int]) -> None:
        """sides: the network's own input size: height and width, or the length of its token sequences."""
        self.base, self._sides = sides[0], tuple(sides)
        self._step = lcm(*(self.base // gcd(self.base, side) for side in sides))  # its multiples have integer sides
        self._pairs = axis_map.equal_sizes
        found = {axis for axes in (*axis_map.axes.values(), axis_map.needed) for axis in axes if axis.spatial}
        self._axes = _with_parts(found)

    def problem(self, size: int) -> str:
        """Why an input of this size is illegal; "" if it is legal."""
        if size == self.base:
            return ""
        if size > self.base:
            return f"larger than the network's own, {self.base}"
        if size % self._step:
            ratio = " : ".join(map(str, self._sides))
            return f"no whole numbers of pixels have the ratio {ratio}; multiples of {self._step} have"
        sides = sides_of(size, self._sides)
        patches = self._patches()
        for index, side in enumerate(sides):
            patch = patches.get(index, 1)
            if side % patch:
                return f"not a multiple of the patch size {patch}"
        sizes = Sizes(groups={}, spatial=sides, batch=1)
        for axis in self._axes:
            if isinstance(axis, Scaled) and sizes(axis.source) * axis.numerator % axis.denominator:
                return f"{sizes(axis.source)} positions in some layer cannot be split by {axis.denominator}"
            if sizes(axis) < 1:
                return "leaves no position in some layer"
        if any(sizes(a) != sizes(b) for a, b in self._pairs):
            return "two branches would differ in size"
        return ""

    def proposed(self, shares: Sequence[float] = PROPOSED_SHARES) -> list[int]:
        """Legal resolutions near some shares of the network's own, ascending; rounder numbers are preferred."""
        patches = self._patches()
        smallest = max(patches.get(0, 1), round(SMALLEST_PART * min(shares) * self.base))
        legal = [s for s in range(self.base, smallest - 1, -1) if s % self._step == 0 and not self.problem(s)]
        near = NEAR_SHARE * self.base

        def rank(size: int, wanted: float) -> tuple[float, int, float]:
            away = abs(size - wanted)
            return (away, 0, 0) if away > near else (near, -gcd(size, ROUNDEST), away)

        chosen = {min(legal, key=lambda s: rank(s, share * self.base)) for share in shares if legal}
        return sorted(chosen | {self.base})

    def _patches(self) -> dict[int, int]:
        """Side -> stride of its windows that do not overlap (patches); sides are multiples of the stride."""
        found: dict[int, int] = {}
        for window in self._axes:
            source = window.source if isinstance(window, Window) else None
            if isinstance(window, Window) and isinstance(source, Spatial) and window.offset == 1 - window.stride:
                found[source.index] = max(window.stride, found.get(source.index, 1))
        return found


def sides_of(size: int, base: Sequence[int]) -> tuple[int, ...]:
    """All sides of an input whose first side has this size, with the network's own ratio."""
    return tuple(size * side // base[0] for side in base)


def _with_parts(axes: set[Axis]) -> Sequence[Axis]:
    found: dict[Axis, None] = {}
    pending = list(axes)
    while pending:
        axis = pending.pop()
        if axis not in found and axis.spatial:
            found[axis] = None
            pending += axis.parts
    return tuple(found)
