"""Dimensions while a network is being read: union-find over axes, with a reason for every frozen dimension."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import gcd, prod
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from tailor_ir import axes as ax
from tailor_ir.errors import ImportFailed

Positions = TypeVar("Positions", np.ndarray, torch.Tensor)
FILTERED = "FilteredResize"
"""Resize variants that opset 17 lacks: with an antialiasing filter, or with coordinates centred on the image."""
FACTORS = "factors"
"""Attribute of `FilteredResize`: the network's own factors for all axes; () for the ratios of the sizes."""


def size_by_factor(size: int, factor: float | np.floating[Any]) -> int:
    """The size after resizing. The product is float32, as in onnxruntime: 1.3 · 10 is 13, but below 13 in a wider type."""
    return int(np.float32(size) * np.float32(factor))


def from_begin(positions: Positions, size: int) -> Positions:
    """Positions along an axis of `size` entries; negative ones count from the end, as in ONNX."""
    return positions + size * (positions < 0)


@dataclass(frozen=True, slots=True)
class Form:
    """The derivation of a dimension. kind: free, fixed, batch, spatial, length, window, scaled, kernel, concat or product."""

    kind: str
    parts: tuple["Dim", ...] = ()
    attributes: tuple[int, ...] = ()


FREE = Form("free")
"""The form of a channel group without restrictions so far."""


@dataclass(slots=True, eq=False)
class Dim:
    """A dimension while a network is read. `parent`: another dimension that was found to be the same (union-find).

    form: how its size is derived from other dimensions.
    """

    size: int
    form: Form = FREE
    parent: "Dim | None" = None
    reason: str = ""

    @property
    def root(self) -> "Dim":
        """The representative of all dimensions that were found to be the same."""
        dim = self
        while dim.parent is not None:
            dim = dim.parent
        if dim is not self:
            self.parent = dim
        return dim


