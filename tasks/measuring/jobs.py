"""Models as jobs for device agents: the names and shapes of inputs and outputs come from the ONNX model."""

import onnx

from profiling_agents.client import ModelJob
from profiling_agents.messages import Format, Shape
from tasks.evaluation.ncnn.files import NcnnFiles


def onnx_job(key: str, model: bytes, batch: int = 1) -> ModelJob:
    """A job for the ONNX model itself. batch: for a model that leaves it open."""
    return _job(key, "onnx", model, (model,), batch)


def ncnn_job(key: str, model: bytes, converted: NcnnFiles) -> ModelJob:
    """A job for NCNN files made from an ONNX model."""
    return _job(key, "ncnn", model, (converted.param, converted.bin))


def _job(key: str, model_format: Format, model: bytes, files: tuple[bytes, ...], batch: int = 1) -> ModelJob:
    graph = onnx.load_from_string(model).graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    ncnn = model_format == "ncnn"
    return ModelJob(
        key=key,
        format=model_format,
        files=files,
        input_names=tuple(f"in{i}" if ncnn else value.name for i, value in enumerate(inputs)),
        input_shapes=tuple(_shape(value, batch) for value in inputs),
        output_names=tuple(f"out{i}" if ncnn else value.name for i, value in enumerate(graph.output)),
        output_shapes=tuple(_shape(value, batch) for value in graph.output),
    )


def _shape(value: onnx.ValueInfoProto, batch: int) -> Shape:
    return tuple(dimension.dim_value or batch for dimension in value.type.tensor_type.shape.dim)
