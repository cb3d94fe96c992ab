"""Operators that only move elements: reshaping, slicing, joining. Their constants follow the config."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from tailor_ir.dims import FREE, POSITIONS, Dim, factors_of
from tailor_ir.errors import MixedSamples
from tailor_ir.graph import Node, Tensors
from tailor_ir.ops.registry import Dims, Function, NodeShapes, Operator, Propagation, computed_by, no_order, order_along


def regroup(node: Node, p: Propagation, dims: Sequence[Dim], sizes: Sequence[int]) -> Dims:
    """Dimensions after a row-major reshape to `sizes`: factors are matched from the left, and merged or split as needed.

    Factors whose sizes do not nest, such as (6, 4) to (4, 6), are frozen; the factors around them are matched.
    """
    factors = _nesting(node, p, list(factors_of(dims)), sizes)
    result: list[Dim] = []
    for size, following in zip(sizes, (*sizes[1:], 0), strict=True):
        taken: list[Dim] = []
        product = 1
        while product < size and factors:
            factor = factors.pop(0)
            need = size // product
            if factor.size > need:
                factor, rest = _split(node, p, factor, need)
                factors.insert(0, rest)
            taken.append(factor)
            product *= factor.size
        assert product == size, (node, sizes)
        if size == 1 and factors and factors[0].size == 1:
            taken = [factors.pop(0)]
        while following != 1 and _goes_on(p, taken, factors):
            taken.append(factors.pop(0))
        result.append(p.pool.product(tuple(taken)) if taken else p.pool.fixed(1))
    single = [f for f in factors if not p.pool.is_fixed(f)]
    if single:  # axes that have one element only at the traced resolution
        result[-1] = p.pool.product((result[-1], *single))
    return tuple(result)


def _nesting(node: Node, p: Propagation, factors: Sequence[Dim], sizes: Sequence[int]) -> list[Dim]:
    """The factors, with factors that the new sizes cut across replaced by fixed ones of the new sizes.

    MixedSamples: the sample axis is among the replaced factors.
    """
    left, wanted = list(factors), list(sizes)
    found: list[Dim] = []
    while left and wanted:
        count, parts = _segment(left, wanted)
        segment = left[:count]
        samples = next((i for i, dim in enumerate(segment) if p.pool.has_samples(dim)), None)
        if samples == 0 and parts[0] % segment[0].size == 0:  # the rest belongs to one sample and is matched by itself
            found.append(left.pop(0))
            wanted[0] //= found[-1].size
            wanted = wanted[1:] if wanted[0] == 1 else wanted
        elif _nests([dim.size for dim in segment], parts):
            found += segment
            del left[:count], wanted[: len(parts)]
        else:
            why = f"reshapes across axes to {tuple(sizes)}"
            if samples is not None:
                raise MixedSamples(
                    f"{node.place}: {why}, which mixes samples; allowed: reshapes of each sample by "
                    "itself; keep the first axis"
                )
            p.freeze(segment, node, why)
            found += [p.pool.fixed(size) for size in parts]
            del left[:count], wanted[: len(parts)]
    return [*found, *left]


def _segment(factors: Sequence[Dim], sizes: Sequence[int]) -> tuple[int, list[int]]:
    """The shortest prefixes of factors and sizes with equal products: the number of factors, and the sizes."""
    count, taken = 1, 1
    before, after = factors[0].size, sizes[0]
    while before != after:
        if before < after:
            before *= factors[count].size
            count += 1
        else:
            after *= sizes[taken]
            taken += 1
    return count, list(sizes[:taken])


def _nests(factors: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether each factor divides one size, or is the product of several."""
    left = list(factors)
    for size in sizes:
        product = 1
        while product < size:
            need, rest = divmod(size, product)
            if rest or (left[0] > need and left[0] % need):
                return False
            taken = min(left[0], need)
            left[0] //= taken
            product *= taken
            if left[0] == 1:
                del left[0]
    return True


def _goes_on(p: Propagation, taken: Sequence[Dim], factors: Sequence[Dim]) -> bool:
    """Whether positions continue with positions that have one element only at the traced resolution."""
    if not taken or not factors or factors[0].size != 1:
        return False
    return p.pool.has_positions(taken[-1]) and p.pool.has_positions(factors[0])


