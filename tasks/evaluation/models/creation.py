"""Creation of networks of all kinds, with one test run: from ONNX files, Python functions, and checkpoints.

ONNX files are checked before use, and reduced to one output if they have several: the logits of all heads, side by
side. Checkpoints are .safetensors files or torch files. Only tensors are read from them, and no code is run.

Legend: B batch, K classes of a target.
"""

import pickle
import struct
import threading
from collections.abc import Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import onnx
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

import tailor_ir
from tasks.base.errors import UserError, shortened
from tasks.base.own_code import UserFunction, code_folder
from tasks.data.problems import CLASSIFICATION, LearningProblem, require
from tasks.data.samples import AnyForm, SampleForm, SeveralInputs
from tasks.evaluation.models.outputs import check_answer, check_shapes, classifier_of, sizes_text
from tasks.evaluation.models.settings import ModelSettings, check_checkpoint, check_network_file, is_of_torch

Outputs = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]


def join_heads(module: nn.Module, heads: Mapping[str, int]) -> None:
    """Make a module with outputs (B, K) for each head return one tensor (B, sum of K). Its tensors keep their names.

    heads: K by target, in the order of the outputs; outputs by name may be in any order. If a module returns one tensor, its
    output stays unchanged. Running the module raises ValueError if its heads differ from these.
    """
    own: Any = type(module)

    @wraps(own.forward)
    def forward(self: nn.Module, *given: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        return _joined(heads, own.forward(self, *given, **named))

    module.__class__ = type(own.__name__, (own,), {"forward": forward})  # copies of the module have it, too


def _joined(heads: Mapping[str, int], outputs: Outputs) -> torch.Tensor:
    if isinstance(outputs, torch.Tensor):
        return outputs
    if isinstance(outputs, Mapping) and set(outputs) == set(heads):
        logits = [outputs[name] for name in heads]
    else:
        logits = list(outputs.values()) if isinstance(outputs, Mapping) else list(outputs)
    got = [int(one.shape[1]) if one.ndim == 2 else tuple(one.shape[1:]) for one in logits]
    if got != list(heads.values()):
        described = ", ".join(f"{name} {count}" for name, count in heads.items())
        raise ValueError(f"heads give {got} numbers for each sample; allowed: {described}")
    return torch.cat(logits, 1)


JOINED = "heads"
"""Name of the output that joins several heads, unless the file has a value of this name."""


def network_of_file(
    settings: ModelSettings, classes: int, form: AnyForm, problem: LearningProblem = CLASSIFICATION
) -> onnx.ModelProto:
    """The network of a file, with one output: if samples have several targets, the logits of all heads side by side.

    UserError: the file does not exist, or its inputs or outputs do not fit the data. ImportFailed: it cannot be read.
    """
    path = settings.path
    assert path is not None
    where = f"model file '{path}'"
    check_network_file(path)
    model = tailor_ir.load_onnx(path)
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in stored]
    wanted = form.inputs if isinstance(form, SeveralInputs) else {value.name: form for value in inputs[:1]}
    if tuple(value.name for value in inputs) != tuple(wanted):
        names = ", ".join(value.name for value in inputs)
        allowed = f"{', '.join(form.names)}, in this order" if form.names else f"one, of {form.called}"
        raise UserError(where, f"{len(inputs)} inputs ({names})", allowed=allowed)
    for value in inputs:
        _check_input(where, value, wanted[value.name], form)
    taken = _taken_outputs(where, [value.name for value in model.graph.output], settings.outputs, classes, problem)
    _keep(where, model.graph, taken, problem.heads)
    check_shapes(where, [_sizes(value) for value in model.graph.output], classes, problem, form.side)
    return model


def sizes_of_file(path: Path) -> tuple[int | None, ...]:
    """The sizes of one sample of a file's first input; None for an open size, () if the file gives no shape."""
    graph = onnx.load(path, load_external_data=False).graph
    stored = {tensor.name for tensor in graph.initializer}
    first = next((value for value in graph.input if value.name not in stored), None)
    return () if first is None else (_sizes(first) or ())[1:]


def _taken_outputs(
    where: str, given: Sequence[str], asked: Sequence[str] | None, classes: int, problem: LearningProblem
) -> Sequence[str]:
    """Names of the used outputs: one, or one per target in the targets' order. UserError: the choice is unclear or invalid."""
    heads = problem.heads
    if problem.takes_any and asked is None:
        return given
    if asked is not None:
        if set(asked) <= set(given) and (problem.takes_any or len(asked) in (1, len(heads))):
            return asked
        count = f"one, or {len(heads)} in the order of data.targets," if heads else "one"
        raise UserError("model.outputs", f"[{', '.join(asked)}]", allowed=f"{count} of {', '.join(given)}")
    if len(given) == 1:
        return given
    if heads and set(heads) <= set(given):
        return tuple(heads)
    if heads and len(given) == len(heads) and set(heads).isdisjoint(given):
        return given
    raise UserError(
        where,
        f"gives {len(given)} outputs ({', '.join(given)})",
        allowed=problem.output_text(classes) + (", or an output (B, K) for each target" if heads else ""),
        next_step=f"name what is taken: model.outputs=[{','.join(f'OUTPUT_OF_{name}' for name in heads) or 'OUTPUT'}]",
    )


