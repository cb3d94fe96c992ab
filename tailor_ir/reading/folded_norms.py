"""BatchNorms that an exporter folded into the layers before them: they can be neither trained nor recalibrated."""

import re

import onnx

MADE_BY_EXPORTER = re.compile(r"onnx::\w+_\d+")  # torch's own names are those of its modules
NORMALISATIONS = {
    *("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "LpNormalization"),
    *("MeanVarianceNormalization", "Sqrt"),  # of earlier opsets, in several operators
}
FEW = 2  # a network with fewer convolutions is no convolutional network
ADVICE = (
    "statistics of its SubNets cannot be recalibrated, and they lose accuracy; export with "
    "training=torch.onnx.TrainingMode.PRESERVE and do_constant_folding=False"
)


def folded_norms(model: onnx.ModelProto) -> tuple[str, ...]:
    """A line for a file in which BatchNorms were folded, or seem to have been; none for others."""
    convolutions = [node for node in model.graph.node if node.op_type in ("Conv", "ConvTranspose")]
    biased = [node for node in convolutions if len(node.input) > 2 and node.input[2]]
    folded = [node for node in biased if all(MADE_BY_EXPORTER.fullmatch(name) for name in node.input[1:])]
    if folded:
        return (f"BatchNorm was folded into {len(folded)} of {len(convolutions)} convolutions: {ADVICE}",)
    if len(biased) >= FEW and not any(node.op_type in NORMALISATIONS for node in model.graph.node):
        return (f"no BatchNorm, and {len(biased)} convolutions with biases: if it was folded into them, {ADVICE}",)
    return ()
