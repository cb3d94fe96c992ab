"""A kind of variables for tests alone: `detour` replaces two blocks of a stage by one convolution that reads before them.

No user's space has it. It shows that a value may have producers that reach back over several blocks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import nn

import tailor_ir
from tailor_ir.graph import Alternative, Graph, Node, Tensors
from tailor_ir.spaces.draft import Draft, NamedBlock
from tailor_ir.spaces.kinds import KINDS, Kind
from tailor_ir.spaces.selectors import SpaceSpec
from tailor_ir.structure.regions import Block

DETOUR, ORIGINAL = 1, 2  # choices: how many operators or blocks compute the value


def _propose(draft: Draft, named: NamedBlock) -> None:
    name = f"{named.prefix}.detour"
    for alternative in draft.alternatives:
        if alternative.kind == "detour" and alternative.value == named.block.exit:
            if draft.selectors.choices(name) is None:
                continue
            variable = draft.add(name, "detour", "block", (DETOUR, ORIGINAL))
            producers = (alternative.producer, alternative.value)
            draft.select(alternative.value, producers, (variable,), np.arange(len(producers)))


DETOURS = Kind(name="detour", scope="block", phase=None, of_block=_propose)


@contextmanager
def detours_known() -> Iterator[None]:
    """`detour` is among the kinds."""
    KINDS[DETOURS.name] = DETOURS
    try:
        yield
    finally:
        del KINDS[DETOURS.name]


def _inserted(graph: Graph, tensors: Tensors, first: Block, second: Block) -> tuple[Graph, Tensors]:
    """The network with a convolution from the entry of a block to the exit of the next."""
    inputs, outputs = (graph.shapes[name] for name in (first.entry, second.exit))
    stride = inputs[2] // outputs[2]
    weight, value = f"{second.exit}.detour.weight", f"{second.exit}/detour"
    node = Node(
        name=value,
        op="Conv",
        inputs=(first.entry, weight),
        outputs=(value,),
        attributes=(("kernel_shape", (3, 3)), ("pads", (1, 1, 1, 1)), ("strides", (stride, stride))),
    )
    generator = torch.Generator().manual_seed(len(graph.nodes))
    shape = (outputs[1], inputs[1], 3, 3)
    at = next(i for i, each in enumerate(graph.nodes) if second.exit in each.outputs)
    graph = replace(
        graph,
        nodes=(*graph.nodes[:at], node, *graph.nodes[at:]),
        shapes={**graph.shapes, weight: shape, value: outputs},
        parameters=(*graph.parameters, weight),
        alternatives=(*graph.alternatives, Alternative(kind="detour", value=second.exit, producer=value)),
    )
    return graph, {**tensors, weight: 0.1 * torch.randn(shape, generator=generator)}


def with_detours(model: nn.Module, sample: torch.Tensor, spec: SpaceSpec | None = None) -> tailor_ir.SuperNet:
    """The SuperNet of a network in which every pair of neighbouring blocks of a stage has a detour."""
    plain = tailor_ir.compile(model, sample)
    graph, tensors = plain.structure.graph, {n: t.clone() for n, t in plain.elastic.tensors().items()}
    for stage in plain.structure.regions.stages:
        for first, second in zip(stage.blocks, stage.blocks[1:], strict=False):
            graph, tensors = _inserted(graph, tensors, first, second)
    with detours_known():
        return tailor_ir.SuperNet(graph, tensors, spec)
