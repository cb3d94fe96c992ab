"""Networks made SuperNets, and SuperNets that were saved."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

from tailor_ir import storage
from tailor_ir.alternatives import add_alternatives
from tailor_ir.errors import CheckFailed, ImportFailed
from tailor_ir.exits import add_exits
from tailor_ir.graph import NO_BATCH, Graph, Tensors
from tailor_ir.reading.comparison import compare, refuse_mixed_samples
from tailor_ir.reading.files.element_types import Float32Module
from tailor_ir.reading.inputs import GivenExample
from tailor_ir.rewriting.kernel_transforms import transform_kernels
from tailor_ir.spaces.proposal import few_subnets, propose
from tailor_ir.spaces.selectors import SpaceSpec
from tailor_ir.spaces.structure import Structure
from tailor_ir.structure.finding import find_axes_and_regions
from tailor_ir.supernet.checking import Reference
from tailor_ir.supernet.file_networks import Batching
from tailor_ir.supernet.network import SuperNet
from tailor_ir.supernet.reading import PlainFile, read_network

NOTHING_TRAINED = "the network has no weights that could be trained"
NOT_COMPARED = "the original network does not run on drawn inputs: its answers could not be compared"


def compile(
    model: nn.Module | onnx.ModelProto | str | Path,
    example_input: GivenExample | None = None,
    space: SpaceSpec | None = None,
    kernel_transform: bool = False,
) -> SuperNet:
    """Turn a network into a SuperNet.

    model: a module (`example_input`: one sample (1, C, H, W) at full resolution), or the path or the content of an ONNX file
    (an example is needed only where it leaves the input's height or width open). A network with several inputs takes one
    sample of each, in a tuple in order or in a mapping by name; integers (tokens) count as examples of the legal ones.
    space: selectors of variable names -> choices or "auto"; what is not named stays as it is. None proposes a space.
    kernel_transform: smaller kernels are learned transforms of larger ones, which start as their centre (OFA, ICLR 2020).
    ImportFailed: the network cannot be read. SpaceError: the space asks for what this network cannot do.
    """
    network = read_network(model, example_input)

    def read(graph: Graph, tensors: Tensors) -> Structure:
        with network.located():
            return propose(graph, *find_axes_and_regions(graph, tensors), space)

    graph, tensors, refused = add_alternatives(network.graph, network.tensors, space, read)
    graph, tensors, no_exits = add_exits(graph, tensors, space, read)
    if kernel_transform:
        graph, tensors = transform_kernels(graph, tensors, read(graph, tensors))
    net = SuperNet(graph, tensors, space)
    net.refused = (*refused, *no_exits)
    net.remarks = (*network.remarks, *_compared(net, network.origin))
    net.remarks += few_subnets(net.structure, space) if graph.parameters else (NOTHING_TRAINED,)
    for remark in net.remarks:
        logging.getLogger(__name__).warning(remark)
    return net


def _compared(net: SuperNet, origin: Float32Module | PlainFile) -> tuple[str, ...]:
    """Keeps the original's answers; what is to be said of them. ImportFailed: the compiled network answers otherwise."""
    draw = partial(_drawn, net)
    remarks: tuple[str, ...] = ()
    if isinstance(origin, PlainFile):
        net.original = Reference.of_file(origin.model, draw, Batching.of(net.structure), origin.constants)
        where = "file"
    else:
        module, examples = origin.reference
        examples = replace(examples, batch_axes=net.structure.graph.batch_axes)
        where = f"network '{type(module).__name__}'"
        remarks = compare(module, net.elastic, examples)
        net.original = Reference.of_module(module, examples, draw)
    _refuse_other_answers(net, where)
    if isinstance(origin, PlainFile) and all(known.samples == 1 for known in net.original.answers):
        _refuse_mixed_samples(net)
    return remarks if net.original.answers else (*remarks, NOT_COMPARED)


def _drawn(net: SuperNet, rng: np.random.Generator, batch: int) -> Sequence[np.ndarray]:
    return net.sample_inputs(net.max_config, rng, batch)


def _refuse_mixed_samples(net: SuperNet) -> None:
    """ImportFailed for a file of one sample that cannot have more. Samples inside of another axis are not looked at."""
    graph, batching = net.structure.graph, Batching.of(net.structure)
    pairs = zip(graph.outputs, batching.outputs, strict=True)
    batched = {name: axis for name, axis in pairs if axis is not None and axis != NO_BATCH}
    given = net.sample_inputs(net.max_config, np.random.default_rng(0), batch=2)
    refuse_mixed_samples(graph, batched, net.elastic, tuple(map(torch.from_numpy, given)))


def _refuse_other_answers(net: SuperNet, where: str) -> None:
    """ImportFailed: the compiled network answers otherwise than the given one."""
    try:
        net.check_against(where=where)
    except CheckFailed as error:
        found = str(error).partition("; allowed:")[0]
        raise ImportFailed(
            f"{found}; allowed: networks that treat all samples alike, in batches of any size; export it with an open batch, "
            "from a contiguous example"
        ) from error


def load(path: str | Path, *, batch: int = 1) -> SuperNet:
    """Read a SuperNet that `SuperNet.save` wrote. batch: of the SubNets to export, and of their operators."""
    net = SuperNet(*storage.load(Path(path)), batch)
    net.folder = Path(path).resolve()
    return net
