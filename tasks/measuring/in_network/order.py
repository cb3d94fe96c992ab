"""Matching of layers without the SubNet's names to operators, by the order in which both run.

Convolutions and matrix products are separate layers in any runtime, so they mark the position of layers in the SubNet.
"""

from collections.abc import Sequence
from itertools import pairwise

from profiling_agents.messages import LayerTiming
from tailor_ir import PlacedOperators

PRODUCTS = frozenset(("Conv", "ConvTranspose", "Linear", "MatMul"))
XNNPACK_LAYERS = ("Convolution", "Deconvolution", "Fully Connected", "Batch Matrix Multiply")
OWN_LAYERS = ("native_call_addmm.", "native_call_bmm.", "native_call_convolution.", "native_call_mm.")
PRODUCT_LAYERS = XNNPACK_LAYERS + OWN_LAYERS
"""Prefixes of the names of XNNPACK's layers and of ExecuTorch's own layers."""


class ForeignLayersError(Exception):
    """Layers that cannot be matched with the operators of their SubNet."""


def by_order(layers: Sequence[LayerTiming], placed: PlacedOperators) -> list[int]:
    """The number of the operator of each layer. ForeignLayersError if products and their layers differ in number.

    If there are as many layers as operators between two products, they match in order. Otherwise all layers belong to the first
    of these operators; without operators, to the product before them, or to the first product.
    """
    products = [
        number for number, one in enumerate(placed.operators) for step in one.feature.steps if step.op in PRODUCTS
    ]
    at = [position for position, layer in enumerate(layers) if layer.kind.startswith(PRODUCT_LAYERS)]
    if len(products) != len(at):
        raise ForeignLayersError(
            f"{len(products)} convolutions and matrix products ran as {len(at)} layers, which are in no order that is known"
        )
    owners: list[int] = []
    ends = zip(pairwise([-1, *at, len(layers)]), pairwise([-1, *products, len(placed.operators)]), strict=True)
    for (layer, next_layer), (product, next_product) in ends:
        inner, between = next_layer - layer - 1, range(product + 1, next_product)
        owners += [product] * (layer >= 0)
        if inner == len(between):
            owners += between
        elif between:
            owners += [between[0]] * inner
        else:
            owners += [product if product >= 0 else next_product] * inner
    return owners
