"""Reading of given networks (modules and ONNX files) as graphs, and the form with which their SuperNets are compared.

ONNX models in onnxruntime are wrapped as networks that take any batch; SuperNets and exported SubNets are compared with
them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper
from torch import nn

from tailor_ir.axes import Axis, BatchAxis
from tailor_ir.conversion import session_of
from tailor_ir.errors import ImportFailed, MixedSamples
from tailor_ir.graph import NO_BATCH, Graph, Tensors
from tailor_ir.ops import OPERATORS
from tailor_ir.reading.comparison import Batches
from tailor_ir.reading.files import (
    Float32Module,
    InputLayout,
    as_float32,
    folded_norms,
    given_value,
    inputs_of,
    layouts_of,
    module_in_float32,
    read_as_float32,
)
from tailor_ir.reading.importer import import_onnx
from tailor_ir.reading.inputs import (
    ExampleInputs,
    GivenExample,
    examples_of_file,
    examples_of_module,
    kept_constant,
    make_lazy_layers,
    plain_module,
)
from tailor_ir.reading.places import located
from tailor_ir.reading.preparing import PreparedModel, prepare
from tailor_ir.reading.trace import TRACE_BATCH, load_onnx, trace_module
from tailor_ir.rewriting.passes import repeat_for_samples, simplify
from tailor_ir.spaces.space import Structure
from tailor_ir.structure.propagation import propagate

Answering = Callable[[Batches], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """The batch axis of each input and output, in order; NO_BATCH if it has none, None if that axis has other factors, too."""

    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]

    @classmethod
    def of(cls, structure: Structure) -> "Batching":
        """The batch axes of a SuperNet's network."""
        return cls.of_graph(structure.graph, structure.axis_map.axes)

    @classmethod
    def of_graph(cls, graph: Graph, axes: Mapping[str, Sequence[Axis]]) -> "Batching":
        """The batch axes of a graph whose values have these axes."""
        return cls(
            inputs=tuple(graph.batch_axis(name) for name in graph.inputs),
            outputs=tuple(_batch_of(axes[name]) for name in graph.outputs),
        )

    def samples(self, given: Batches) -> int:
        """The number of samples of a batch."""
        return next(one.shape[axis] for one, axis in zip(given, self.inputs, strict=True) if axis != NO_BATCH)


def batch_axes(model: onnx.ModelProto, example: GivenExample) -> Batching:
    """The batch axes of an ONNX network's inputs and outputs; an input without an axis, which becomes a constant, is left out.

    ImportFailed as `read_network`.
    """
    network = next(read_network(model, example))
    return Batching.of_graph(network.graph, propagate(network.graph, network.tensors).axes)


def _batch_of(axes: Sequence[Axis]) -> int | None:
    batched = [position for position, axis in enumerate(axes) if axis.batched]
    alone = [position for position in batched if isinstance(axes[position], BatchAxis)]
    return alone[0] if alone else None if batched else NO_BATCH


class _File:
    """An ONNX model in onnxruntime, as a network. A fixed batch size is handled by running chunks and joining the answers.

    A single sample is run twice if a Squeeze without axes would drop the batch axis, too.
    """

    def __init__(self, model: onnx.ModelProto, batching: Batching, constants: Mapping[str, np.ndarray]) -> None:
        types = {name: one.type.tensor_type for name, one in inputs_of(model).items() if name not in constants}
        self._types = {name: np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)) for name, kind in types.items()}
        self._batching, self._constants = batching, constants
        dims = [kind.shape.dim for kind in types.values()]
        pairs = [(dim, axis) for dim, axis in zip(dims, batching.inputs, strict=True) if axis != NO_BATCH and dim]
        self._fixed = max((dim[axis].dim_value for dim, axis in pairs), default=0)
        self._least = 2 if any(map(_drops_all_of_one, model.graph.node)) else 1
        self._session = session_of(model, folded=True)

    def __call__(self, given: Batches) -> list[torch.Tensor]:
        count = self._batching.samples(given)
        step = self._fixed if self._fixed > 0 else max(count, self._least)
        if step == count:
            return list(map(torch.from_numpy, self._run(given)))
        rows = ([min(start + row, count - 1) for row in range(step)] for start in range(0, count, step))
        pieces = [self._run(tuple(map(_taken, given, self._batching.inputs, [each] * len(given)))) for each in rows]
        outputs = zip(zip(*pieces, strict=True), self._batching.outputs, strict=True)
        return [torch.from_numpy(_joined(each, axis, step, count)) for each, axis in outputs]

    def _run(self, given: Batches) -> list[np.ndarray]:
        pairs = zip(self._types.items(), given, strict=True)
        try:
            drawn = {name: one.numpy().astype(kind) for (name, kind), one in pairs}
            return [np.asarray(answer) for answer in self._session.run(None, {**self._constants, **drawn})]
        except Exception as error:  # the runtime raises many types
            raise RuntimeError(str(error)) from error


