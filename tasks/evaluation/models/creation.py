"""Creation of networks of all kinds, with one test run: from ONNX files, Python functions, and checkpoints.

Checkpoints are .safetensors files or torch files. Only tensors are read from them, and no code is run.

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

from tasks.base.errors import UserError, shortened
from tasks.base.own_code import UserFunction, code_folder
from tasks.data.problems import CLASSIFICATION, LearningProblem, require
from tasks.data.samples import AnyForm, SampleForm
from tasks.evaluation.models.files import network_of_file
from tasks.evaluation.models.outputs import check_answer, classifier_of
from tasks.evaluation.models.settings import ModelSettings, check_checkpoint, is_of_torch

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
