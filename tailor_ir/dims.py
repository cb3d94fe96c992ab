"""Dimensions while a network is being read: union-find over axes, with a reason for everything that got frozen."""

from dataclasses import dataclass, field
from math import prod

from tailor_ir import axes as ax


@dataclass(slots=True, eq=False)
class Dim:
    """One dimension. `form` None is a free channel group; a tuple is ("concat" | "product", parts)."""

    size: int
    form: "Form | None" = None
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


@dataclass(frozen=True, slots=True)
class Form:
    """How a dimension follows from others. kinds: fixed, batch, spatial, window, concat, product."""

    kind: str
    parts: tuple[Dim, ...] = ()
    attributes: tuple[int, ...] = ()


@dataclass(slots=True)
class DimPool:
    """All dimensions of one network, and what was found about them on the way."""

    equal_sizes: list[tuple[Dim, Dim]] = field(default_factory=list)
    resolution_frozen: str = ""

    def free(self, size: int) -> Dim:
        """A channel group of its own; a size of one is nothing to cut."""
        return self.fixed(1) if size == 1 else Dim(size)

    def fixed(self, size: int, reason: str = "") -> Dim:
        return Dim(size, Form("fixed"), reason=reason)

    def batch(self, size: int) -> Dim:
        return Dim(size, Form("batch"))

    def spatial(self, index: int, size: int) -> Dim:
        return Dim(size, Form("spatial", attributes=(index,)))

    def window(self, source: Dim, stride: int, offset: int, ceil: bool = False) -> Dim:
        """A window that keeps every position is the source itself, so that residual branches keep the same axis."""
        if stride == 1 and offset == 0:
            return source
        size = ax.window_size(source.size, stride, offset, ceil)
        if source.root.form is not None and source.root.form.kind == "fixed":
            return self.fixed(size)
        return Dim(size, Form("window", (source,), (stride, offset, int(ceil))))

    def concat(self, parts: tuple[Dim, ...]) -> Dim:
        return parts[0] if len(parts) == 1 else Dim(sum(p.size for p in parts), Form("concat", parts))

    def product(self, factors: tuple[Dim, ...]) -> Dim:
        real = tuple(f for f in factors if not self._is_one(f)) or factors[:1]
        return real[0] if len(real) == 1 else Dim(prod(f.size for f in real), Form("product", real))

    def _is_one(self, dim: Dim) -> bool:
        form = dim.root.form
        return dim.size == 1 and form is not None and form.kind == "fixed"

    def unify(self, a: Dim, b: Dim, reason: str) -> Dim:
        """Make two dimensions one. Where their structures do not fit, both are frozen at full size, with `reason`."""
        a, b = a.root, b.root
        if a is b:
            return a
        assert a.size == b.size, (a.size, b.size, reason)
        if a.form is None or b.form is None:
            child, parent = (a, b) if a.form is None else (b, a)
            if parent.form is not None and self._contains(parent, child):
                self.freeze(parent, reason)
            child.parent = parent
            parent.reason = parent.reason or child.reason
            return parent
        if a.form.kind == b.form.kind and self._same_structure(a.form, b.form):
            for left, right in zip(a.form.parts, b.form.parts, strict=True):
                self.unify(left, right, reason)
            b.parent = a
            return a
        if self._depends_on_input(a) and self._depends_on_input(b):
            self.equal_sizes.append((a, b))
            return a
        self.freeze(a, reason)
        self.freeze(b, reason)
        return a

    def _same_structure(self, a: Form, b: Form) -> bool:
        sizes = [p.size for p in a.parts], [p.size for p in b.parts]
        return a.attributes == b.attributes and sizes[0] == sizes[1]

    def _contains(self, dim: Dim, wanted: Dim) -> bool:
        form = dim.root.form
        return dim.root is wanted or (form is not None and any(self._contains(p, wanted) for p in form.parts))

    def _depends_on_input(self, dim: Dim) -> bool:
        form = dim.root.form
        if form is None:
            return False
        return form.kind in ("spatial", "batch") or any(self._depends_on_input(p) for p in form.parts)

    def freeze(self, dim: Dim, reason: str) -> None:
        """Keep a dimension at its full size in every SubNet."""
        dim = dim.root
        if dim.form is None:
            dim.form = Form("fixed")
            dim.reason = reason
        elif dim.form.kind == "spatial":
            self.resolution_frozen = self.resolution_frozen or reason
        for part in dim.form.parts:
            self.freeze(part, reason)


class AxisTable:
    """Freezes dims into axes. Equal expressions are one object; every free root is one channel group."""

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
        if form is None:
            group = len(self.groups)
            self.groups[group] = size
            return ax.Channels(size, group)
        parts = tuple(self.axis(part) for part in form.parts)
        key = (form.kind, size, form.attributes, *parts)
        if key not in self._interned:
            self._interned[key] = _expression(form, size, parts)
        return self._interned[key]


def _expression(form: Form, size: int, parts: tuple[ax.Axis, ...]) -> ax.Axis:
    match form.kind:
        case "fixed":
            return ax.Fixed(size)
        case "batch":
            return ax.Batch(size)
        case "spatial":
            return ax.Spatial(size, form.attributes[0])
        case "window":
            stride, offset, ceil = form.attributes
            return ax.Window(size, parts[0], stride, offset, bool(ceil))
        case "concat":
            return ax.Concat(size, parts)
        case _:
            return ax.Product(size, parts)