def _keep(where: str, graph: onnx.GraphProto, names: Sequence[str], heads: Mapping[str, int]) -> None:
    """Keep the named outputs of a network; of several heads, one output with all of them side by side.

    UserError: a head is not (B, K) of its target.
    """
    given = {value.name: value for value in graph.output}
    if not heads:
        kept_outputs = [given[name] for name in names]
        del graph.output[:]
        graph.output.extend(kept_outputs)
        return
    kept = onnx.ValueInfoProto()
    kept.CopyFrom(given[names[0]])
    if len(names) > 1:
        for name, target in zip(names, heads, strict=True):
            _check_head(where, given[name], target, heads[target])
        kept.name = _unused(graph, JOINED)
        kept.type.tensor_type.shape.dim[1].dim_value = sum(heads.values())
        graph.node.append(onnx.helper.make_node("Concat", names, [kept.name], name=kept.name, axis=1))
    del graph.output[:]
    graph.output.append(kept)


def _check_head(where: str, value: onnx.ValueInfoProto, target: str, classes: int) -> None:
    sizes = _sizes(value)
    if sizes is None or len(sizes) != 2 or sizes[1] != classes:
        raise UserError(
            where,
            f"output '{value.name}' for target '{target}' is {'open' if sizes is None else sizes_text(sizes)}",
            allowed=f"(B, {classes}), a number for each class of '{target}'",
            next_step="export it so, or give the outputs in the order of data.targets: model.outputs=[OUTPUT,OUTPUT]",
        )


def _unused(graph: onnx.GraphProto, name: str) -> str:
    """The name, extended by underscores while the graph has a value or a node of this name."""
    used = {one for node in graph.node for one in (*node.output, node.name)}
    used |= {value.name for value in (*graph.input, *graph.initializer)}
    while name in used:
        name += "_"
    return name


def _sizes(value: onnx.ValueInfoProto) -> tuple[int | None, ...] | None:
    """The sizes of a value, None for each open size; None if the file gives no shape."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in dims)


def _check_input(where: str, value: onnx.ValueInfoProto, form: SampleForm, samples: AnyForm) -> None:
    """Raise UserError if the file's input differs from that of the data's samples."""
    wanted, sizes, element = form.shape, _sizes(value), value.type.tensor_type.elem_type
    if form.words is not None and element != onnx.TensorProto.INT64:
        got = f"takes {onnx.TensorProto.DataType.Name(element)}"
        raise UserError(where, got, allowed="INT64, numbers of words", next_step="export it with these")
    if sizes is None:
        return
    same_axes = len(sizes) == 1 + len(wanted)
    if not same_axes or any(size not in (None, own) for size, own in zip(sizes[1:], wanted, strict=True)):
        raise UserError(
            where,
            f"takes {'x'.join('?' if size is None else str(size) for size in sizes[1:])}",
            allowed=f"{form.line}, the data's {samples.called}",
            next_step=form.advice(
                {value.name: sizes[1:]}, "export", "data.words" if samples.names else "data.resolution"
            ),
        )


def create_callable(
    settings: ModelSettings, classes: int, form: AnyForm, problem: LearningProblem = CLASSIFICATION
) -> nn.Module:
    """Call `module:function` (in the working folder, or on the Python path) or `FILE.py:function`.

    The function gets num_classes; for images in_chans; for texts num_words and length; for several inputs the shapes by name,
    and num_words if one is a text; if samples have several targets, heads: the number of classes of each target by name.
    """
    facts = {**form.facts, **({"heads": dict(problem.heads)} if problem.heads else {})}
    where = f"model.name '{settings.name}'"
    function = UserFunction(where, settings.name)
    given = {"num_classes": classes, **facts}
    if problem.takes_any:  # the owner's function need not know the facts of the data
        given = function.taken(given)
    allowed = f"a function of {', '.join(given)} and model.options" if given else "a function of model.options"
    model = function(allowed, "check model.options", **given, **settings.options)
    if not isinstance(model, nn.Module):
        raise UserError(where, f"returns {type(model).__name__}", allowed="torch.nn.Module")
    return model


USUAL_KEYS = ("state_dict", "model_state_dict", "model", "net", "network", "module", "weights", "params")
"""Keys under which training scripts store the weights, beside the optimiser's state."""
WRAPPERS = ("module.", "_orig_mod.", "model.", "net.")
"""Prefixes that DataParallel, torch.compile and Lightning add to all names."""
COUNTER = ".num_batches_tracked"
"""A tensor of BatchNorm that older files lack; outputs do not depend on it."""
UNREADABLE = (
    SafetensorError,
    pickle.UnpicklingError,
    BadZipFile,
    struct.error,
    OSError,
    EOFError,
    RuntimeError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
)
"""Errors that file readers raise for content of another format."""


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a checkpoint into `model`, by name and shape. UserError when it cannot be read or a tensor does not fit."""
    where = f"checkpoint '{path}'"
    check_checkpoint(path)
    found = tensors_of(path)
    named = model.state_dict()
    for wrapper in WRAPPERS:
        if found and all(name.startswith(wrapper) for name in found) and not any(map(named.__contains__, found)):
            found = {name.removeprefix(wrapper): tensor for name, tensor in found.items()}
    shared = _tied(named)
    missing = [name for name in named if name not in found and not name.endswith(COUNTER)]
    missing = [name for name in missing if not any(other in found for other in shared.get(name, ()))]
    if surplus := [name for name in found if name not in named]:
        missing = missing[:1]
        got = f"'{surplus[0]}' is none of its tensors" + (f", and '{missing[0]}' is missing" if missing else "")
    elif missing:
        got = f"'{missing[0]}' is missing"
    else:
        shapes = ((name, tuple(found[name].shape), tuple(named[name].shape)) for name in found)
        got = next((f"'{name}' has shape {ours}, there {own}" for name, ours, own in shapes if ours != own), "")
    if got:
        raise UserError(where, f"does not fit the network ({got})", allowed="weights of exactly this network")
    model.load_state_dict(found, strict=False)


def tensors_of(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name. UserError if it is no checkpoint, or holds more than tensors."""
    where = f"checkpoint '{path}'"
    allowed = "a .safetensors file, or torch.save(model.state_dict(), 'FILE.pt')"
    try:
        if is_of_torch(path):
            content = torch.load(path, map_location="cpu", weights_only=True)
        else:
            content = load_file(path)
    except UNREADABLE as error:
        raise UserError(where, f"cannot be read ({shortened(error)})", allowed=allowed) from error
    found = _state_dict(content)
    if found is None:
        keys = ", ".join(map(str, list(content)[:5])) if isinstance(content, Mapping) else ""
        held = f"the keys {keys}" if isinstance(content, Mapping) else type(content).__name__
        raise UserError(where, f"has no weights (it holds {held})", allowed=allowed)
    return found


