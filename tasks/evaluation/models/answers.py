"""Check of a network's raw output for a learning problem, such as one number per class of the data."""

import inspect
from collections.abc import Sequence

import torch
from torch import nn

from tasks.base.errors import UserError
from tasks.data.batches import tensors
from tasks.data.problems import CLASSIFICATION, LearningProblem
from tasks.data.problems.record import AtMost
from tasks.data.samples import AnyForm
from tasks.evaluation.models.tracebacks import USERS_ENDS, told

SAMPLES = 2  # networks may drop an axis of size 1


def check_answer(
    where: str,
    module: nn.Module,
    classes: int,
    form: AnyForm,
    *,
    own_code: str | None,
    problem: LearningProblem = CLASSIFICATION,
) -> None:
    """Run the module once, in eval mode. UserError if it fails, needs other inputs, or gives no output of the problem.

    form: form of the samples that it takes. own_code: folder of the user's code, so that errors name its lines; None: not the
    user's code.
    """
    _check_inputs(where, module, form)
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            answer = module(*tensors(form.last_words(SAMPLES)))
    except USERS_ENDS as error:
        shapes = " and ".join(str(tuple(one.shape)) for one in tensors(form.last_words(SAMPLES)))
        square = f"{form.line}: images of the data are square, of data.resolution and data.channels"
        takes = " and ".join(form.facts) if form.names or form.words else square
        raise UserError(
            where,
            f"cannot run on {form.called} of shape {shapes}: {told(error, own_code)}",
            next_step=f"check that it takes {takes}",
        ) from error
    finally:
        for part, training in modes:
            part.training = training
    outputs = list(answer.values()) if isinstance(answer, dict) else answer
    given = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    if not all(isinstance(tensor, torch.Tensor) for tensor in given):
        raise UserError(where, f"gives {type(answer).__name__}", allowed=problem.output_told(classes))
    check_shapes(where, [tuple(tensor.shape) for tensor in given], classes, problem, form.size[-1])


def check_shapes(
    where: str,
    outputs: Sequence[tuple[int | None, ...] | None],
    classes: int,
    problem: LearningProblem = CLASSIFICATION,
    resolution: int | None = None,
) -> None:
    """Raise UserError unless the outputs are one raw output of the problem. None: an unknown size or shape.

    resolution: rows and columns of the images that the network takes.
    """
    if len(outputs) != 1:
        raise UserError(where, f"gives {len(outputs)} outputs", allowed=problem.output_told(classes))
    (sizes,) = outputs
    if sizes is None:
        return
    wanted = problem.output_shape(classes, resolution)
    same_axes = len(sizes) == len(wanted)
    wrong = [pair for pair in zip(sizes, wanted, strict=False) if not _fits(*pair)]
    if same_axes and wrong and wrong[0][1] == classes:
        raise UserError(where, f"gives {wrong[0][0]} outputs", allowed=f"{classes}, the classes of the data")
    if wrong or not same_axes:
        raise UserError(where, f"gives a tensor {sizes_told(sizes)}", allowed=problem.output_told(classes))


def _fits(size: int | None, wanted: int | None) -> bool:
    if size is None or wanted is None:
        return True
    return size <= wanted if isinstance(wanted, AtMost) else size == wanted


def sizes_told(sizes: Sequence[int | None]) -> str:
    """The sizes of a tensor for messages; None: an unknown size."""
    return f"({', '.join('?' if size is None else str(size) for size in sizes)})"


def _check_inputs(where: str, module: nn.Module, form: AnyForm) -> None:
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # compiled: running it reports missing inputs
        return
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p.name for p in parameters if p.kind in positional and p.default is p.empty]
    if form.names and tuple(needed) != form.names:
        allowed = f"{', '.join(form.names)}: those of the data, by these names and in this order"
        raise UserError(where, f"inputs {', '.join(needed) or 'without names'}", allowed=allowed)
    if not form.names and len(needed) > 1:
        raise UserError(where, f"{len(needed)} inputs ({', '.join(needed)})", allowed=f"one, of {form.called}")
