"""SuperNets on disk: a folder of JSON and safetensors, never pickle."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Alternative, Attribute, Graph, Node, Tensors
from tailor_ir.spaces.selectors import SpaceSpec

GRAPH_FILE, TENSORS_FILE = "graph.json", "tensors.safetensors"
FORMAT = 1


def save(folder: Path, graph: Graph, tensors: Tensors, spec: SpaceSpec | None) -> None:
    """Write graph, tensors and the requested space into a folder, which is created if absent."""
    folder.mkdir(parents=True, exist_ok=True)
    unique = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(unique, folder / TENSORS_FILE)
    document = {
        "format": FORMAT,
        "graph": {
            "nodes": [asdict(node) for node in graph.nodes],
            "inputs": graph.inputs,
            "input_types": graph.input_types,
            "batch_axes": graph.batch_axes,
            "given_types": graph.given_types,
            "given_values": graph.given_values,
            "given_weights": graph.given_weights,
            "outputs": graph.outputs,
            "shapes": dict(graph.shapes),
            "parameters": graph.parameters,
            "statistics": graph.statistics,
            "constants": graph.constants,
            "alternatives": [asdict(alternative) for alternative in graph.alternatives],
        },
        "space": None if spec is None else {k: v if isinstance(v, str) else list(v) for k, v in spec.items()},
    }
    (folder / GRAPH_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def load(folder: Path) -> tuple[Graph, Tensors, SpaceSpec | None]:
    """Read a SuperNet that `save` wrote. ImportFailed if it is absent, incomplete or of another format."""
    document = _document(folder)
    try:
        tensors = load_file(folder / TENSORS_FILE)
    except (OSError, SafetensorError) as error:
        raise _unreadable(folder, error) from error
    return _graph(document["graph"]), tensors, document["space"]


def _document(folder: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads((folder / GRAPH_FILE).read_text(encoding="utf-8"))
    except RecursionError as error:
        raise _unreadable(folder, "nested too deep") from error
    except (OSError, ValueError) as error:
        raise _unreadable(folder, error) from error
    found = document.get("format")
    if found != FORMAT:
        is_later = isinstance(found, int) and found > FORMAT
        next_step = "install the AutoTailor that wrote it, or a newer one" if is_later else "compile it again"
        raise ImportFailed(f"SuperNet '{folder}': format {found}; allowed: {FORMAT}; {next_step}")
    return document


def _unreadable(folder: Path, error: Exception | str) -> ImportFailed:
    return ImportFailed(f"SuperNet '{folder}': cannot be read ({error}); compile it again")


def load_spec(folder: Path) -> SpaceSpec | None:
    """The requested space of a SuperNet that `save` wrote, read without its tensors. ImportFailed as in `load`."""
    spec: SpaceSpec | None = _document(folder)["space"]
    return spec


def _graph(data: dict[str, Any]) -> Graph:
    return Graph(
        nodes=tuple(_node(node) for node in data["nodes"]),
        inputs=tuple(data["inputs"]),
        outputs=tuple(data["outputs"]),
        shapes={name: tuple(shape) for name, shape in data["shapes"].items()},
        parameters=tuple(data["parameters"]),
        statistics=tuple(data["statistics"]),
        constants=tuple(data["constants"]),
        alternatives=tuple(Alternative(**each) for each in data.get("alternatives", ())),
        input_types=tuple(data.get("input_types", ())),
        batch_axes=tuple(data.get("batch_axes", ())),
        given_types=tuple(data.get("given_types", ())),
        given_values=tuple((name, kind) for name, kind in data.get("given_values", ())),
        given_weights=data.get("given_weights", ""),
    )


def _node(data: dict[str, Any]) -> Node:
    def attribute(value: Any) -> Attribute:
        return tuple(value) if isinstance(value, list) else value

    return Node(
        name=data["name"],
        op=data["op"],
        inputs=tuple(data["inputs"]),
        outputs=tuple(data["outputs"]),
        attributes=tuple((name, attribute(value)) for name, value in data["attributes"]),
    )
