"""Products of matrices with what is added to them, and with transposes before them: Gemm has room for both."""

from tailor_ir.conversion.draft import OnnxDraft
from tailor_ir.conversion.nodes import OnnxNode
from tailor_ir.conversion.rules.linear_maps import GEMM_WITHOUT_BIAS

FLOAT_TYPES = (1, 10, 11)  # fp32, fp16, fp64 by ONNX's numbers


def add_bias(draft: OnnxDraft, node: OnnxNode) -> bool:
    """A product of two matrices and the sum behind it are one Gemm. `node`: MatMul, or Gemm without a bias."""
    result = node.outputs[0]
    after = draft.only_reader(result, "Add")
    if after is None or node.input(2) or not _two_matrices(draft, node):
        return False
    names = [name for name in after.inputs if name != result]
    if len(names) != 1 or not _spreads(draft, names[0], result):
        return False
    if not draft.bypass(after, result):
        return False
    if node.op == "MatMul":
        node.become("Gemm", {})
    node.drop("beta")
    draft.read(node, *node.inputs[:2], names[0])
    return True


def _two_matrices(draft: OnnxDraft, node: OnnxNode) -> bool:
    ranks = {draft.rank(name) for name in node.inputs[:2]}
    return ranks == {2} and draft.element_type(node.inputs[0]) in FLOAT_TYPES


def _spreads(draft: OnnxDraft, name: str, result: str) -> bool:
    """Whether a value is spread over a matrix without making it larger."""
    shape, matrix = draft.shape(name), draft.shape(result)
    if shape is None or matrix is None or len(shape) > 2:
        return False
    return all(
        size == 1 or (size is not None and size == given)
        for size, given in zip(shape[::-1], matrix[::-1], strict=False)
    )


def absorb_transposes(draft: OnnxDraft, node: OnnxNode) -> bool:
    """A product of matrices reads its operands transposed; their transposes are not needed any more."""
    if not _two_matrices(draft, node) or draft.opset < GEMM_WITHOUT_BIAS:
        return False
    for position, flag in enumerate(("transA", "transB")):
        name = node.inputs[position]
        transpose = draft.producer(name, "Transpose")
        if transpose is None or not draft.read_once(name) or node.inputs.count(name) > 1:
            continue
        if node.op == "MatMul":
            node.become("Gemm", {})
        node.set({flag: 1 - node.integer(flag, 0)})
        inputs = list(node.inputs)
        inputs[position] = transpose.inputs[0]
        draft.read(node, *inputs)
        return True
    return False
