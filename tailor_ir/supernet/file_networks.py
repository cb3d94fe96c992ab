"""ONNX models in onnxruntime, wrapped as networks that take any batch, to compare SuperNets and exported SubNets with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from onnx import helper

from tailor_ir.axes import Axis, BatchAxis
from tailor_ir.conversion.running import session_of
from tailor_ir.graph import NO_BATCH
from tailor_ir.reading.comparison import Batches
from tailor_ir.reading.files.layouts import inputs_of
from tailor_ir.spaces.structure import Structure

Answering = Callable[[Batches], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """The batch axis of each input and output, in order; NO_BATCH if it has none, None if that axis has other factors, too."""

    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]

    @classmethod
    def of(cls, structure: Structure) -> "Batching":
        """The batch axes of a SuperNet's network."""
        graph, axes = structure.graph, structure.axis_map.axes
        return cls(
            inputs=tuple(graph.batch_axis(name) for name in graph.inputs),
            outputs=tuple(_batch_of(axes[name]) for name in graph.outputs),
        )

    def samples(self, given: Batches) -> int:
        """The number of samples of a batch."""
        return next(one.shape[axis] for one, axis in zip(given, self.inputs, strict=True) if axis != NO_BATCH)


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
    except Exception:  # noqa: BLE001 - the runtime raises many types, and `compile` tells that nothing could be compared
        return None
