"""Origins of operators: the module of a node, and the line of the user's code that called it."""

import os
import re
import traceback
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path

import onnx
import torch
from torch import nn

from tailor_ir.errors import ImportFailed, first_line
from tailor_ir.reading.value_reads import PACKAGES, TORCH_FOLDER, shown_line

OWN_FOLDER = f"{Path(__file__).parents[1]}{os.sep}"
TRACE = str(Path(__file__).with_name("trace.py"))
"""The file that calls the network: outer frames belong to this project and its caller."""
TRACED = re.compile(r"^(.+?)\((\d+)\): ", re.MULTILINE)
"""A frame in the stack kept by torch's TorchScript exporter: innermost first."""
RECORDED = re.compile(r'File "(.+?)", line (\d+)')
"""A frame in the stack written into a file by torch's dynamo exporter: innermost last."""
STACK_TRACE = "pkg.torch.onnx.stack_trace"
NAMED = re.compile(r"(?<= at ')[^']+(?=')")
UNKNOWN = re.compile(r"^operator '[^']+'(?= at '[^']+': not supported)")
MOST_CHARACTERS = 120  # of a reason that another library gives


def module_path(name: str, modules: Collection[str] = ()) -> str:
    """Module path of a traced node: '/encoder/layers/layers.3/attn/Conv' -> 'encoder.layers.3.attn'; other names stay."""
    if not name.startswith("/"):
        return name
    return _joined(name[1:].split("/")[:-1], modules) or name


def _joined(scopes: Iterable[str], modules: Collection[str]) -> str:
    """One path from the names of nested modules: the only one of `modules` with these names in this order, else all joined.

    A name that begins with the previous name replaces it. Modules that are not called themselves (such as lists) have no scope.
    """
    path: list[str] = []
    for scope in scopes:
        if path and scope.startswith(f"{path[-1]}."):
            path.pop()
        path.append(scope)
    pattern = re.compile(r"(?:.+\.)?" + r"\.(?:.+\.)?".join(map(re.escape, path)))
    found = [module for module in modules if pattern.fullmatch(module)]
    return found[0] if path and len(found) == 1 else ".".join(path)


def lines_of(model: onnx.ModelProto) -> dict[str, str]:
    """Node name -> `file:line` of the innermost line outside torch and this project; {} if the file has no lines."""
    found = {}
    for node in model.graph.node:
        stack = next((entry.value for entry in node.metadata_props if entry.key == STACK_TRACE), "")
        frames = RECORDED.findall(stack)[::-1] or TRACED.findall(node.doc_string)
        if frames and (line := _own_line(frames)):
            found[node.name or node.output[0]] = line
    return found


def _own_line(frames: Iterable[tuple[str, str]]) -> str:
    """Innermost frame of the network's own code, or of a package if the whole network comes from packages."""
    inside = takewhile(lambda frame: frame[0] != TRACE, frames)
    found = [(path, int(number)) for path, number in inside if not path.startswith((TORCH_FOLDER, OWN_FOLDER, "<"))]
    own = next((frame for frame in found if PACKAGES.isdisjoint(Path(frame[0]).parts)), None) or next(iter(found), None)
    return shown_line(Path(own[0]), own[1]) if own else ""


@contextmanager
def located(model: onnx.ModelProto, modules: Collection[str] = ()) -> Iterator[None]:
    """While inside, refusals that name a node of the model also report its module and the line of the user's code.

    modules: names of all modules of the network that the model was traced from.
    """
    try:
        yield
    except ImportFailed as error:
        text = str(error)
        name = NAMED.search(text)
        if name is None:
            raise
        line = _line_of(name[0], lines_of(model))
        text = UNKNOWN.sub(rf"\g<0> of opset {_opset(model)}", text, count=1)
        name = NAMED.search(text) or name
        place = f"{module_path(name[0], modules)}'{f' ({line})' if line else ''}"
        raise type(error)(f"{text[: name.start()]}{place}{text[name.end() + 1 :]}") from error


def _opset(model: onnx.ModelProto) -> int:
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def _line_of(name: str, lines: dict[str, str]) -> str:
    """Line of a node; for a rewritten node, line of the node after which it is named."""
    while name not in lines and "/" in name.lstrip("/"):
        name = name.rpartition("/")[0]
    return lines.get(name, "")


def unknown_operator(op: str, name: str, known: Collection[str]) -> ImportFailed:
    """Refusal of a node whose operator is not among the `known` ones; names operators with a similar spelling."""
    close = " or ".join(f"'{other}'" for other in get_close_matches(op, sorted(known), 2, 0.75))
    return ImportFailed(
        f"operator '{op}' at '{name}': not supported{f' (near: {close})' if close else ''}; write it in other operators, "
        "leave it to the code around the network, or report it"
    )


def export_refusal(model: nn.Module, error: Exception, opset: int) -> str:
    """Error line for a network that torch's exporter refuses: the operator, its module and line, and a remedy."""
    network, modules = type(model).__name__, [name for name, _ in model.named_modules()]
    reason = first_line(error)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    node = next((found for f in frames if isinstance(found := f.f_locals.get("node"), torch._C.Node)), None)
    if node is None:
        line = _own_line(
            (frame.filename, str(frame.lineno)) for frame in traceback.extract_tb(error.__traceback__)[::-1]
        )
        if isinstance(error, ImportFailed):  # its message already states what is allowed
            fault, stop, rest = reason.partition(";")
            return f"network '{network}': {fault}{f' at {line}' if line else ''}{stop}{rest}"
        return (
            f"network '{network}': cannot be exported to ONNX ({_short(reason)}){f' at {line}' if line else ''}; "
            "allowed: feed-forward networks without control flow; try exporting it yourself and give the .onnx file"
        )
    line = _own_line(TRACED.findall(node.sourceRange()))  # type: ignore[call-overload]
    path = _joined((scope.rpartition("::")[2] for scope in node.scopeName().split("/")[1:]), modules)
    unknown = isinstance(error, torch.onnx.errors.UnsupportedOperatorError) or "unrecognized namespace" in reason
    return (
        f"network '{network}': operator '{node.kind()}' at '{path or network}'{f' ({line})' if line else ''} cannot be "
        f"exported to ONNX ({f'torch has no form of it in opset {opset}' if unknown else _short(reason)}); "
        "write it in other operators, or export the network yourself and give the .onnx file"
    )


def _short(reason: str) -> str:
    return reason if len(reason) <= MOST_CHARACTERS else f"{reason[: MOST_CHARACTERS - 1]}…"
