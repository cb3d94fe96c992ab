"""The rules of the conversion, in the order in which they are tried: fusion and duplicates first, then constants."""

from tailor_ir.conversion.draft import EXACT, ROUNDING, ConversionRule, at_each
from tailor_ir.conversion.rules.activations import hard_sigmoid, layer_norm, product, relu_clip
from tailor_ir.conversion.rules.affine import (
    AFFINE,
    PAIRS,
    fold_after,
    fold_before,
    fold_gelu_half,
    merge_affine,
    merge_scales,
)
from tailor_ir.conversion.rules.constants import (
    fold_constants,
    merge_equal_constants,
    merge_equal_nodes,
    remove_unread,
    store_constants,
    store_shapes,
)
from tailor_ir.conversion.rules.linear_maps import absorb_transposes, add_bias
from tailor_ir.conversion.rules.no_ops import REMOVALS, RESHAPES
from tailor_ir.conversion.rules.padding import fold_padding, trim_kernel
from tailor_ir.conversion.rules.reshapes import (
    POOLS,
    REDUCTIONS,
    fuse_kept_axes,
    merge_concats,
    merge_reshapes,
    merge_slices,
    merge_transposes,
    reshape_before_transpose,
    split_slices,
    store_target,
    transpose_as_reshape,
)

HALVES = ConversionRule(
    name="halves of Gelu",
    stage="fusion",
    matches="½ · (x · (1 + erf(x / √2))) → Conv, ConvTranspose, Gemm, MatMul alone",
    writes="the last operator with other weights; runtimes do not see a Gelu in the rest any more",
    tolerance=ROUNDING,
    apply=at_each({"Mul": fold_gelu_half}),
)
"""One node fewer for each Gelu, and slower where the runtime would have run it as one operator."""

UNREACHED_KERNELS = ConversionRule(
    name="unreached kernels",
    stage="constants",
    matches="Conv over a map that is so small that outer positions of its kernel read padding alone, in every window",
    writes="Conv with a smaller kernel and less padding",
    tolerance=ROUNDING,
    apply=at_each({"Conv": trim_kernel}),
)
"""Weights that no input reaches: eight of nine of a 3×3 convolution over a single position."""

