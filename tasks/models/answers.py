"""The outputs that a network must have: one number for each class of the data, for each image."""

import inspect
from collections.abc import Sequence

import torch
from torch import nn

from tasks.errors import UserError
from tasks.models.tracebacks import told

IMAGES = 2  # networks may drop an axis of 1


def check_answer(
    where: str, module: nn.Module, classes: int, shape: tuple[int, int, int], *, own_code: str | None
) -> None:
    """Run the module once, in eval mode. UserError when it fails, wants several inputs, or gives no (B, classes).

    shape: (C, H, W). own_code: a folder of the user's code, whose lines are named; None: not the user's.
    """
    _check_inputs(where, module)
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            answer = module(torch.zeros(IMAGES, *shape))
    except Exception as error:
        size = ", ".join(map(str, (IMAGES, *shape)))
        raise UserError(
            where, f"cannot run on images of shape ({size}): {told(error, own_code)}", next_step="check data.resolution"
        ) from error
    finally:
        for part, training in modes:
            part.training = training
    outputs = list(answer.values()) if isinstance(answer, dict) else answer
    tensors = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise UserError(where, f"gives {type(answer).__name__}", allowed=_allowed(classes))
    check_shapes(where, [tuple(tensor.shape) for tensor in tensors], classes)


def check_shapes(where: str, outputs: Sequence[tuple[int | None, ...] | None], classes: int) -> None:
    """UserError for outputs that are not one of (B, classes). None: a size or a shape that is not known."""
    if len(outputs) != 1:
        raise UserError(where, f"gives {len(outputs)} outputs", allowed=_allowed(classes))
    (sizes,) = outputs
    if sizes is None:
        return
    if len(sizes) != 2:
        got = ", ".join("?" if size is None else str(size) for size in sizes)
        raise UserError(where, f"gives a tensor ({got})", allowed=_allowed(classes))
    if sizes[1] not in (None, classes):
        raise UserError(where, f"gives {sizes[1]} outputs", allowed=f"{classes}, the classes of the data")


def _allowed(classes: int) -> str:
    return f"one tensor (B, {classes}): a number for each class of the data; other tasks than classification are not trained"


def _check_inputs(where: str, module: nn.Module) -> None:
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # compiled: running it says what is missing
        return
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p.name for p in parameters if p.kind in positional and p.default is p.empty]
    if len(needed) > 1:
        raise UserError(where, f"{len(needed)} inputs ({', '.join(needed)})", allowed="one, of images")
