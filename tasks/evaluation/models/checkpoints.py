"""Tensors of a checkpoint: a .safetensors file, or a torch file. Only tensors are read, and no code is run."""

import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from tasks.base.errors import UserError, shortened
from tasks.evaluation.models.refusals import check_checkpoint, is_of_torch

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
        raise UserError(where, f"has no weights (it holds {_told(content)})", allowed=allowed)
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


def _told(content: Any) -> str:
    return (
        f"the keys {', '.join(map(str, list(content)[:5]))}" if isinstance(content, Mapping) else type(content).__name__
    )
