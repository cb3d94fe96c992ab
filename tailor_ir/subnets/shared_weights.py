"""Several SubNets as ONNX files whose common weights are stored once.

The stored part of a weight is the union of the SubNets' parts. Each ONNX file cuts its own part with Slice and Gather. All
their inputs are constants, so a runtime computes them when it loads the file. The numbers are in one safetensors file, to which
the ONNX files refer by offset (external data). BatchNorm is not folded: each SubNet has its own statistics.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import numpy_helper
from safetensors.numpy import save_file

from tailor_ir.spaces.space import Subnet
from tailor_ir.subnets.elastic import Elastic
from tailor_ir.subnets.onnx_export import write_onnx
from tailor_ir.subnets.plans import kept_positions

WEIGHTS_FILE = "weights.safetensors"
SMALL_BYTES = 256
"""Smaller constants stay in the ONNX files."""

Positions = tuple[np.ndarray, ...]


class CommonWeights:
    """The weights that some SubNets of one SuperNet share, and the part of each SubNet."""

    def __init__(self, elastic: Elastic, subnets: Sequence[Subnet]) -> None:
        self._elastic = elastic
        self._parameters = frozenset(elastic.structure.graph.parameters)
        kept: dict[str, list[Positions]] = {}
        for subnet in subnets:
            for name in self._parameters & {name for node in subnet.nodes for name in node.inputs}:
                if positions := self._positions(name, subnet):
                    kept.setdefault(name, []).append(positions)
        self._common = {
            name: tuple(np.unique(np.concatenate(each)) for each in zip(*found, strict=True))
            for name, found in kept.items()
        }

    def _positions(self, name: str, subnet: Subnet) -> Positions | None:
        return kept_positions(self._elastic.structure.axis_map.axes[name], subnet.sizes)

    def take(self, name: str, subnet: Subnet) -> tuple[gs.Tensor, list[gs.Node]] | None:
        """A SubNet's part of a weight, and the nodes that cut it from the stored weight. None: the weight is not shared."""
        positions = self._positions(name, subnet) if name in self._common else None
        if not positions:
            return None
        common = self._common[name]
        stored = self._elastic.tensor(name).detach().cpu().numpy()[np.ix_(*common)]
        wanted = [np.searchsorted(*pair) for pair in zip(common, positions, strict=True)]
        result: gs.Tensor = gs.Constant(f"{name}/common", np.ascontiguousarray(stored))
        nodes: list[gs.Node] = []

        def follow(op: str, operands: Sequence[np.ndarray], **attributes: int) -> None:
            nonlocal result
            place = f"{name}/{len(nodes)}"
            constants = [gs.Constant(f"{place}/{i}", operand) for i, operand in enumerate(operands)]
            taken = gs.Variable(place, stored.dtype)
            nodes.append(gs.Node(op, place, attrs=attributes, inputs=[result, *constants], outputs=[taken]))
            result = taken

        ranges = [d for d, at in enumerate(wanted) if len(at) < stored.shape[d] and at[-1] - at[0] == len(at) - 1]
        chosen = [d for d, at in enumerate(wanted) if len(at) < stored.shape[d] and d not in ranges]
        if ranges:
            ends = [(wanted[d][0], wanted[d][-1] + 1) for d in ranges]
            follow("Slice", [np.array(column, np.int64) for column in (*zip(*ends, strict=True), ranges)])
        for dim in chosen:
            follow("Gather", [wanted[dim].astype(np.int64)], axis=dim)
        if not nodes:
            follow("Identity", [])  # a constant could be transposed in this file alone, and would then be stored twice
        result.name, result.shape = name, tuple(len(at) for at in wanted)
        return result, nodes


def write_together(
    models: Iterable[tuple[str, onnx.ModelProto]], folder: Path, outside: Collection[str] = frozenset()
) -> None:
    """Write models by name as `NAME.onnx`, and their constants as `weights.safetensors`; equal constants are stored once.

    outside: names of constants that are always in `weights.safetensors`, however small. A runtime can override them.
    """
    tensors: dict[str, np.ndarray] = {}
    names: dict[bytes, str] = {}
    kept: list[tuple[str, onnx.ModelProto]] = []
    for key, model in models:
        for tensor in model.graph.initializer:
            array = numpy_helper.to_array(tensor)
            if array.nbytes < SMALL_BYTES and tensor.name not in outside:
                continue
            name = names.setdefault(
                hashlib.sha256(array.tobytes()).digest(),
                tensor.name if tensor.name not in tensors else f"{key}/{tensor.name}",
            )
            tensors.setdefault(name, array.copy())
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=name)
        kept.append((key, model))
    save_file(tensors, folder / WEIGHTS_FILE)
    offsets = _offsets(folder / WEIGHTS_FILE)
    for key, model in kept:
        for tensor in model.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                start, end = offsets[tensor.external_data[0].value]
                del tensor.external_data[:]
                for word, value in (("location", WEIGHTS_FILE), ("offset", start), ("length", end - start)):
                    tensor.external_data.add(key=word, value=str(value))
        write_onnx(model, folder / f"{key}.onnx")


def _offsets(file: Path) -> dict[str, tuple[int, int]]:
    """Begin and end of each tensor in a safetensors file, in bytes."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
    return {
        name: (8 + size + entry["data_offsets"][0], 8 + size + entry["data_offsets"][1])
        for name, entry in header.items()
        if name != "__metadata__"
    }
