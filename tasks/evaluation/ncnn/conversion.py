"""Conversion from ONNX to NCNN by pnnx's binary. Each call is a killable child process in a private temporary folder.

One call takes about 0.25 s, nearly all of it start-up. `convert_operators` therefore joins many operators to one graph of
unconnected parts and splits the result: 1 ms per operator.
"""

import importlib.util
import os
import tempfile
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType

import ncnn
import onnx
from google.protobuf.message import DecodeError

import tailor_ir
from profiling_agents.backends.base import ModelError
from profiling_agents.backends.onnx_files import read_onnx
from profiling_agents.backends.own_names import OwnNames
from tasks.evaluation.conversion import DEFAULT_LIMITS, ConversionError, ConversionLimits, last_line, run_limited
from tasks.evaluation.ncnn import joined_models
from tasks.evaluation.ncnn.files import Layer, NcnnFiles
from tasks.evaluation.ncnn.kernels import masks_for, with_masks
from tasks.evaluation.ncnn.pooling import fit_pools

Outcome = NcnnFiles | ConversionError


def convert(
    model: bytes,
    limits: ConversionLimits = DEFAULT_LIMITS,
    *,
    fp16: bool = False,
    trimmed: bool = True,
    implementations: Mapping[str, str] = MappingProxyType({}),
) -> NcnnFiles:
    """NCNN files (weights in fp32, or fp16) of an ONNX model with static input shapes and folded BatchNorm.

    Blobs are named in0, in1, … and out0, … in the order of the ONNX inputs and outputs. implementations: implementations of
    convolutions, by the value that the ONNX node writes (`tasks.evaluation.ncnn.kernels`). trimmed: remove kernel positions
    that only read padding, since ncnn would read their weights, too: eight of nine in vain for a 3×3 convolution on a
    single position. ConversionError: pnnx crashed, exceeded a limit, wrote nothing, or left a layer that ncnn lacks.
    """
    model = _trimmed(model) if trimmed else model
    files = _checked(_converted(model, limits, fp16=fp16))
    if not implementations:
        return files
    plain = files if not fp16 else _converted(model, limits)  # the same layers, with weights that can be compared
    return with_masks(files, masks_for(model, plain, implementations))


def convert_operators(models: Sequence[bytes], limits: ConversionLimits = DEFAULT_LIMITS) -> list[Outcome]:
    """NCNN files of many single-operator models, as the operators run inside a network (no batch axis).

    Each model has its own result or error.
    """
    models = [_trimmed(content) for content in models]
    results: dict[int, Outcome] = {}
    for index, content in enumerate(models):
        if (constant := _constant(content)) is not None:
            results[index] = constant
    others = [index for index in range(len(models)) if index not in results]
    pending = [[others[own] for own in part] for part in joined_models.groups([models[index] for index in others])]
    while pending:
        part = pending.pop()
        outcomes = _convert_part([models[index] for index in part], limits)
        for index, outcome in zip(part, outcomes, strict=True):
            if outcome is not None:
                results[index] = outcome
        if unknown := [index for index in part if index not in results]:
            half = (len(unknown) + 1) // 2
            pending += [rest for rest in (unknown[:half], unknown[half:]) if rest]
    return [results[index] for index in range(len(models))]


def _constant(content: bytes) -> NcnnFiles | None:
    """The files of an operator without inputs: a constant in memory. None for all other operators."""
    graph = onnx.load_from_string(content).graph
    if graph.input or len(graph.output) != 1:
        return None
    shape = [dimension.dim_value for dimension in graph.output[0].type.tensor_type.shape.dim][1:]
    width, *rest = reversed(shape)
    keys = ("0", "1", "2") if len(shape) < 4 else ("0", "1", "11", "2")
    parameters = tuple(f"{key}={size}" for key, size in zip(keys, (width, *rest), strict=False))
    layer = Layer("MemoryData", "constant", (), ("out0",), parameters)
    return NcnnFiles.of([layer], bytes(4 * prod(shape)))


def _convert_part(models: Sequence[bytes], limits: ConversionLimits) -> Sequence[Outcome | None]:
    """The results of one call of pnnx; None for models to be converted again in a smaller group."""
    failure = ConversionError("pnnx dropped an input or an output")
    parts: Sequence[NcnnFiles | None] = [None] * len(models)
    try:
        joined = joined_models.join(models)
        parts = joined_models.split(_converted(joined.model, limits), joined)
    except ConversionError as error:
        failure = error
    except joined_models.SplitError as error:
        failure = ConversionError(f"pnnx's files cannot be read: {error}")
    if len(models) == 1 and parts[0] is None:
        return [failure]
    return [None if part is None else _outcome(part) for part in parts]


def _outcome(converted: NcnnFiles) -> Outcome:
    try:
        return _checked(converted)
    except ConversionError as error:
        return error


def _checked(converted: NcnnFiles) -> NcnnFiles:
    """The files, checked: ConversionError if pnnx passed through a layer that ncnn does not have: 'aten::erf', 'Det', …"""
    for layer in converted.layers():
        if ncnn.layer_to_index(layer.kind) < 0:
            raise ConversionError(f"ncnn has no layer for '{layer.kind}'")
    return converted


def _converted(model: bytes, limits: ConversionLimits, *, fp16: bool = False) -> NcnnFiles:
    with tempfile.TemporaryDirectory(prefix="autotailor-pnnx-") as name:  # mode 0700
        folder = Path(name)
        (folder / "model.onnx").write_bytes(_prepared(model))
        environment = {"PATH": os.defpath, "HOME": str(folder), "OMP_NUM_THREADS": "1"}
        log = run_limited([_binary(), "model.onnx", f"fp16={fp16:d}"], folder, limits, environment, name="pnnx")
        files = folder / "model.ncnn.param", folder / "model.ncnn.bin"
        if not all(file.is_file() for file in files) or files[0].stat().st_size == 0:
            raise ConversionError(f"pnnx wrote no NCNN model ({last_line(log)})")
        return NcnnFiles(param=files[0].read_bytes(), bin=files[1].read_bytes())


def _trimmed(content: bytes) -> bytes:
    """The model without the positions of kernels that no input reaches."""
    try:
        model = onnx.load_from_string(content)
    except DecodeError:
        return content  # `_prepared` raises the error
    if not any(node.op_type == "Conv" and any(_pads(node)) for node in model.graph.node):
        return content
    found = tailor_ir.convert(model, check=False, rules=[tailor_ir.UNREACHED_KERNELS])
    return found.model.SerializeToString() if found.rules else content


def _pads(node: onnx.NodeProto) -> Sequence[int]:
    return next((attribute.ints for attribute in node.attribute if attribute.name == "pads"), ())


def _prepared(model: bytes) -> bytes:
    """The model with neutral names, since pnnx writes names into its text files, and in forms that ncnn has.

    The order and number of inputs and outputs stay.
    """
    try:
        return fit_pools(read_onnx(model, OwnNames())).SerializeToString()
    except ModelError as error:
        raise ConversionError(f"pnnx gets no model: {' '.join(str(error).split())}") from error


def _binary() -> str:
    """pnnx's executable inside its Python package (importing the package would import torch)."""
    found = importlib.util.find_spec("pnnx")
    if found is None or not found.submodule_search_locations:
        raise ConversionError("the package 'pnnx' is not installed")
    return str(Path(found.submodule_search_locations[0]) / "pnnx")
