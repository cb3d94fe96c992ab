"""Check of a network's raw output for a learning problem, such as one number per class of the data.

The backbone of a network as a classifier: its feature maps averaged over positions, and a linear layer on all averages.

Modules and tensors of the backbone keep their names of the whole network, so that tensors can be matched by name. Legend:
B batch, C channels, H height, W width, K classes.
"""

import inspect
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tasks.base.errors import UserError
from tasks.base.own_code import USERS_ENDS, described
from tasks.data.batches import tensors
from tasks.data.problems import CLASSIFICATION, LearningProblem
from tasks.data.problems.record import AtMost
from tasks.data.samples import AnyForm, SampleForm

SAMPLES = 2  # networks may drop an axis of size 1


def check_answer(
    where: str,
    module: nn.Module,
    classes: int,
    form: AnyForm,
    *,
    own_code: str | None,
    problem: LearningProblem = CLASSIFICATION,
) -> Any:
    """Run the module once, in eval mode, and return its outputs. UserError if it fails, needs other inputs, or gives no output
    of the problem.

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
            f"cannot run on {form.called} of shape {shapes}: {described(error, own_code)}",
            next_step=f"check that it takes {takes}",
        ) from error
    finally:
        for part, training in modes:
            part.training = training
    outputs = list(answer.values()) if isinstance(answer, dict) else answer
    given = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    if not all(isinstance(tensor, torch.Tensor) for tensor in given):
        raise UserError(where, f"gives {type(answer).__name__}", allowed=problem.output_text(classes))
    check_shapes(where, [tuple(tensor.shape) for tensor in given], classes, problem, form.side)
    return answer


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
    if problem.takes_any:
        return
    if len(outputs) != 1:
        raise UserError(where, f"gives {len(outputs)} outputs", allowed=problem.output_text(classes))
    (sizes,) = outputs
    if sizes is None:
        return
    wanted = problem.output_shape(classes, resolution)
    same_axes = len(sizes) == len(wanted)
    wrong = [(size, needed) for size, needed in zip(sizes, wanted, strict=False) if not _fits(size, needed)]
    if same_axes and wrong and wrong[0][1] == classes:
        raise UserError(where, f"gives {wrong[0][0]} outputs", allowed=f"{classes}, the classes of the data")
    if wrong or not same_axes:
        raise UserError(where, f"gives a tensor {sizes_text(sizes)}", allowed=problem.output_text(classes))


def _fits(size: int | None, wanted: int | None) -> bool:
    if size is None or wanted is None:
        return True
    return size <= wanted if isinstance(wanted, AtMost) else size == wanted


def sizes_text(sizes: Sequence[int | None]) -> str:
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


CLASSIFIER = "classifier"
"""Name of the linear layer."""


class BackboneClassifier(nn.Module):
    """(B, C, H, W) images -> (B, K) logits."""

    def __init__(self, backbone: nn.Module, path: Sequence[str], widths: Sequence[int], classes: int) -> None:
        super().__init__()
        for name in reversed(path[1:]):
            backbone = nn.Sequential(OrderedDict({name: backbone}))
        self._first = path[0]
        self.add_module(path[0], backbone)
        self.add_module(CLASSIFIER, nn.Linear(sum(widths), classes))

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The logits (B, K)."""
        maps = maps_of(self.get_submodule(self._first)(x_BCHW))
        logits_BK: torch.Tensor = self.get_submodule(CLASSIFIER)(torch.cat([one.mean((2, 3)) for one in maps], 1))
        return logits_BK


def maps_of(answer: Any) -> list[torch.Tensor]:
    """The feature maps of a backbone's output: a tensor, a sequence, or a mapping by name."""
    if isinstance(answer, torch.Tensor):
        return [answer]
    return list(answer.values() if isinstance(answer, Mapping) else answer)


def classifier_of(whole: nn.Module, path: str, where: str, classes: int, form: SampleForm) -> BackboneClassifier:
    """A classifier from a part of a network, for images of a form. where: the network, for messages.

    UserError: the part does not exist, or does not give feature maps (B, C, H, W).
    """
    try:
        backbone = whole.get_submodule(path)
    except AttributeError as error:
        parts = ", ".join(name for name, _ in whole.named_children())
        raise UserError(where, f"has no part '{path}'", allowed=f"{parts}, or a part of these") from error
    where = f"{where}, part '{path}'"
    backbone.eval()
    try:
        with torch.no_grad():
            maps = maps_of(backbone(form.last_words(1)))
    except Exception as error:
        raise UserError(
            where,
            f"cannot run on images alone: {described(error, None)}",
            allowed="a part that takes the network's images",
        ) from error
    backbone.train()
    if not maps or not all(isinstance(one, torch.Tensor) and one.ndim == 4 for one in maps):
        raise UserError(where, "gives something else than feature maps", allowed="tensors (B, C, H, W)")
    return BackboneClassifier(backbone, path.split("."), [one.shape[1] for one in maps], classes)
