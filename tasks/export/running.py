"""The run of exported files, and example programs for it: in Python, and in C++ for some runtimes.

The programs are made from templates in `examples/`, by runtime and format.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from adaptive_runtime.bundle.chains import SamplePreparation
from adaptive_runtime.samples.inputs import GivenPreparation
from profiling_agents.client import ModelJob
from profiling_agents.messages import Capabilities, Measurement
from tasks.base.schemas.exports import Brought, FileRun, FileTensor
from tasks.export import EXAMPLES
from tasks.measuring.runtime_options.settings import ChosenEngine

TEMPLATES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("ncnn", "ncnn"): ("ncnn.py", "ncnn.cpp"),
    ("onnxruntime", "onnx"): ("onnxruntime.py", "onnxruntime.cpp"),
    ("openvino", "onnx"): ("openvino.py",),
    ("torch", "onnx"): ("torch_onnx.py",),
    ("torch", "torch"): ("torch.py",),
}
"""Templates by runtime and format; other combinations have no example."""
WORDS = {
    "pools": ("blob_allocator", "workspace_allocator"),
    "enumerations": {
        "execution_mode": "onnxruntime.ExecutionMode",
        "execution_order": "onnxruntime.ExecutionOrder",
        "graph_optimization_level": "onnxruntime.GraphOptimizationLevel",
    },
    "calls": {
        "intra_op_num_threads": "SetIntraOpNumThreads",
        "inter_op_num_threads": "SetInterOpNumThreads",
        "execution_mode": "SetExecutionMode",
        "graph_optimization_level": "SetGraphOptimizationLevel",
        "enable_mem_pattern": "DisableMemPattern",
        "enable_cpu_mem_arena": "DisableCpuMemArena",
    },
}
"""Settings whose values programs spell differently."""
TF32_OFF = '("CUDAExecutionProvider", {"use_tf32": 0})'
"""With TF32, "fp32" would name another precision."""
CPP_TYPES: Mapping[str, tuple[str, str]] = {
    "float32": ("f32", "float"),
    "float64": ("f64", "double"),
    "float16": ("f16", "Ort::Float16_t"),
    "int64": ("i64", "int64_t"),
    "int32": ("i32", "int32_t"),
    "int8": ("i8", "int8_t"),
    "uint8": ("u8", "uint8_t"),
    "bool": ("u8", "bool"),
}
"""Suffix of files with numbers of a type, and its name in C++."""
FileShape = tuple[int | None, ...]
INPUT = "input"
"""Name of the only input of an archive."""
OF_SUBNET, OF_SUPERNET, UNTIMED = "this SubNet", "SubNets of its SuperNet", "not timed: it was given"
NO_FILE_NAME = re.compile(r"[^\w.-]", re.ASCII)
"""Characters that names in foreign files must not bring into comments and shells."""


def run_of(found: Capabilities, job: ModelJob) -> FileRun:
    """The run of a job on a device or in a local runtime. Sizes that an ONNX file leaves open are None."""
    return FileRun(
        runtime=found.backend,
        version=found.version,
        build=found.build,
        provider=found.provider,
        threads=found.threads,
        precision=found.precision,
        settings=found.engine.applied(found.settings, found.engine_options),
        **_tensors_of(job),
    )


def archive_run(inputs: Sequence[FileTensor], output_shapes: Sequence[FileShape]) -> FileRun:
    """The run of a `torch.export` archive in this process."""
    threads = torch.get_num_threads()
    return FileRun(
        runtime="torch",
        version=torch.__version__,
        build=str(torch.version.git_version),
        provider="cpu",
        threads=threads,
        precision="fp32",
        settings={"num_threads": threads},
        inputs=tuple(inputs),
        outputs=tuple(
            FileTensor(name=name, shape=shape)
            for name, shape in zip(output_names(len(output_shapes)), output_shapes, strict=True)
        ),
    )


def output_names(count: int) -> list[str]:
    """Names of the outputs of an archive."""
    return ["output"] if count == 1 else [f"output_{number}" for number in range(count)]


def file_tensor(name: str, shape: FileShape, element: str) -> FileTensor:
    """A tensor of a file; its type is stated only if it is not float32."""
    return FileTensor(name=name, shape=shape, **({} if element == "float32" else {"type": element}))


def _tensors_of(job: ModelJob) -> dict[str, tuple[FileTensor, ...]]:
    shapes: dict[str, FileShape] = {}
    types: dict[str, str] = {}
    if job.format == "onnx":
        graph = onnx.load_from_string(job.files[0]).graph
        for value in (*graph.input, *graph.output):
            shapes[value.name] = tuple(one.dim_value or None for one in value.type.tensor_type.shape.dim)
            types[value.name] = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name
    else:
        shapes |= dict(zip(job.input_names, job.input_shapes, strict=True))
        shapes |= dict(zip(job.output_names, job.output_shapes or (), strict=True))
    return {
        "inputs": tuple(file_tensor(name, shapes[name], types.get(name, "float32")) for name in job.input_names),
        "outputs": tuple(file_tensor(name, shapes[name], types.get(name, "float32")) for name in job.output_names),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSubNet:
    """A SubNet timed with its chosen implementations, and with the runtime's own choices (None: these are the same)."""

    chosen: Measurement
    own: Measurement | None


