"""The content of the page, as plain data. Every number is of the largest or the smallest SubNet, batch 1."""

from dataclasses import dataclass

from tailor_ir.summary import VariableInfo

Shape = tuple[int, ...]
PLAIN = "Plain"  # the kind of blocks that no template names
MOST_OPERATORS = 3  # in the title of such a block


@dataclass(frozen=True, slots=True)
class Amounts:
    """A count in the largest and in the smallest SubNet."""

    largest: int
    smallest: int


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shape of one value for one sample, the batch left out, in the largest and in the smallest SubNet."""

    largest: Shape
    smallest: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorView:
    """One node in the largest SubNet. inputs: computed values; weights: stored tensors; axes: labels, without H and W."""

    name: str
    op: str
    inputs: tuple[Shape, ...]
    weights: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    axes: tuple[str, ...]
    parameters: int
    macs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockView:
    """One block. number: from 1, over the whole network. name: "" outside stages.

    skippable: entry and exit have the same axes, so it could be skipped. skipped_by: the choices that skip it, per variable.
    variables: those of this block. touched_by: all variables that resize it or skip it.
    """

    number: int
    name: str
    kind: str
    residual: bool
    skippable: bool
    skipped_by: tuple[str, ...]
    exit: Shapes
    parameters: Amounts
    macs: Amounts
    variables: tuple[VariableInfo, ...]
    touched_by: tuple[str, ...]
    operators: tuple[OperatorView, ...]

    @property
    def title(self) -> str:
        """The kind, if a template names it; else the operators."""
        if self.kind != PLAIN:
            return self.kind
        names = list(dict.fromkeys(operator.op for operator in self.operators))
        return ", ".join(names[:MOST_OPERATORS]) + (" …" if len(names) > MOST_OPERATORS else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionView:
    """Consecutive blocks: a stage, or (`stage` False) the blocks before, between and after stages."""

    name: str
    stage: bool
    variables: tuple[VariableInfo, ...]
    blocks: tuple[BlockView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisView:
    """A channel group (or another axis of its own): its size, its nodes, and the variables that cut it."""

    label: str
    sizes: Amounts
    nodes: int
    first_node: str
    last_node: str
    variables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenView:
    """A part that every SubNet has at full size, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SupernetView:
    """A whole SuperNet. `variables` are all of them; those in no block and no section are `elsewhere`, at the input."""

    title: str
    nodes: int
    inputs: tuple[Shapes, ...]
    parameters: Amounts
    macs: Amounts
    modifications: int
    codes: int
    distinct: int
    variables: tuple[VariableInfo, ...]
    elsewhere: tuple[VariableInfo, ...]
    sections: tuple[SectionView, ...]
    axes: tuple[AxisView, ...]
    frozen: tuple[FrozenView, ...]
    dropped: tuple[str, ...]

    @property
    def blocks(self) -> tuple[BlockView, ...]:
        """All blocks in order."""
        return tuple(block for section in self.sections for block in section.blocks)
