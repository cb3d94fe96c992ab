"""Networks made SuperNets, and SuperNets that were saved."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from torch import nn

from tailor_ir import storage
from tailor_ir.alternatives import add_alternatives
from tailor_ir.exits import add_exits
from tailor_ir.graph import Graph, Tensors
from tailor_ir.ops import OPERATORS
from tailor_ir.reading.comparison import compare
from tailor_ir.reading.folded_norms import folded_norms
from tailor_ir.reading.importer import import_onnx
from tailor_ir.reading.inputs import GivenExample, examples_of_file, examples_of_module
from tailor_ir.reading.places import located
from tailor_ir.reading.trace import load_onnx, trace_module
from tailor_ir.rewriting.kernel_transforms import transform_kernels
from tailor_ir.rewriting.passes import simplify
from tailor_ir.rewriting.samples import repeat_for_samples
from tailor_ir.spaces.proposal import propose
from tailor_ir.spaces.selectors import SpaceSpec
from tailor_ir.spaces.structure import Structure
from tailor_ir.structure.finding import find_axes_and_regions
from tailor_ir.supernet.network import SuperNet


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
    if isinstance(model, nn.Module):
        examples = examples_of_module(model, example_input)
        proto, state = trace_module(model, examples)
        shapes: Mapping[str, Sequence[int]] = {}
    else:
        proto, state = model if isinstance(model, onnx.ModelProto) else load_onnx(Path(model)), None
        shapes = examples_of_file(proto, example_input)
    modules = [name for name, _ in model.named_modules()] if isinstance(model, nn.Module) else []
    with located(proto, modules):
        graph, tensors = import_onnx(proto, state, shapes, OPERATORS)
        graph, tensors = repeat_for_samples(*simplify(graph, tensors))

    def read(graph: Graph, tensors: Tensors) -> Structure:
        with located(proto, modules):
            return propose(graph, *find_axes_and_regions(graph, tensors), space)

    graph, tensors, refused = add_alternatives(graph, tensors, space, read)
    graph, tensors, no_exits = add_exits(graph, tensors, space, read)
    if kernel_transform:
        graph, tensors = transform_kernels(graph, tensors, read(graph, tensors))
    net = SuperNet(graph, tensors, space)
    net.refused = (*refused, *no_exits)
    if isinstance(model, nn.Module):
        net.remarks = compare(model, net.elastic, examples)
    else:
        net.remarks = folded_norms(proto)
    for remark in net.remarks:
        logging.getLogger(__name__).warning(remark)
    return net


def load(path: str | Path, *, batch: int = 1) -> SuperNet:
    """Read a SuperNet that `SuperNet.save` wrote. batch: of the SubNets to export, and of their operators."""
    net = SuperNet(*storage.load(Path(path)), batch)
    net.folder = Path(path).resolve()
    return net