def factors_of(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """The factors of a row-major flattening of `dims`, with nested products expanded, without factors of size one."""
    found: list[Dim] = []
    for dim in dims:
        form = dim.root.form
        if form.kind == "product":
            found += factors_of(form.parts)
        elif form.kind != "fixed" or dim.size != 1:
            found.append(dim)
    return tuple(found)


def _nested(left: Sequence[Dim], right: Sequence[Dim]) -> Iterator[tuple[list[Dim], list[Dim]]]:
    """Shortest runs of factors of equal size in two flattenings of the same size, from left to right."""
    ones, others = list(left), list(right)
    while ones and others:
        one, other = [ones.pop(0)], [others.pop(0)]
        while prod(d.size for d in one) != prod(d.size for d in other):
            shorter, rest = (one, ones) if prod(d.size for d in one) < prod(d.size for d in other) else (other, others)
            if not rest:
                return
            shorter.append(rest.pop(0))
        yield one, other


Windows = Literal["number", "size"]
"""The quantity that grows with the resolution when positions are split into windows: their number, or the size of each."""
POSITIONS = ("spatial", "length")  # forms whose size is set by the resolution, or by the length of token sequences
LARGEST_PATCH = 3  # positions side by side that form a patch of fixed size, not a window


@dataclass(slots=True)
class DimPool:
    """All dimensions of one network. `resolution_frozen`: why the resolution cannot change; "" if it can.

    equal_sizes: pairs of dimensions of different forms that are equal only at some resolutions, the legal ones. needed:
    dimensions that belong to no value and keep at least one position at every legal resolution. batch_conflict: where the batch
    was joined with an axis that is not a batch; "" if never.
    """

    windows: Windows = "number"
    equal_sizes: list[tuple[Dim, Dim]] = field(default_factory=list)
    needed: list[Dim] = field(default_factory=list)
    resolution_frozen: str = ""
    batch_conflict: str = ""

    def is_batch(self, dim: Dim) -> bool:
        """Whether the dimension is the batch and nothing else."""
        return dim.root.form.kind == "batch"

    def is_fixed(self, dim: Dim) -> bool:
        """Whether the dimension is the same under every config."""
        return dim.root.form.kind == "fixed"

    def free(self, size: int) -> Dim:
        """A new channel group; a size of one is fixed, since it cannot be cut."""
        return self.fixed(1) if size == 1 else Dim(size)

    def fixed(self, size: int, reason: str = "") -> Dim:
        return Dim(size, Form("fixed"), reason=reason)

    def batch(self, size: int) -> Dim:
        return Dim(size, Form("batch"))

    def spatial(self, index: int, size: int) -> Dim:
        return Dim(size, Form("spatial", attributes=(index,)))

    def length(self, size: int) -> Dim:
        """The length of token sequences."""
        return Dim(size, Form("length", attributes=(0,)))

    def window(self, source: Dim, stride: int, offset: int, ceil: bool = False) -> Dim:
        """The positions of windows over `source`; the source itself if every position is kept, as in residual branches."""
        inner = source.root.form
        if stride == 1 and inner.kind == "window":  # a window over the other's source
            (source,), (stride, before, rounding) = inner.parts, inner.attributes
            offset, ceil = before + stride * offset, bool(rounding)
        elif inner.kind == "window" and inner.attributes[0] == 1:
            (source,), offset = inner.parts, offset + inner.attributes[1]
        if stride == 1 and offset == 0:
            return source
        size = ax.window_size(source.size, stride, offset, ceil)
        if self.is_fixed(source):
            return self.fixed(size)
        return Dim(size, Form("window", (source,), (stride, offset, ceil)))

    def scaled(self, source: Dim, numerator: int, denominator: int) -> Dim:
        """`source` · numerator / denominator."""
        form = source.root.form
        size = source.size * numerator // denominator
        if not self.can_change(source):
            return source if numerator == denominator else self.fixed(size)
        if form.kind == "scaled":
            (source,) = form.parts
            numerator, denominator = numerator * form.attributes[0], denominator * form.attributes[1]
        common = gcd(numerator, denominator)
        if numerator == denominator:
            return source
        return Dim(size, Form("scaled", (source,), (numerator // common, denominator // common)))

    def kernel(self, size: int) -> Dim:
        """A kernel whose centre can be kept alone."""
        return Dim(size, Form("kernel"))

    def is_kernel(self, dim: Dim) -> bool:
        """Whether the dimension was made by `kernel`."""
        return dim.root.form.kind == "kernel"

    def split(self, dim: Dim, outer: int) -> tuple[Dim, Dim]:
        """A dimension that depends on the input, split in two: (windows, positions in each window)."""
        inner = dim.size // outer
        if self.windows == "number" or inner <= LARGEST_PATCH:
            return self.scaled(dim, 1, inner), self.fixed(inner)
        return self.fixed(outer), self.scaled(dim, 1, outer)

    def concat(self, parts: tuple[Dim, ...]) -> Dim:
        return parts[0] if len(parts) == 1 else Dim(sum(p.size for p in parts), Form("concat", parts))

    def product(self, factors: tuple[Dim, ...]) -> Dim:
        real: list[Dim] = []
        for factor in factors:
            if factor.size == 1 and self.is_fixed(factor):
                continue
            whole = self._whole(real[-1], factor) if real else None
            if whole is None:
                real.append(factor)
            else:
                real[-1] = whole
        if not real:
            return factors[0]
        return real[0] if len(real) == 1 else Dim(prod(f.size for f in real), Form("product", tuple(real)))

    def _whole(self, a: Dim, b: Dim) -> Dim | None:
        """The dimension that was split into `a` and `b`; None if they do not come from one split."""
        for piece, rest in ((a.root, b.root), (b.root, a.root)):
            is_split = (piece.form.kind, rest.form.kind) == ("scaled", "fixed")
            if is_split and piece.form.attributes[1] % rest.size == 0:
                return self.scaled(piece, rest.size, 1)
        return None

    def unify(self, a: Dim, b: Dim, reason: str) -> Dim:
        """Make two dimensions one. If their structures do not fit, both are frozen at full size, with `reason`.

        Two dimensions that depend on the input are only required to have equal sizes; their channels are frozen, since they lie
        at different places.
        """
        a, b = a.root, b.root
        if a is b:
            return a
        if a.size != b.size:
            raise ImportFailed(
                f"{reason}: joins axes of {a.size} and {b.size}; allowed: operands whose sizes agree; export the network again"
            )
        if FREE in (a.form, b.form):
            child, parent = (a, b) if a.form is FREE else (b, a)
            if parent.form is not FREE and self._contains(parent, child):
                self.freeze(parent, reason)
                return parent
            child.parent = parent
            parent.reason = parent.reason or child.reason
            return parent
        nested = self._contains(a, b) or self._contains(b, a)
        if not nested and a.form.kind == b.form.kind and self._unify_parts(a.form, b.form, reason):
            b.parent = a
            return a
        if "batch" in (a.form.kind, b.form.kind):
            self.batch_conflict = self.batch_conflict or f"{reason}: the batch meets an axis that is none"
        if self.depends_on_input(a) and self.depends_on_input(b):
            self.freeze_channels(a, reason)
            self.freeze_channels(b, reason)
            self.equal_sizes.append((a, b))
            return a
        self.freeze(a, reason)
        self.freeze(b, reason)
        return a

    def fits(self, a: Dim, b: Dim) -> bool:
        """Whether `unify` would join the two without freezing anything."""
        a, b = a.root, b.root
        if a is b or a.size != b.size:
            return a is b
        if FREE in (a.form, b.form):
            return not (self._contains(a, b) or self._contains(b, a))
        if a.form.kind != b.form.kind or a.form.attributes != b.form.attributes:
            return False
        if a.form.kind == "fixed":
            return True
        left, right = a.form.parts, b.form.parts
        return len(left) == len(right) and all(self.fits(x, y) for x, y in zip(left, right, strict=True))

    def fixes(self, a: Dim, b: Dim) -> bool:
        """Whether `unify` of two fitting dimensions would fix channels of one of them."""
        a, b = a.root, b.root
        if a is b:
            return False
        if FREE in (a.form, b.form):
            return self.is_fixed(a) or self.is_fixed(b)
        return any(self.fixes(x, y) for x, y in zip(a.form.parts, b.form.parts, strict=False))

    def _unify_parts(self, a: Form, b: Form, reason: str) -> bool:
        """Unify two forms of one kind part by part; False when their parts differ in size."""
        left, right = a.parts, b.parts
        if a.kind == "product":
            left, right = factors_of(left), factors_of(right)
            if [p.size for p in left] != [p.size for p in right]:
                return self._unify_factors(left, right, reason)
        if a.attributes != b.attributes or [p.size for p in left] != [p.size for p in right]:
            return False
        for x, y in zip(left, right, strict=True):
            self.unify(x, y, reason)
        return True

    def _unify_factors(self, left: Sequence[Dim], right: Sequence[Dim], reason: str) -> bool:
        """Unify factors of two flattenings, if one factor on a side matches several on the other; False if they do not nest."""
        groups = list(_nested(left, right))
        if not groups or any(min(len(one), len(other)) > 1 for one, other in groups):
            return False
        if any(
            len(one) != len(other) and (one if len(one) == 1 else other)[0].root.form is not FREE
            for one, other in groups
        ):
            return False  # only an unrestricted factor can be split into several
        for one, other in groups:
            self.unify(self.product(tuple(one)), self.product(tuple(other)), reason)
        return True

    def _contains(self, dim: Dim, wanted: Dim) -> bool:
        return dim.root is wanted or any(self._contains(p, wanted) for p in dim.root.form.parts)

    def can_change(self, dim: Dim) -> bool:
        """Whether any config, resolution or batch may change the dimension, as far as known so far."""
        form = dim.root.form
        return form.kind in ("free", *POSITIONS, "batch", "kernel") or any(map(self.can_change, form.parts))

    def depends_on_input(self, dim: Dim) -> bool:
        form = dim.root.form
        return form.kind in (*POSITIONS, "batch") or any(map(self.depends_on_input, form.parts))

    def has_samples(self, dim: Dim) -> bool:
        """Whether the dimension depends on the number of samples."""
        form = dim.root.form
        return form.kind == "batch" or any(map(self.has_samples, form.parts))

    def has_positions(self, dim: Dim) -> bool:
        """Whether the dimension depends on the resolution, or on the length of sequences."""
        form = dim.root.form
        return form.kind in POSITIONS or any(map(self.has_positions, form.parts))

    def freeze_positions(self, dim: Dim, reason: str) -> None:
        """Keep dimensions that depend on the resolution at full size; channels in the same dimension may still change."""
        form = dim.root.form
        if form.kind in POSITIONS:
            self.freeze(dim, reason)
        for part in form.parts:
            self.freeze_positions(part, reason)

    def freeze_channels(self, dim: Dim, reason: str) -> None:
        """Keep the channels and kernels from which a dimension is derived at full size; its positions may still change."""
        form = dim.root.form
        if form.kind in ("free", "kernel"):
            self.freeze(dim, reason)
        for part in form.parts:
            self.freeze_channels(part, reason)

    def freeze_counted(self, dim: Dim, reason: str) -> None:
        """Keep the channel groups whose size determines how many windows or steps a dimension has.

        With fewer channels that number might not be an integer, or might be zero.
        """
        form = dim.root.form
        for part in form.parts:
            if form.kind in ("window", "scaled"):
                self.freeze_channels(part, reason)
            else:
                self.freeze_counted(part, reason)

    def freeze(self, dim: Dim, reason: str) -> None:
        """Keep a dimension at its full size in every SubNet."""
        dim = dim.root
        if dim.form.kind in ("free", "kernel"):
            dim.form = Form("fixed")
            dim.reason = reason
        elif dim.form.kind in POSITIONS:
            self.resolution_frozen = self.resolution_frozen or reason
        for part in dim.form.parts:
            self.freeze(part, reason)


EXPRESSIONS: dict[str, Callable[..., ax.Axis]] = {
    "fixed": ax.Fixed,
    "batch": ax.BatchAxis,
    "spatial": ax.Spatial,
    "length": ax.TokenLength,
    "window": ax.Window,
    "scaled": ax.Scaled,
    "concat": ax.Concat,
    "product": ax.Product,
}
"""Kind of form -> the axis, made of its size, parts and attributes."""


class AxisTable:
    """Converts dims into axes. Equal expressions are one object; every free root is one channel group."""

    def __init__(self) -> None:
        self.groups: dict[int, int] = {}
        self._known: dict[int, ax.Axis] = {}
        self._roots: list[Dim] = []  # keeps ids unique
        self._interned: dict[tuple[object, ...], ax.Axis] = {}

    def axis(self, dim: Dim) -> ax.Axis:
        """The frozen expression of a dimension."""
        root = dim.root
        if id(root) not in self._known:
            self._roots.append(root)
            self._known[id(root)] = self._freeze(root)
        return self._known[id(root)]

    def _freeze(self, root: Dim) -> ax.Axis:
        form, size = root.form, root.size
        if form.kind in ("free", "kernel"):
            self.groups[len(self.groups)] = size
            return (ax.Channels if form.kind == "free" else ax.Kernel)(size, len(self.groups) - 1)
        parts = tuple(self.axis(part) for part in form.parts)
        if form.kind in ("window", "scaled") and isinstance(parts[0], ax.Fixed):  # frozen after the form was made
            form, parts = Form("fixed"), ()
        key = (form.kind, size, form.attributes, *parts)
        if key not in self._interned:
            of_kind = EXPRESSIONS[form.kind]
            joined = form.kind in ("concat", "product")
            self._interned[key] = of_kind(size, parts) if joined else of_kind(size, *parts, *form.attributes)
        return self._interned[key]
