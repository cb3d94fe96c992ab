"""Matrix products: `Linear` (an IR operator with a weight), MatMul and Gemm (other forms), Einsum, look-ups."""

import string
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.dims import Dim, from_begin
from tailor_ir.graph import Node
from tailor_ir.ops.registry import Dims, NodeShapes, Operator, Propagation, computed_by, filled, no_order


def _general_product(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None, *, alpha: float, beta: float, turns: Sequence[bool]
) -> torch.Tensor:
    """alpha · a @ b + beta · c; turns: whether a and b are transposed first."""
    product = torch.matmul(a.T if turns[0] else a, b.T if turns[1] else b)
    product = product if alpha == 1.0 else alpha * product
    return product if c is None else product + beta * c


def _gemm_settings(node: Node) -> dict[str, object]:
    turns = tuple(bool(node.int(f"trans{side}", 0)) for side in "AB")
    return {"alpha": node.float("alpha", 1.0), "beta": node.float("beta", 1.0), "turns": turns}


def _einsum(*operands: torch.Tensor, equation: str) -> torch.Tensor:
    return torch.einsum(equation, *operands)


def _look_up(positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rows of a table (V, D) at positions (*)."""
    return F.embedding(from_begin(positions, len(table)), table)


class EmbeddingTable(nn.Embedding):
    """An embedding whose positions may count from the end."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(from_begin(input, self.num_embeddings))


def _linear_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x, weight = p.of(node.inputs[0]), p.of(node.inputs[1])
    p.put_together(x[-1:], node)
    p.unify(x[-1], weight[1], node)
    if len(node.inputs) > 2:
        p.unify(p.of(node.inputs[2])[0], weight[0], node)
    return ((*x[:-1], weight[0]),)


def _matmul_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    a, b = p.of(node.inputs[0]), p.of(node.inputs[1])
    p.put_together(a[-1:], node)
    p.unify(a[-1], b[-2] if len(b) > 1 else b[-1], node)
    outer = p.broadcast(node, (a[:-2], b[:-2])) if len(a) > 2 or len(b) > 2 else ()
    return ((*outer, *(a[-2:-1] if len(a) > 1 else ()), *(b[-1:] if len(b) > 1 else ())),)


def _gemm_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    a, b = p.of(node.inputs[0]), p.of(node.inputs[1])
    rows, inner = a[::-1] if node.int("transA", 0) else a
    columns, other = b if node.int("transB", 0) else b[::-1]
    p.put_together((inner,), node)
    p.unify(inner, other, node)
    result = (rows, columns)
    if len(node.inputs) > 2 and node.inputs[2]:
        for own, dim in zip(reversed(p.of(node.inputs[2])), reversed(result), strict=False):
            if own.size > 1:
                p.unify(own, dim, node)
    return (result,)


def _terms(node: Node, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Letters of each operand and of the result; an ellipsis is expanded to letters that the equation does not use."""
    equation = str(node.attribute("equation", "")).replace(" ", "")
    left, arrow, right = equation.partition("->")
    operands = left.split(",")
    unused = [c for c in string.ascii_letters if c not in equation]
    hidden = 0
    for index, (letters, rank) in enumerate(zip(operands, ranks, strict=True)):
        if "..." in letters:
            count = rank - (len(letters) - 3)
            hidden = max(hidden, count)
            operands[index] = letters.replace("...", "".join(reversed(unused[:count])))
    if not arrow:  # the axes of the ellipsis, then letters that occur once, in alphabetical order
        right = "..." + "".join(c for c in sorted(set(left) - set(",.")) if left.count(c) == 1)
    return operands, right.replace("...", "".join(reversed(unused[:hidden])))


def _einsum_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    dims = [p.of(name) for name in node.inputs]
    operands, result = _terms(node, [len(d) for d in dims])
    axes: dict[str, Dim] = {}
    for letters, own in zip(operands, dims, strict=True):
        for letter, dim in zip(letters, own, strict=True):
            known = axes.get(letter)
            if known is None or known.size == 1:
                axes[letter] = dim
            elif dim.size > 1:
                axes[letter] = p.unify(known, dim, node)
    p.put_together([dim for letter, dim in axes.items() if letter not in result], node)
    return (tuple(axes[letter] for letter in result),)


def _embedding_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    positions, table = p.of(node.inputs[0]), p.of(node.inputs[1])
    p.freeze(table[:1], node, "rows that any input may ask for")
    return ((*positions, table[1]),)


def _rows(node: Node, p: Propagation) -> Dims:
    """Rows of the table, because they are read by number."""
    return p.of(node.inputs[1])[:1]


def _embedding_layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    return EmbeddingTable.from_pretrained(parameters[0], freeze=False)


def _linear_layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    weight = parameters[0]
    return filled(nn.Linear(weight.shape[1], weight.shape[0], bias=len(parameters) > 1), parameters)


LINEAR, EINSUM = (
    computed_by(F.linear),
    computed_by(_einsum, lambda node: {"equation": str(node.attribute("equation", ""))}),
)
LOOK_UP, GEMM = computed_by(_look_up), computed_by(_general_product, _gemm_settings)
OPERATORS = (
    Operator(names=("Linear",), axes=_linear_axes, order=no_order, lower=LINEAR, layer=_linear_layer),
    Operator(names=("MatMul",), axes=_matmul_axes, order=no_order, lower=computed_by(torch.matmul)),
    Operator(names=("Gemm",), axes=_gemm_axes, order=no_order, lower=GEMM),
    Operator(names=("Einsum",), axes=_einsum_axes, order=no_order, lower=EINSUM),
    Operator(names=("Embedding",), axes=_embedding_axes, order=_rows, lower=LOOK_UP, layer=_embedding_layer),
)