def _drops_all_of_one(node: onnx.NodeProto) -> bool:
    return (
        node.op_type == "Squeeze" and len(node.input) == 1 and not any(each.name == "axes" for each in node.attribute)
    )


def _taken(given: torch.Tensor, axis: int, rows: Sequence[int]) -> torch.Tensor:
    return given if axis == NO_BATCH else given.index_select(axis, torch.tensor(rows))


def _joined(pieces: Sequence[np.ndarray], axis: int | None, step: int, count: int) -> np.ndarray:
    """Join answers to several batches to the answer to one. RuntimeError if the answers have no separate axis of samples.

    For answers that differ between batches and have no known axis of samples, axis 0 is assumed.
    """
    if axis == NO_BATCH and all(np.array_equal(piece, pieces[0], equal_nan=True) for piece in pieces):
        return pieces[0]
    at = 0 if axis is None or axis == NO_BATCH else axis
    if any(piece.shape[at : at + 1] != (step,) for piece in pieces):
        raise RuntimeError("answers have no axis of samples")
    return np.concatenate(pieces, at).take(range(count), at)


def file_network(model: onnx.ModelProto, batching: Batching, constants: Mapping[str, np.ndarray]) -> Answering | None:
    """A file as a network; None if onnxruntime cannot load it."""
    try:
        return _File(model, batching, constants)
    except Exception:  # noqa: BLE001 - the runtime raises many types, and `compile` says that nothing could be compared
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainFile:
    """A float32 ONNX model of the same function as a given file. constants: inputs that the SuperNet lacks, by name."""

    model: onnx.ModelProto
    constants: Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadNetwork:
    """A network as a graph, and in the form with which its SuperNet is compared.

    remarks: messages about how it was read. traced: the model to whose nodes error messages refer. modules: names of a module's
    parts. other_batch: whether a likelier choice of the batch axes would have mixed samples. folded: a remark about BatchNorms
    that were folded.
    """

    graph: Graph
    tensors: Tensors
    origin: Float32Module | PlainFile
    remarks: tuple[str, ...]
    traced: onnx.ModelProto
    modules: Collection[str] = ()
    other_batch: bool = False
    folded: tuple[str, ...] = ()

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
        graph, tensors = simplify(graph, tensors)
        graph, tensors = repeat_for_samples(graph, tensors)
    return ReadNetwork(
        graph=replace(graph, given_types=plain.given_types, given_weights=plain.given_weights),
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
        described = Counter(map(str, failures)).most_common(1)[0][0]  # most frequent, then of the likeliest layout
        raise next(failure for failure in failures if str(failure) == described)


def _read_layout(model: onnx.ModelProto, layout: InputLayout) -> tuple[Graph, Tensors]:
    graph, tensors = import_onnx(model, None, layout, OPERATORS)
    graph, tensors = simplify(graph, tensors)
    graph, tensors = repeat_for_samples(graph, tensors)
    if len(graph.inputs) > 1 and (reason := propagate(graph, tensors).batch_conflict):
        raise ImportFailed(f"{reason}; allowed: one batch, whose axis is the same in all that meets; export it so")
    return graph, tensors


def _read(
    given: onnx.ModelProto, prepared: PreparedModel, layout: InputLayout, graph: Graph, tensors: Tensors
) -> ReadNetwork:
    types = tuple(prepared.given_types.get(name, graph.input_type(name)) for name in graph.inputs)
    kept = (kept_constant(name, value) for name, value in layout.constants.items())
    ends = [*(one for name, one in inputs_of(given).items() if name in graph.inputs), *given.graph.output]
    values = tuple(map(given_value, ends)) if len(ends) == len(graph.inputs) + len(graph.outputs) else ()
    return ReadNetwork(
        graph=replace(
            graph,
            given_types=types if prepared.given_types else (),
            given_values=values,
            given_weights=prepared.given_weights,
        ),
        tensors=tensors,
        origin=PlainFile(model=prepared.model, constants=layout.constants),
        remarks=(*prepared.remarks, *kept),
        traced=given,
        folded=folded_norms(given),
    )
