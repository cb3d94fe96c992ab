"""Detect BatchNorms that an exporter folded into preceding layers: they can be neither trained nor recalibrated."""

import re

import onnx

MADE_BY_EXPORTER = re.compile(r"onnx::\w+_\d+")  # else torch names tensors after their modules
NORMALISATIONS = {
    *("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "LpNormalization"),
    *("MeanVarianceNormalization", "Sqrt"),  # norms of earlier opsets consist of several operators
}
FEW = 2  # with fewer convolutions the network is not convolutional
ADVICE = (
    "statistics of its SubNets cannot be recalibrated, and they lose accuracy; export with torch.onnx.export(…, dynamo=False, "
    "training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False)"
)


def _shifted(graph: onnx.GraphProto) -> frozenset[str]:
    """Values that are shifted or scaled by a stored number per channel, in an operator separate from the layer."""
    made = {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant" and node.attribute}
    stored = {tensor.name: tensor for tensor in graph.initializer} | made
    return frozenset(
        value
        for node in graph.node
        if node.op_type in ("Add", "Div", "Mul", "Sub")
        for value, shift in (node.input, node.input[::-1])
        if shift in stored and sum(size > 1 for size in stored[shift].dims) == 1 and len(stored[shift].dims) > 1
    )


def folded_norms(model: onnx.ModelProto) -> tuple[str, ...]:
    """A remark for a file in which BatchNorms were folded, or seem to have been; () for other files."""
    convolutions = [node for node in model.graph.node if node.op_type in ("Conv", "ConvTranspose")]
    shifted = _shifted(model.graph)
    biased = [node for node in convolutions if (len(node.input) > 2 and node.input[2]) or node.output[0] in shifted]
    folded = [
        node
        for node in biased
        if len(node.input) > 2 and all(MADE_BY_EXPORTER.fullmatch(name) for name in node.input[1:])
    ]
    if folded:
        return (f"BatchNorm was folded into {len(folded)} of {len(convolutions)} convolutions: {ADVICE}",)
    if len(biased) >= FEW and not any(node.op_type in NORMALISATIONS for node in model.graph.node):
        return (f"no BatchNorm, and {len(biased)} convolutions with biases: if it was folded into them, {ADVICE}",)
    return ()