RULES: tuple[ConversionRule, ...] = (
    ConversionRule(
        name="constant nodes",
        stage="fusion",
        matches="Constant",
        writes="a stored tensor",
        tolerance=EXACT,
        apply=store_constants,
    ),
    ConversionRule(
        name="no-ops",
        stage="fusion",
        matches="Identity, Dropout, and Cast, Reshape, Transpose, Pad, Slice, Expand, Tile, Resize, pools, Clip, Concat, … "
        "that change nothing; + 0, · 1; Relu of what is never negative",
        writes="nothing",
        tolerance=EXACT,
        apply=at_each(REMOVALS),
    ),
    ConversionRule(
        name="equal nodes",
        stage="fusion",
        matches="nodes of equal operator, operands and attributes",
        writes="the first of them",
        tolerance=EXACT,
        apply=merge_equal_nodes,
    ),
    ConversionRule(
        name="equal constants",
        stage="fusion",
        matches="stored tensors of equal type, shape and values",
        writes="the first of them",
        tolerance=EXACT,
        apply=merge_equal_constants,
    ),
    ConversionRule(
        name="transposes in a row",
        stage="fusion",
        matches="Transpose → Transpose",
        writes="one Transpose",
        tolerance=EXACT,
        apply=at_each({"Transpose": merge_transposes}),
    ),
    ConversionRule(
        name="transposes of single elements",
        stage="fusion",
        matches="a Transpose that moves axes of size 1 alone, next to a Reshape",
        writes="Reshape",
        tolerance=EXACT,
        apply=at_each({"Transpose": transpose_as_reshape}),
    ),
    ConversionRule(
        name="reshapes in a row",
        stage="fusion",
        matches="two of Reshape, Flatten, Squeeze, Unsqueeze in a row; at most one size of the result unknown",
        writes="one Reshape",
        tolerance=EXACT,
        apply=at_each(dict.fromkeys(RESHAPES, merge_reshapes)),
    ),
    ConversionRule(
        name="reshapes behind transposes",
        stage="fusion",
        matches="Reshape → Transpose → a reshape that adds or drops axes of size 1",
        writes="Reshape → Transpose",
        tolerance=EXACT,
        apply=at_each(dict.fromkeys(RESHAPES, reshape_before_transpose)),
    ),
    ConversionRule(
        name="slices in a row",
        stage="fusion",
        matches="Slice → Slice of other axes",
        writes="one Slice",
        tolerance=EXACT,
        apply=at_each({"Slice": merge_slices}),
    ),
    ConversionRule(
        name="slices to split",
        stage="fusion",
        matches="Slices that take a value apart along one axis",
        writes="Split",
        tolerance=EXACT,
        apply=at_each({"Slice": split_slices}),
    ),
    ConversionRule(
        name="concatenations in a row",
        stage="fusion",
        matches="Concat → Concat along the same axis",
        writes="one Concat",
        tolerance=EXACT,
        apply=at_each({"Concat": merge_concats}),
    ),
    ConversionRule(
        name="kept axes",
        stage="fusion",
        matches="a reduction or global pool → a reshape that drops the reduced axes or puts them back",
        writes="one reduction",
        tolerance=ROUNDING,
        apply=at_each(dict.fromkeys((*REDUCTIONS, *POOLS), fuse_kept_axes)),
    ),
    ConversionRule(
        name="padding",
        stage="fusion",
        matches="Pad → Conv, AveragePool or MaxPool that would pad with the same",
        writes="Conv, AveragePool or MaxPool with larger pads",
        tolerance=ROUNDING,
        apply=at_each(dict.fromkeys(("Conv", "AveragePool", "MaxPool"), fold_padding)),
    ),
    ConversionRule(
        name="norms",
        stage="fusion",
        matches="(x - mean) / √(variance + ε) of the last axis, opset 17 or later",
        writes="LayerNormalization",
        tolerance=ROUNDING,
        apply=at_each({"Div": layer_norm}),
    ),
    ConversionRule(
        name="hard sigmoids",
        stage="fusion",
        matches="clip(x + 3, 0, 6) / 6",
        writes="HardSigmoid",
        tolerance=ROUNDING,
        apply=at_each(dict.fromkeys(("Mul", "Div"), hard_sigmoid)),
    ),
    ConversionRule(
        name="gates",
        stage="fusion",
        matches="x · f(x), where the file's opset has it as one operator: HardSwish (14), Mish (18), Gelu (20), Swish (24)",
        writes="that operator",
        tolerance=ROUNDING,
        apply=at_each({"Mul": product}),
    ),
    ConversionRule(
        name="scales and shifts after",
        stage="fusion",
        matches="Conv, ConvTranspose, Gemm, MatMul or a norm → BatchNormalization, or Add, Sub, Mul, Div with a constant",
        writes="the first operator with other weights",
        tolerance=ROUNDING,
        apply=at_each(dict.fromkeys(AFFINE, fold_after)),
    ),
    ConversionRule(
        name="scales and shifts before",
        stage="fusion",
        matches="BatchNormalization, or Add, Sub, Mul, Div with a constant → Conv, ConvTranspose, Gemm, MatMul alone",
        writes="the last operator with other weights",
        tolerance=ROUNDING,
        apply=at_each(dict.fromkeys(AFFINE, fold_before)),
    ),
    ConversionRule(
        name="constants in a row",
        stage="fusion",
        matches="two sums, or two products, with constants",
        writes="one Add or Mul",
        tolerance=ROUNDING,
        apply=at_each(dict.fromkeys(PAIRS, merge_affine)),
    ),
    ConversionRule(
        name="scales of operands",
        stage="fusion",
        matches="MatMul of an operand that is multiplied by a number, beside another such operand or one of stored weights",
        writes="the other operand with another number or other weights",
        tolerance=ROUNDING,
        apply=at_each({"MatMul": merge_scales}),
    ),
    ConversionRule(
        name="biases",
        stage="fusion",
        matches="MatMul of two matrices, or Gemm, → Add",
        writes="Gemm",
        tolerance=ROUNDING,
        apply=at_each(dict.fromkeys(("MatMul", "Gemm"), add_bias)),
    ),
    ConversionRule(
        name="transposed operands",
        stage="fusion",
        matches="Transpose → MatMul of two matrices, or Gemm",
        writes="Gemm with transA or transB",
        tolerance=ROUNDING,
        apply=at_each(dict.fromkeys(("MatMul", "Gemm"), absorb_transposes)),
    ),
    ConversionRule(
        name="clips",
        stage="fusion",
        matches="Relu → Clip from 0 or more on",
        writes="Clip",
        tolerance=EXACT,
        apply=at_each({"Clip": relu_clip}),
    ),
    ConversionRule(
        name="unread fused nodes",
        stage="fusion",
        matches="nodes that fusions have left behind",
        writes="nothing",
        tolerance=EXACT,
        apply=remove_unread,
    ),
    ConversionRule(
        name="known sizes",
        stage="constants",
        matches="Shape, Size, and Gather or Slice of a Shape, of sizes that are known",
        writes="a stored tensor",
        tolerance=EXACT,
        apply=store_shapes,
    ),
    ConversionRule(
        name="computed targets",
        stage="constants",
        matches="Reshape to a computed shape of which at most one size is unknown",
        writes="Reshape to a stored shape",
        tolerance=EXACT,
        apply=at_each({"Reshape": store_target}),
    ),
    ConversionRule(
        name="constants",
        stage="constants",
        matches="nodes that no input of the model reaches",
        writes="a stored tensor",
        tolerance=ROUNDING,  # a runtime may sum up in another order where it has packed weights ahead
        apply=fold_constants,
    ),
    UNREACHED_KERNELS,
    ConversionRule(
        name="unread nodes",
        stage="constants",
        matches="nodes that reach no output of the model",
        writes="nothing",
        tolerance=EXACT,
        apply=remove_unread,
    ),
)

FEWEST_NODES: tuple[ConversionRule, ...] = (*RULES, HALVES)
"""All rules, also those that leave fewer nodes which run slower."""
