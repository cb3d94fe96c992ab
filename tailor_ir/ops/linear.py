"""Matrix products: `Linear` (an IR operator with a weight), MatMul and Gemm (other forms), Einsum, look-ups."""

import string
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.dims import Dim, from_begin
from tailor_ir.graph import Node, Tensors
from tailor_ir.ops.registry import Dims, NodeShapes, Operator, Propagation, no_order


class LinearMap(nn.Module):
    """x (*, I) times transposed weight (O, I), plus bias (O); both are given with each call."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return F.linear(x, weight, bias)


class MatrixProduct(nn.Module):
    """torch.matmul as a module."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, b)


class GeneralMatrixProduct(nn.Module):
    """alpha · a @ b + beta · c, with a and b optionally transposed."""

    def __init__(self, alpha: float, beta: float, transpose_a: bool, transpose_b: bool) -> None:
        super().__init__()
        self.alpha, self.beta, self.transpose_a, self.transpose_b = alpha, beta, transpose_a, transpose_b

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> torch.Tensor:
        product = torch.matmul(a.T if self.transpose_a else a, b.T if self.transpose_b else b)
        product = product if self.alpha == 1.0 else self.alpha * product
        return product if c is None else product + self.beta * c


class LookUp(nn.Module):
    """Rows of a table (V, D), given with each call, at positions (*)."""

    def forward(self, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return F.embedding(from_begin(positions, len(table)), table)


class EmbeddingTable(nn.Embedding):
    """An embedding whose positions may count from the end."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(from_begin(input, self.num_embeddings))


class EinsteinSum(nn.Module):
    """torch.einsum as a module."""

    def __init__(self, equation: str) -> None:
        super().__init__()
        self.equation = equation

    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        return torch.einsum(self.equation, *operands)


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


def _lower_embedding(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return LookUp()


def _embedding_layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    return EmbeddingTable.from_pretrained(parameters[0], freeze=False)


def _lower_gemm(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    transposed = (bool(node.int(f"trans{side}", 0)) for side in "AB")
    return GeneralMatrixProduct(node.float("alpha", 1.0), node.float("beta", 1.0), *transposed)


def _lower_einsum(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return EinsteinSum(str(node.attribute("equation", "")))


def _linear_layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    weight = parameters[0]
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=len(parameters) > 1)
    layer.weight.data.copy_(weight)
    if layer.bias is not None:
        layer.bias.data.copy_(parameters[1])
    return layer


def _lower_linear(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return LinearMap()


def _lower_matmul(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return MatrixProduct()


OPERATORS = (
    Operator(names=("Linear",), axes=_linear_axes, order=no_order, lower=_lower_linear, layer=_linear_layer),
    Operator(names=("MatMul",), axes=_matmul_axes, order=no_order, lower=_lower_matmul),
    Operator(names=("Gemm",), axes=_gemm_axes, order=no_order, lower=_lower_gemm),
    Operator(names=("Einsum",), axes=_einsum_axes, order=no_order, lower=_lower_einsum),
    Operator(names=("Embedding",), axes=_embedding_axes, order=_rows, lower=_lower_embedding, layer=_embedding_layer),
)
