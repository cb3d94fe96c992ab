"""Networks made SuperNets, and SuperNets that were saved."""

import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

from tailor_ir import storage
from tailor_ir.alternatives import add_alternatives
from tailor_ir.axes import BatchAxis
from tailor_ir.errors import ImportFailed
from tailor_ir.exits import add_exits
from tailor_ir.graph import Graph, Tensors
from tailor_ir.reading.comparison import compare, refuse_mixed_samples
from tailor_ir.reading.files.element_types import Float32Module, as_float32, module_in_float32, read_as_float32
from tailor_ir.reading.files.layouts import InputLayout, layouts_of
from tailor_ir.reading.files.preparing import prepare
from tailor_ir.reading.folded_norms import folded_norms
from tailor_ir.reading.importer import import_onnx
from tailor_ir.reading.inputs import GivenExample, examples_of_file, examples_of_module, kept_constant
from tailor_ir.reading.trace import TRACE_BATCH, load_onnx, trace_module
from tailor_ir.rewriting.kernel_transforms import transform_kernels
from tailor_ir.rewriting.passes import simplify
from tailor_ir.rewriting.samples import repeat_for_samples
from tailor_ir.spaces.proposal import propose
from tailor_ir.spaces.selectors import SpaceSpec
from tailor_ir.spaces.structure import Structure
from tailor_ir.structure.finding import find_axes_and_regions
from tailor_ir.structure.propagation import propagate
from tailor_ir.supernet.network import SuperNet

NOTHING_TRAINED = "the network has no weights that could be trained"


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
    plain = None
    if isinstance(model, nn.Module):
        plain = module_in_float32(model, examples_of_module(model, example_input))
        graph, tensors, remarks = (*_read_module(plain), (*plain.remarks, *plain.examples.remarks))
    else:
        proto = model if isinstance(model, onnx.ModelProto) else load_onnx(Path(model))
        graph, tensors, remarks = _read_file(proto, example_input)

    def read(graph: Graph, tensors: Tensors) -> Structure:
        return propose(graph, *find_axes_and_regions(graph, tensors), space)

    graph, tensors, refused = add_alternatives(graph, tensors, space, read)
    graph, tensors, no_exits = add_exits(graph, tensors, space, read)
    if kernel_transform:
        graph, tensors = transform_kernels(graph, tensors, read(graph, tensors))
    net = SuperNet(graph, tensors, space)
    net.refused = (*refused, *no_exits)
    if plain is not None:
        reference, examples = plain.reference
        remarks = (
            *remarks,
            *compare(reference, net.elastic, replace(examples, batch_axes=net.structure.graph.batch_axes)),
        )
    elif graph.samples == 1:
        _refuse_mixed_samples(net)
    net.remarks = remarks if graph.parameters else (*remarks, NOTHING_TRAINED)
    for remark in net.remarks:
        logging.getLogger(__name__).warning(remark)
    return net


def _read_module(plain: Float32Module) -> tuple[Graph, Tensors]:
    """Graph and tensors of a module."""
    examples = plain.examples.with_batch_axes(plain.module, TRACE_BATCH)
    proto, state = trace_module(plain.module, examples)
    if plain.remarks:
        read_as_float32(proto)
    state = {name: as_float32(tensor) for name, tensor in state.items()}
    axes = dict(zip(examples.names, examples.batch_axes, strict=False))
    shapes = {name: tuple(one.shape) for name, one in zip(examples.names, examples.batches(TRACE_BATCH), strict=True)}
    graph, tensors = import_onnx(proto, state, InputLayout(shapes=shapes, batch_axes=axes))
    graph, tensors = repeat_for_samples(*simplify(graph, tensors))
    return replace(graph, given_types=plain.given_types), tensors


def _read_file(given: onnx.ModelProto, example: GivenExample | None) -> tuple[Graph, Tensors, tuple[str, ...]]:
    """Graph and tensors of an ONNX model under the first layout of its inputs that can be read, and remarks."""
    examples, prepared = examples_of_file(given, example), prepare(given)
    layouts = tuple(layouts_of(prepared.model, examples))
    failures: list[ImportFailed] = []
    for layout in layouts:
        try:
            graph, tensors = import_onnx(prepared.model, layout=layout)
            graph, tensors = repeat_for_samples(*simplify(graph, tensors))
            if len(graph.inputs) > 1 and (reason := propagate(graph, tensors).batch_conflict):
                raise ImportFailed(
                    f"{reason}; allowed: one batch, whose axis is the same in all that meets; export it so"
                )
        except ImportFailed as error:
            failures.append(error)
            continue
        types = tuple(prepared.given_types.get(name, graph.input_type(name)) for name in graph.inputs)
        graph = replace(graph, given_types=types if prepared.given_types else ())
        kept = (kept_constant(name, value) for name, value in layout.constants.items())
        return graph, tensors, (*prepared.remarks, *kept, *folded_norms(given))
    told = Counter(map(str, failures)).most_common(1)[0][0]  # what fails in most layouts, else in the likeliest
    raise next(failure for failure in failures if str(failure) == told)


def _refuse_mixed_samples(net: SuperNet) -> None:
    """ImportFailed for a file of one sample that cannot have more."""
    graph, axes = net.structure.graph, net.structure.axis_map.axes
    batched = {
        name: position
        for name in graph.outputs
        for position, axis in enumerate(axes[name])
        if isinstance(axis, BatchAxis)
    }
    given = net.sample_inputs(net.max_config, np.random.default_rng(0), batch=2)
    refuse_mixed_samples(graph, batched, net.elastic, tuple(map(torch.from_numpy, given)))


def load(path: str | Path, *, batch: int = 1) -> SuperNet:
    """Read a SuperNet that `SuperNet.save` wrote. batch: of the SubNets to export, and of their operators."""
    net = SuperNet(*storage.load(Path(path)), batch)
    net.folder = Path(path).resolve()
    return net