def _state_dict(content: Any) -> dict[str, Tensor] | None:
    """The tensors by name: the content itself or its value under one of the usual keys; None if neither holds only tensors."""
    if not isinstance(content, Mapping):
        return None
    if content and all(isinstance(value, Tensor) for value in content.values()):
        return {str(name): tensor for name, tensor in content.items()}
    inner = (_state_dict(content[key]) for key in USUAL_KEYS if key in content)
    return next((found for found in inner if found is not None), None)


def _tied(named: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """For each tensor with several names, name -> all its names; files keep only one of them."""
    places: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for name, tensor in named.items():
        places.setdefault((tensor.data_ptr(), tuple(tensor.shape)), []).append(name)
    return {name: names for names in places.values() if len(names) > 1 for name in names}


_DRAWING = threading.RLock()
"""Initial weights are drawn from the random generator that all threads share."""


def create(
    settings: ModelSettings, classes: int, form: AnyForm, *, seed: int = 0, problem: LearningProblem = CLASSIFICATION
) -> nn.Module | onnx.ModelProto:
    """The network for `classes` classes and samples of this form: a module, or the content of an .onnx file.

    Weights: the checkpoint, else timm's, else random ones by `seed`. A module has been run once. UserError for an unknown name,
    bad options, weights that do not fit, a missing or corrupt file, and a network that fails or gives anything but the
    problem's raw output, such as (B, classes).
    """
    if settings.kind == "onnx":
        return network_of_file(settings, classes, form, problem)
    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if settings.kind == "timm":
            own = "give a network of your own: model=callable or model=onnx"
            require(problem, "timm", f"model '{settings.name}'", own)
            form.require("timm", f"model '{settings.name}'", own)
            assert isinstance(form, SampleForm)
            from tasks.evaluation.models.timm_networks import create_timm  # timm takes a second

            where, folder = f"model '{settings.name}'", None
            model = create_timm(settings, classes, *form.shape[:2])
        else:
            where, folder = f"model.name '{settings.name}'", code_folder(settings.name)
            model = create_callable(settings, classes, form, problem)
            if settings.backbone is not None:
                form.require("backbone", f"model.backbone {settings.backbone}", "leave it out")
                assert isinstance(form, SampleForm)
                model = classifier_of(model, settings.backbone, where, classes, form)
        if problem.heads:
            join_heads(model, problem.heads)
        check_answer(where, model, classes, form, own_code=folder, problem=problem)
    if settings.checkpoint is not None:
        load_weights(model, settings.checkpoint)
    return model