def brought(run: FileRun, engine: ChosenEngine | None, subnet: TimedSubNet) -> tuple[Brought, ...]:
    """The gain of each choice on the device that ran a file, and timed its SubNet."""
    chosen, own = subnet.chosen, subnet.own
    rows = []
    if engine is not None:
        timed = {one.option: one for one in engine.kept}
        for option, choice in engine.chosen.items():
            ratio = timed[option].gain.ratio if option in timed else None
            measured = UNTIMED if ratio is None else OF_SUPERNET
            rows.append(Brought(choice=f"{option}={choice}", ratio=ratio, measured=measured))
        if engine.gain is not None:
            rows.append(Brought(choice="all of these options", ratio=engine.gain.ratio, measured=OF_SUPERNET))
    if run.masks and own is not None and own.p50_ms and chosen.p50_ms:
        rows.append(Brought(choice="masks", ratio=chosen.p50_ms / own.p50_ms, measured=OF_SUBNET))
    return tuple(rows)


def examples(
    run: FileRun, model_format: str, *, on_device: bool, prepared: SamplePreparation | None = None
) -> dict[str, str]:
    """Programs by suffix, `.py` and `.cpp`; {} for a runtime without a template. prepared: of samples; programs in Python take
    pictures if it has steps for these.
    """
    described = {**_described(run, on_device), **_pictures(prepared)}
    return {
        Path(name).suffix: _TEMPLATES.get_template(f"{name}.jinja").render(described)
        for name in TEMPLATES.get((run.runtime, model_format), ())
    }


def _pictures(prepared: SamplePreparation | None) -> dict[str, Any]:
    """The steps of a picture, and height and width of the SubNet's own input."""
    if not isinstance(prepared, GivenPreparation) or (steps := prepared.pictures) is None:
        return {"pictures": None}
    return {"pictures": steps, "own_size": prepared.size[1:] if steps.layout == "NCHW" else prepared.size[:2]}


def _described(run: FileRun, on_device: bool) -> dict[str, Any]:
    names = [NO_FILE_NAME.sub("_", one.name) for one in run.inputs]
    stems = (
        ["x"]
        if len(names) == 1
        else names
        if len(set(names)) == len(names)
        else list(map("x{}".format, range(len(names))))
    )
    inputs = [_input_fields(one, stem) for one, stem in zip(run.inputs, stems, strict=True)]
    return {
        **WORDS,
        "version": re.sub(r"[^\w.+-]", "", run.version),
        "threads": "1 thread" if run.threads == 1 else f"up to {run.threads} threads",
        "precision": run.precision,
        "place": "as on the device" if on_device else "as it was checked, on another machine than the device",
        "provider": TF32_OFF if run.provider == "CUDAExecutionProvider" else json.dumps(run.provider),
        "provider_name": "cuda" if run.provider == "cuda" else "cpu",
        "settings": list(run.settings.items()),
        "known": run.settings,
        "inputs": inputs,
        "input_text": " and ".join(f"{one['type']} numbers of {one['text']}" for one in inputs),
        "outputs": [one.name for one in run.outputs],
        "output_types": [CPP_TYPES[one.type][1] for one in run.outputs],
    }


def _input_fields(one: FileTensor, stem: str) -> dict[str, Any]:
    """An input in the spelling of programs. stem: of the file from which they read it."""
    sizes = tuple(size or 1 for size in one.shape)
    suffix, cpp = CPP_TYPES[one.type]
    return {
        "name": one.name,
        "file": f"{stem}.{suffix}",
        "type": one.type,
        "cpp": cpp,
        "one": sizes,
        "any": tuple(size or -1 for size in one.shape),
        "sample": sizes[1:],
        "text": " x ".join("N" if size is None else str(size) for size in one.shape),
    }


def _python(value: Any) -> str:
    """A value as a Python literal; names from foreign files may hold any character."""
    plain = isinstance(value, str) and value.isascii() and value.isprintable()
    return json.dumps(value) if plain else ascii(value)


def _cpp(value: Any) -> str:
    """A value as a C++ literal: bytes that are not plain characters in octal, which ends after three digits."""
    if not isinstance(value, str):
        return json.dumps(value)
    plain = {byte for byte in range(32, 127) if chr(byte) not in '"\\?'}
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in value.encode()) + '"'


def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader(__package__, EXAMPLES.name),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {"cpp": _cpp, "python": _python}
    return found


_TEMPLATES = _templates()
