"""Inputs of a network: one tensor, or one line that says what is wrong."""

import inspect

import torch
from torch import nn

from tailor_ir.errors import ImportFailed

ALLOWED = "allowed: one tensor (1, C, H, W)"
WITHOUT_DEFAULT = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def check_example(example: object) -> torch.Tensor:
    """The example input. ImportFailed for anything but one tensor with a batch axis."""
    if isinstance(example, tuple | list | dict):
        raise ImportFailed(f"example input: {len(example)} inputs in a {type(example).__name__}; {ALLOWED}")
    if not isinstance(example, torch.Tensor):
        raise ImportFailed(f"example input: got {type(example).__name__}; {ALLOWED}")
    if not example.ndim or not example.numel():
        raise ImportFailed(f"example input: a tensor of shape {tuple(example.shape)}; {ALLOWED}")
    return example


def check_signature(module: nn.Module) -> None:
    """ImportFailed for a module that cannot be called with one tensor."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # compiled: running it says what is missing
        return
    needed = [p.name for p in parameters if p.kind in WITHOUT_DEFAULT and p.default is p.empty]
    if len(needed) > 1:
        raise ImportFailed(
            f"network '{type(module).__name__}': {len(needed)} inputs ({', '.join(needed)}); allowed: one; give the others "
            "fixed values, in a module around it"
        )
