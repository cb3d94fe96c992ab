"""Reads given networks (modules and ONNX files) as graphs; also keeps the form with which their SuperNets are compared."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from torch import nn

from tailor_ir.errors import ImportFailed, MixedSamples
from tailor_ir.graph import Graph, Tensors
from tailor_ir.ops import OPERATORS
from tailor_ir.reading.files.element_types import Float32Module, as_float32, module_in_float32, read_as_float32
from tailor_ir.reading.files.layouts import InputLayout, layouts_of
from tailor_ir.reading.files.preparing import PreparedModel, prepare
from tailor_ir.reading.folded_norms import folded_norms
from tailor_ir.reading.forms import make_lazy_layers, plain_module
from tailor_ir.reading.importer import import_onnx
from tailor_ir.reading.inputs import ExampleInputs, GivenExample, examples_of_file, examples_of_module, kept_constant
from tailor_ir.reading.places import located
from tailor_ir.reading.trace import TRACE_BATCH, load_onnx, trace_module
from tailor_ir.rewriting.passes import simplify
from tailor_ir.rewriting.samples import repeat_for_samples
from tailor_ir.structure.propagation import propagate


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainFile:
    """A float32 ONNX model of the same function as a given file. constants: inputs that the SuperNet lacks, by name."""

    model: onnx.ModelProto
    constants: Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadNetwork:
    """A network as a graph, and in the form with which its SuperNet is compared.

    remarks: messages about how it was read. traced: the model to whose nodes error messages refer. modules: names of a module's
    parts. other_batch: whether a likelier choice of the batch axes would have mixed samples.
    """

    graph: Graph
    tensors: Tensors
    origin: Float32Module | PlainFile
    remarks: tuple[str, ...]
    traced: onnx.ModelProto
    modules: Collection[str] = ()
    other_batch: bool = False

    def located(self) -> AbstractContextManager[None]:
        """A context in which error messages name the module and the line of the user's code."""
        return located(self.traced, self.modules)


def read_network(
    model: nn.Module | onnx.ModelProto | str | Path, example: GivenExample | None
) -> Iterator[ReadNetwork]:
    """A network as a graph, for each readable choice of the batch axes, the likeliest first. example: of its inputs.

    ImportFailed if no choice can be read.
    """
    if isinstance(model, onnx.ModelProto):
        return _read_file(model, example)
    if isinstance(model, str | Path):
        return _read_file(load_onnx(Path(model)), example)
    return _read_module(plain_module(model), example)


def _read_module(model: nn.Module, example: GivenExample | None) -> Iterator[ReadNetwork]:
    given = examples_of_module(model, example)
    make_lazy_layers(model, given)
    plain = module_in_float32(model, given)
    read, failures = False, list[ImportFailed]()
    for examples in plain.examples.layouts(plain.module, TRACE_BATCH):
        try:
            network = _read_traced(model, plain, examples)
        except ImportFailed as error:
            failures.append(error)
            if len(examples.tensors) > 1 and not isinstance(error, MixedSamples):
                break
        else:
            read = True
            yield replace(network, other_batch=_mixes_samples(failures))
    if not read:
        raise failures[0]


def _mixes_samples(failures: Sequence[ImportFailed]) -> bool:
    """Whether a layout of the inputs was refused since samples of a batch are not independent there."""
    return any(isinstance(each, MixedSamples) for each in failures)


def _read_traced(model: nn.Module, plain: Float32Module, examples: ExampleInputs) -> ReadNetwork:
    def traced(samples: int) -> tuple[onnx.ModelProto, Tensors]:
        proto, state = trace_module(plain.module, examples, samples)
        if plain.remarks:
            read_as_float32(proto)
        return proto, state

    proto, state = traced(TRACE_BATCH)
    modules = [name for name, _ in model.named_modules()]
    layout = InputLayout(
        shapes={
            name: tuple(one.shape) for name, one in zip(examples.names, examples.batches(TRACE_BATCH), strict=True)
        },
        batch_axes=dict(zip(examples.names, examples.axes, strict=True)),
    )
    with located(proto, modules):
        state = {name: as_float32(tensor) for name, tensor in state.items()}
        graph, tensors = import_onnx(proto, state, layout, OPERATORS, lambda samples: traced(samples)[0])
        graph, tensors = repeat_for_samples(*simplify(graph, tensors))
    return ReadNetwork(
        graph=replace(graph, given_types=plain.given_types),
        tensors=tensors,
        origin=plain,
        remarks=(*plain.remarks, *plain.examples.remarks),
        traced=proto,
        modules=modules,
    )


def _read_file(given: onnx.ModelProto, example: GivenExample | None) -> Iterator[ReadNetwork]:
    """The network under each readable layout of its inputs."""
    with located(given):
        examples, prepared = examples_of_file(given, example), prepare(given)
        read, failures = False, list[ImportFailed]()
        for layout in layouts_of(prepared.model, examples):
            if not (read or layout.batch_first or _mixes_samples(failures)):
                break
            try:
                graph, tensors = _read_layout(prepared.model, layout)
            except ImportFailed as error:
                failures.append(error)
            else:
                read = True
                network = _read(given, prepared, layout, graph, tensors)
                yield replace(network, other_batch=_mixes_samples(failures))
        if read:
            return
        told = Counter(map(str, failures)).most_common(1)[0][0]  # most frequent, then of the likeliest layout
        raise next(failure for failure in failures if str(failure) == told)


def _read_layout(model: onnx.ModelProto, layout: InputLayout) -> tuple[Graph, Tensors]:
    graph, tensors = import_onnx(model, None, layout, OPERATORS)
    graph, tensors = repeat_for_samples(*simplify(graph, tensors))
    if len(graph.inputs) > 1 and (reason := propagate(graph, tensors).batch_conflict):
        raise ImportFailed(f"{reason}; allowed: one batch, whose axis is the same in all that meets; export it so")
    return graph, tensors


def _read(
    given: onnx.ModelProto, prepared: PreparedModel, layout: InputLayout, graph: Graph, tensors: Tensors
) -> ReadNetwork:
    types = tuple(prepared.given_types.get(name, graph.input_type(name)) for name in graph.inputs)
    kept = (kept_constant(name, value) for name, value in layout.constants.items())
    return ReadNetwork(
        graph=replace(graph, given_types=types if prepared.given_types else ()),
        tensors=tensors,
        origin=PlainFile(model=prepared.model, constants=layout.constants),
        remarks=(*prepared.remarks, *kept, *folded_norms(given)),
        traced=given,
    )