def _split(node: Node, p: Propagation, dim: Dim, outer: int) -> tuple[Dim, Dim]:
    """Split a dimension into `outer`, which divides it, times the rest."""
    if p.pool.depends_on_input(dim):
        return p.pool.split(dim, outer)
    if dim.root.form is FREE:
        parts = p.pool.free(outer), p.pool.free(dim.size // outer)
        p.unify(dim, p.pool.product(parts), node)
        return parts
    pieces = dim.root.form.parts
    if dim.root.form.kind == "concat" and [piece.size for piece in pieces] == [dim.size // outer] * outer:
        for piece in pieces[1:]:  # equal pieces are cut alike
            p.unify(pieces[0], piece, node)
        return p.pool.fixed(outer), pieces[0]
    p.freeze((dim,), node, f"splits an axis of {dim.size} into {outer} and {dim.size // outer}")
    return p.pool.fixed(outer), p.pool.fixed(dim.size // outer)


def divide(node: Node, p: Propagation, dim: Dim, sizes: Sequence[int]) -> list[Dim] | None:
    """Divide a dimension into adjacent pieces of these sizes; None if the pieces exist only at full size.

    A channel group becomes the concatenation of its pieces. A product of factors is divided along its first factor:
    (a | b) × c = (a × c | b × c). A concatenation is divided between its parts, or inside them.
    """
    form = dim.root.form
    if len(sizes) == 1:
        return [dim]
    if form is FREE:
        pieces = [p.pool.free(size) for size in sizes]
        p.unify(dim, p.pool.concat(tuple(pieces)), node)
        return pieces
    if form.kind == "fixed":
        return [p.pool.fixed(size) for size in sizes]
    if form.kind == "product":
        first, *rest = factors_of((dim,))
        inner = dim.size // first.size
        outer = None if any(size % inner for size in sizes) else divide(node, p, first, [s // inner for s in sizes])
        return None if outer is None else [p.pool.product((piece, *rest)) for piece in outer]
    return _divide_concat(node, p, form.parts, sizes) if form.kind == "concat" else None


def _divide_concat(node: Node, p: Propagation, parts: Sequence[Dim], sizes: Sequence[int]) -> list[Dim] | None:
    left, found = list(parts), []
    for size in sizes:
        taken: list[Dim] = []
        while size:
            part = left.pop(0)
            if part.size > size:
                halves = divide(node, p, part, [size, part.size - size])
                if halves is None:
                    return None
                part = halves[0]
                left.insert(0, halves[1])
            taken.append(part)
            size -= part.size
        found.append(p.pool.concat(tuple(taken)))
    return found


Ranges = tuple[tuple[int, int, int, int], ...]  # axis, start, stop, step


class Expand(nn.Module):
    """Broadcast to sizes; -1 stands for the batch size of `reference`, on its axis `batch_axis`."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.sizes, self.batch_axis = sizes, 0

    def forward(self, x: torch.Tensor, reference: torch.Tensor | None = None) -> torch.Tensor:
        if reference is None:
            return x.expand(self.sizes)
        own = (1,) * (len(self.sizes) - x.dim()) + x.shape
        samples, wanted = reference.shape[self.batch_axis], zip(self.sizes, own, strict=True)
        return x.expand([(samples if old == 1 else old) if size == -1 else size for size, old in wanted])


class Slice(nn.Module):
    """Take one range (start, stop, step) of each named axis. Ranges of axes in `samples` apply to a batch of one."""

    def __init__(self, ranges: Ranges, samples: Mapping[int, int]) -> None:
        super().__init__()
        self.ranges, self.samples = ranges, samples

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for axis, start, stop, step in self.ranges:
            batch = x.shape[axis] // self.samples.get(axis, x.shape[axis])
            if step > 0:
                index = [slice(None)] * x.dim()
                index[axis] = slice(batch * start, batch * stop, step)
                x = x[tuple(index)]
            else:
                x = x.index_select(axis, torch.arange(start, stop, step, device=x.device))
        return x


def _split_apart(x: torch.Tensor, *, sizes: tuple[int, ...], axis: int) -> tuple[torch.Tensor, ...]:
    """Pieces of one axis with these proportions."""
    batch = x.shape[axis] // sum(sizes)  # above one if the axis holds the samples
    return torch.split(x, [batch * size for size in sizes], axis)


class Gather(nn.Module):
    """Look up constant positions (any shape) along one axis; the axes of the positions replace it."""

    def __init__(self, positions: np.ndarray, axis: int) -> None:
        super().__init__()
        self.single = int(positions) if positions.ndim == 0 else None
        self.shape, self.axis = positions.shape, axis
        self.positions: torch.Tensor
        self.register_buffer("positions", torch.from_numpy(positions.reshape(-1)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.single is not None:
            return x.select(self.axis, self.single)
        taken = x.index_select(self.axis, self.positions)
        return taken if len(self.shape) == 1 else taken.unflatten(self.axis, self.shape)


def _concatenated(*parts: torch.Tensor, axis: int) -> torch.Tensor:
    """Parts joined along one axis; parts with one entry for all samples are repeated."""
    batch = max(part.shape[0] for part in parts)
    if axis != 0 and any(part.shape[0] != batch for part in parts):
        parts = tuple(part.expand(batch, *part.shape[1:]) for part in parts)
    return torch.cat(parts, axis)


def _reshape_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x, sizes, same = p.of(node.inputs[0]), p.output_sizes(node), _copied(node, p)
    if prod(dim.size for dim in x) != prod(sizes):
        raise MixedSamples(
            f"{node.place}: makes {sizes} of {tuple(dim.size for dim in x)}; allowed: as many "
            "elements; sizes that are written for one sample have to follow the batch"
        )
    if same and same < len(sizes):  # if all sizes are one, only this distinguishes the batch from other axes
        return ((*x[:same], *regroup(node, p, x[same:], sizes[same:])),)
    return (regroup(node, p, x, sizes),)


def _copied(node: Node, p: Propagation) -> int:
    """Number of leading axes that a Reshape copies (sizes written as 0)."""
    target = p.tensors.get(node.inputs[1]) if node.op == "Reshape" and len(node.inputs) > 1 else None
    if target is None or node.int("allowzero", 0):
        return 0
    return next((i for i, size in enumerate(target.tolist()) if size), len(target))


def _lower_reshape(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return Function(torch.reshape, shape=shapes.open_outputs[0])


def _reshape_constants(node: Node, shapes: NodeShapes, tensors: Mapping[str, torch.Tensor]) -> dict[int, np.ndarray]:
    return {1: np.asarray(shapes.outputs[0], np.int64)}


def _transpose_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    order = node.ints("perm", tuple(reversed(range(len(x)))))
    return (tuple(x[i] for i in order),)


def _expand_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x, sizes = p.of(node.inputs[0]), p.output_sizes(node)
    padded = (p.pool.fixed(1),) * (len(sizes) - len(x)) + x
    return (tuple(dim if dim.size == size else p.pool.free(size) for dim, size in zip(padded, sizes, strict=True)),)


def _concat_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    operands = [p.of(name) for name in node.inputs]
    axis = node.int("axis", 0) % len(operands[0])
    along = tuple(dims[axis] for dims in operands)
    joined = _shifted(p, along) or p.pool.concat(along)
    others = [tuple(d for i, d in enumerate(dims) if i != axis) for dims in operands]
    result = list(p.broadcast(node, others)) if others[0] else []
    result.insert(axis, joined)
    return (tuple(result),)


def _shifted(p: Propagation, parts: Sequence[Dim]) -> Dim | None:
    """The original positions if the other parts replace exactly what was cropped (rows are shifted); None for other parts."""
    moved = [part for part in parts if not p.pool.is_fixed(part)]
    if len(moved) != 1:
        return None
    form = moved[0].root.form
    if form.kind != "window" or not p.pool.has_positions(moved[0]):
        return None
    beside = sum(part.size for part in parts) - moved[0].size
    return form.parts[0] if form.attributes[:2] == (1, -beside) else None


def _cut(node: Node, p: Propagation, dim: Dim, start: int, stop: int) -> Dim:
    """The piece [start, stop) of a dimension; a piece that consists of whole parts of a concatenation keeps these parts.

    Position axes are cropped by the same amount at every resolution.
    """
    if (start, stop) == (0, dim.size):
        return dim
    form = dim.root.form
    if p.pool.is_batch(dim):
        raise MixedSamples(
            f"{node.place}: takes samples {start} to {stop} of a batch of {dim.size}; allowed: "
            "networks that treat all samples alike, in batches of any size; let it work on the whole batch"
        )
    if form.kind == "concat":
        offset, parts = 0, []
        for part in form.parts:
            if start <= offset and offset + part.size <= stop:
                parts.append(part)
            offset += part.size
        if parts and sum(part.size for part in parts) == stop - start:
            if node.op != "Split" and stop != dim.size:  # counted from the begin, so parts before are fixed
                sizes = list(accumulate(part.size for part in form.parts))
                p.freeze(form.parts[: bisect_right(sizes, start)], node, f"takes elements {start} to {stop} behind it")
            return p.pool.concat(tuple(parts))
        if stop <= form.parts[0].size and p.pool.is_fixed(form.parts[0]):
            return p.pool.fixed(stop - start)
    if form.kind in (*POSITIONS, "window", "scaled"):
        if 2 * (stop - start) > dim.size:
            return p.pool.window(dim, 1, stop - start - dim.size)
        if stop - start == 1 and (start == 0 or stop == dim.size):
            return p.pool.fixed(1)  # both ends of the axis exist at every resolution
    p.freeze((dim,), node, f"takes elements {start} to {stop} of {dim.size}")
    return p.pool.fixed(stop - start)


def _whole_begin(p: Propagation, dim: Dim) -> int:
    """Number of leading elements of a dimension that keep their positions under every config."""
    form, count = dim.root.form, 0
    if p.pool.is_fixed(dim):
        return dim.size
    for part in form.parts if form.kind == "concat" else ():
        count += _whole_begin(p, part)
        if not p.pool.is_fixed(part):
            break
    return count


def _ranges(node: Node, tensors: Mapping[str, torch.Tensor], shape: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    def values(position: int, default: list[int]) -> list[int]:
        given = position < len(node.inputs) and node.inputs[position]
        return tensors[node.inputs[position]].tolist() if given else default

    starts, stops = values(1, []), values(2, [])
    axes, steps = values(3, list(range(len(starts)))), values(4, [1] * len(starts))
    result = []
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        axis %= len(shape)
        start, stop, step = slice(start, stop, step).indices(shape[axis])  # a stop of -1 is before the first
        result.append((axis, start, stop, step))
    return result


def _slice_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    for position in range(1, len(node.inputs)):
        if node.inputs[position]:
            p.constant(node, position)
    result = list(x)
    for axis, start, stop, step in _ranges(node, p.tensors, p.graph.shapes[node.inputs[0]]):
        if step == 1:
            if (
                start > _whole_begin(p, result[axis])
                and stop < result[axis].size
                and result[axis].root.form.kind == "concat"
            ):
                p.freeze((result[axis],), node, f"takes elements {start} to {stop}, before which others may go")
            result[axis] = _cut(node, p, result[axis], start, stop)
        elif (start, stop, step) == (result[axis].size - 1, -1, -1) and p.pool.depends_on_input(result[axis]):
            continue  # reversed at every resolution
        elif step > 1 and start < step and stop > result[axis].size - step and p.pool.depends_on_input(result[axis]):
            result[axis] = p.pool.window(result[axis], step, stop - start - result[axis].size)
        else:
            p.freeze((result[axis],), node, f"takes every {step}th element")
            result[axis] = p.pool.fixed(p.output_sizes(node)[axis])
    return (tuple(result),)


def _slice_order(node: Node, p: Propagation) -> Iterable[Dim]:
    """Axes that are read in steps or from the end; for other ranges, `axes` already describes the piece."""
    x = p.of(node.inputs[0])
    return (x[axis] for axis, _, _, step in _ranges(node, p.tensors, p.graph.shapes[node.inputs[0]]) if step != 1)


def _shifted_ranges(
    node: Node, shapes: NodeShapes, tensors: Mapping[str, torch.Tensor]
) -> list[tuple[int, int, int, int]]:
    """Ranges under a config; a range that ends at the end of its axis is counted from the end."""
    full = shapes.full_inputs[0]
    result = []
    for axis, start, stop, step in _ranges(node, tensors, full):
        size, length = shapes.inputs[0][axis], shapes.outputs[0][axis]
        if step == 1 and size != full[axis]:
            start = size - length if stop == full[axis] and start > 0 else start
            stop = start + length
        elif step > 1:
            stop = size - (full[axis] - stop)
        elif step < 0:
            start = size - (full[axis] - start)
        result.append((axis, start, stop, step))
    return result


def _lower_slice(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    ranges = _shifted_ranges(node, shapes, tensors)
    samples = {axis: shapes.inputs[0][axis] for axis, *_ in ranges if shapes.open_outputs[0][axis] == -1}
    return Slice(tuple(ranges), samples)


def _slice_constants(node: Node, shapes: NodeShapes, tensors: Mapping[str, torch.Tensor]) -> dict[int, np.ndarray]:
    ranges = _shifted_ranges(node, shapes, tensors)
    axes, starts, stops, steps = (np.asarray(v, np.int64) for v in zip(*ranges, strict=True))
    stops = np.where((steps < 0) & (stops < 0), np.iinfo(np.int64).min + 1, stops)  # -1 would mean the last element
    return {1: starts, 2: stops, 3: axes, 4: steps}


def _roll_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    dim = x[node.int("axis", 0)]
    if not p.pool.depends_on_input(dim):
        p.freeze((dim,), node, "shifts the axis")
    return (x,)


def _roll_attributes(node: Node, shapes: NodeShapes) -> dict[str, int]:
    """Shift by the same share of the axis."""
    axis, shift = node.int("axis", 0), node.int("shift", 0)
    full, size = shapes.full_inputs[0][axis], shapes.inputs[0][axis]
    if 2 * shift <= full:
        return {"shift": round(shift * size / full)}
    return {"shift": size - round((full - shift) * size / full)}


def _roll_settings(node: Node, shapes: NodeShapes) -> dict[str, Any]:
    """Settings of `torch.roll`; element i of ONNX's result is element i + shift of x."""
    return {"shifts": -_roll_attributes(node, shapes)["shift"], "dims": node.int("axis", 0)}


def _split_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    axis = node.int("axis", 0) % len(x)
    sizes = [p.output_sizes(node, i)[axis] for i in range(len(node.outputs))]
    parts = divide(node, p, x[axis], sizes)
    if parts is None:
        stops = np.cumsum(sizes).tolist()
        parts = [_cut(node, p, x[axis], stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]
        if all(map(p.pool.is_fixed, parts)):
            p.freeze((x[axis],), node, f"divides its {x[axis].size} elements into pieces of constant sizes")
    return tuple((*x[:axis], part, *x[axis + 1 :]) for part in parts)


def _split_sizes(node: Node, shapes: NodeShapes) -> tuple[int, ...]:
    return tuple(output[node.int("axis", 0)] for output in shapes.outputs)


def _gather_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    axis = node.int("axis", 0) % len(x)
    positions = p.constant(node, 1)
    if (
        positions.ndim and node.outputs[0] not in p.data
    ):  # a look-up in a weight: values joined with the positions later give them meaning
        p.freeze((x[axis],), node, "is looked up by position")
        return ((*x[:axis], *(p.pool.free(size) for size in positions.shape), *x[axis + 1 :]),)
    unfolded = _unfolded(positions)
    if unfolded is not None and all(map(p.pool.has_positions, factors_of((x[axis],)))):
        step, stride, by_row = unfolded
        length, count = positions.shape[::-1] if by_row else positions.shape
        windows = p.pool.window(x[axis], stride, -step * (length - 1))
        if windows.size == count:
            inside = p.pool.fixed(length)
            return ((*x[:axis], *((windows, inside) if by_row else (inside, windows)), *x[axis + 1 :]),)
    first, last = int(positions.min()), int(positions.max())
    end = not positions.ndim and first in (0, -1) and p.pool.depends_on_input(x[axis])  # exists at every resolution
    if not end and not 0 <= first <= last < _whole_begin(p, x[axis]):
        p.freeze((x[axis],), node, "is looked up by position")
    kept = tuple(p.pool.fixed(size) for size in positions.shape)
    return ((*x[:axis], *kept, *x[axis + 1 :]),)


def _unfolded(positions: np.ndarray) -> tuple[int, int, bool] | None:
    """(step, stride, by row) if column j (or row j) holds window j of an axis: positions j · stride + i · step.

    If both views fit, the view with shorter windows. None if positions are no windows.
    """
    if positions.ndim != 2 or positions[0, 0] != 0:
        return None
    rows, columns = positions.shape
    down = int(positions[1, 0]) if rows > 1 else 1
    across = int(positions[0, 1]) if columns > 1 else 1
    regular = np.arange(rows)[:, None] * down + np.arange(columns)[None, :] * across
    if down <= 0 or across <= 0 or not np.array_equal(positions, regular):
        return None
    by_row = across * (columns - 1) < down * (rows - 1)
    return (across, down, True) if by_row else (down, across, False)


def _gather_constants(node: Node, shapes: NodeShapes, tensors: Mapping[str, torch.Tensor]) -> dict[int, np.ndarray]:
    positions = tensors[node.inputs[1]].numpy()
    axis = node.int("axis", 0) % len(shapes.full_inputs[0])
    unfolded = _unfolded(positions)
    if unfolded is None or shapes.inputs[0][axis] == shapes.full_inputs[0][axis]:
        return {1: positions}
    step, stride, by_row = unfolded
    down, across = (stride, step) if by_row else (step, stride)
    rows, columns = shapes.outputs[0][axis : axis + 2]
    return {1: np.arange(rows)[:, None] * down + np.arange(columns)[None, :] * across}


def _lower_gather(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    positions = _gather_constants(node, shapes, tensors)[1]
    return Gather(positions.copy(), node.int("axis", 0) % len(shapes.full_inputs[0]))


def _squeezed(node: Node, p: Propagation, rank: int) -> tuple[int, ...]:
    if len(node.inputs) > 1 and node.inputs[1]:
        return tuple(int(a) % rank for a in p.constant(node, 1))
    return tuple(a % rank for a in node.ints("axes"))


def _squeeze_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    dropped = set(_squeezed(node, p, len(x)))
    if any(p.pool.is_batch(x[i]) for i in dropped):
        raise MixedSamples(
            f"{node.place}: drops the batch, which has one sample in this network; allowed: a batch "
            "that stays; squeeze other axes by number, or export with an open batch"
        )
    p.freeze([x[i] for i in dropped], node, "drops the axis")
    return (tuple(dim for i, dim in enumerate(x) if i not in dropped),)


def _unsqueeze_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = list(p.of(node.inputs[0]))
    for axis in sorted(_squeezed(node, p, len(p.output_sizes(node)))):
        x.insert(axis, p.pool.fixed(1))
    return (tuple(x),)


OPERATORS = (
    Operator(
        names=("Reshape",),
        axes=_reshape_axes,
        order=no_order,
        lower=_lower_reshape,
        operands=1,
        constants=_reshape_constants,
    ),
    Operator(names=("Flatten",), axes=_reshape_axes, order=no_order, lower=_lower_reshape, operands=1),
    Operator(names=("Transpose",), axes=_transpose_axes, order=no_order),
    Operator(names=("Squeeze",), axes=_squeeze_axes, order=no_order, lower=_lower_reshape, operands=1),
    Operator(names=("Unsqueeze",), axes=_unsqueeze_axes, order=no_order, lower=_lower_reshape, operands=1),
    Operator(
        names=("Expand",),
        axes=_expand_axes,
        order=no_order,
        lower=lambda node, shapes, tensors: Expand(shapes.open_outputs[0]),
        operands=1,
        constants=_reshape_constants,
        needs_batch=True,
    ),
    Operator(
        names=("Concat",),
        axes=_concat_axes,
        order=no_order,
        lower=computed_by(_concatenated, lambda node: {"axis": node.int("axis", 0)}),
    ),
    Operator(
        names=("Slice",),
        axes=_slice_axes,
        order=_slice_order,
        lower=_lower_slice,
        operands=1,
        constants=_slice_constants,
    ),
    Operator(
        names=("Roll",),
        axes=_roll_axes,
        order=order_along(0),
        lower=lambda node, shapes, tensors: Function(torch.roll, **_roll_settings(node, shapes)),
        attributes=_roll_attributes,
    ),
    Operator(
        names=("Split",),
        axes=_split_axes,
        order=no_order,
        lower=lambda node, shapes, _: Function(
            _split_apart, sizes=_split_sizes(node, shapes), axis=node.int("axis", 0)
        ),
        operands=1,
        constants=lambda node, shapes, _: {1: np.asarray(_split_sizes(node, shapes), np.int64)},
    ),
    Operator(
        names=("Gather",),
        axes=_gather_axes,
        order=order_along(0),
        lower=_lower_gather,
        operands=1,
        constants=_gather_constants,
    ),
)
