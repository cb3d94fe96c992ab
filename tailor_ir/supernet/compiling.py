"""Networks made SuperNets, and SuperNets that were saved."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from torch import nn

from tailor_ir import storage
from tailor_ir.alternatives import add_alternatives
from tailor_ir.errors import CheckFailed, ImportFailed
from tailor_ir.exits import add_exits
from tailor_ir.graph import Graph, Tensors
from tailor_ir.ops import OPERATORS
from tailor_ir.reading.comparison import compare
from tailor_ir.reading.folded_norms import folded_norms
from tailor_ir.reading.forms import make_lazy_layers, plain_module
from tailor_ir.reading.importer import import_onnx
from tailor_ir.reading.inputs import ExampleInputs, GivenExample, examples_of_file, examples_of_module
from tailor_ir.reading.places import located
from tailor_ir.reading.trace import load_onnx, trace_module
from tailor_ir.rewriting.kernel_transforms import transform_kernels
from tailor_ir.rewriting.passes import simplify
from tailor_ir.rewriting.samples import repeat_for_samples
from tailor_ir.spaces.proposal import only_itself, propose
from tailor_ir.spaces.selectors import SpaceSpec
from tailor_ir.spaces.structure import Structure
from tailor_ir.structure.finding import find_axes_and_regions
from tailor_ir.supernet.checking import Reference
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
    examples: ExampleInputs | None = None
    again: Callable[[int], onnx.ModelProto] | None = None
    if isinstance(model, onnx.ModelProto | str | Path):
        proto, state = model if isinstance(model, onnx.ModelProto) else load_onnx(Path(model)), None
        shapes = examples_of_file(proto, example_input)
        modules = []
    else:
        model = plain_module(model)
        examples = examples_of_module(model, example_input)
        make_lazy_layers(model, examples)
        proto, state = trace_module(model, examples)
        shapes, again = {}, partial(_traced, model, examples)
        modules = [name for name, _ in model.named_modules()]
    with located(proto, modules):
        graph, tensors = import_onnx(proto, state, shapes, OPERATORS, again)
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
    _compare(net, model if isinstance(model, nn.Module) else None, examples, proto)
    net.remarks += only_itself(net.structure, space)
    for remark in net.remarks:
        logging.getLogger(__name__).warning(remark)
    return net


def _compare(net: SuperNet, module: nn.Module | None, examples: ExampleInputs | None, proto: onnx.ModelProto) -> None:
    """Keeps the original's answers and what is to be said of it. ImportFailed: the compiled network answers otherwise."""
    if module is not None and examples is not None:
        net.remarks = compare(module, net.elastic, examples)
        net.original = Reference.of_module(module, examples, partial(_drawn, net))
    else:
        net.remarks = folded_norms(proto)
        net.original = Reference.of_file(proto, partial(_drawn, net))
    _refuse_other_answers(net, "file" if module is None else f"network '{type(module).__name__}'")
    if not net.original.answers:
        net.remarks += ("the original network does not run on drawn inputs: its answers could not be compared",)


def _drawn(net: SuperNet, rng: np.random.Generator, batch: int) -> Sequence[np.ndarray]:
    return net.sample_inputs(net.max_config, rng, batch)


def _traced(model: nn.Module, examples: ExampleInputs, samples: int) -> onnx.ModelProto:
    """The network traced for a batch of so many samples."""
    return trace_module(model, examples, samples)[0]


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
