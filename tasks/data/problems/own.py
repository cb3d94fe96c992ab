"""The user's own problem: outputs and targets of any form, with the user's functions of loss and score.

Legend: B batch, N samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from tasks.base.errors import UserError
from tasks.data.batches import each, rows, samples_in, tensors
from tasks.data.problems.record import LACKS_OF_PARTS, Divergence, LearningProblem, Tallied, joined
from tasks.data.torch_later import functional, torch

LACKS: Mapping[str, str] = MappingProxyType(
    {name: "targets are of your own" for name in LACKS_OF_PARTS if name != "timm"}
)


class Own(LearningProblem):
    """Sources have `labelled(indices, draws)`, and the user's `loss` and `score`, set by `fitted`.

    Both get a network's outputs as the network gives them (several outputs as a tuple, or by the names in
    `problem.outputs`) and the targets. loss: the mean () over the batch. score: of each sample (B,), in [0, 1], higher is
    better; or one number (), which is then taken of each sample alone.
    """

    name = "own"
    metric = score = "score"
    judged_by = "own"
    lacks = LACKS
    takes_any = is_mean = True
    distils = False
    """The squared error from answers is no measure of closeness for every loss; on key points it cost 80 points."""

    def __init__(self, source: Any = None, names: Sequence[str] | None = None) -> None:
        self._source, self._names = source, names

    def fitted(self, source: Any) -> Own:
        """The record with the user's functions. UserError: samples have no targets."""
        if not source.has_targets:
            raise UserError(
                "problem own",
                "samples have no targets",
                next_step="give targets, or take problem=fidelity, which needs none",
            )
        return Own(source, None if source.outputs is None else tuple(source.outputs))

    def output_text(self, classes: int) -> str:
        """Any output."""
        return "a tensor, several tensors, or tensors by name"

    def output_shape(self, classes: int, resolution: int | None) -> tuple[int | None, ...]:
        """Not asked: outputs may have any shape."""
        return (None,)

    def blank(self, images: int, resolution: int) -> Any:
        """The first sample's targets, repeated."""

        _, target = self._source.labelled(np.zeros(1, np.int64), None)
        return each(target, lambda one: one.expand(images, *one.shape[1:]).clone())

    def loss(self, outputs: Any, target: Any, label_smoothing: float) -> torch.Tensor:
        """The user's loss. Label smoothing is not applied."""
        loss = self._source.loss("loss(outputs, targets)", "check problem.loss", self._given(outputs), target)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            got = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise UserError(self._source.loss.where, f"gives {got}", allowed="one number in a tensor, the batch's mean")
        return loss.reshape(())

    def distillation(self, outputs: Any, taught: Any, divergence: Divergence) -> torch.Tensor:
        """Mean squared error from the teacher's outputs, each over its variance."""
        return imitation(outputs, taught)

    def decoded(self, outputs: Any, size: tuple[int, int]) -> Any:
        """The outputs themselves."""
        return outputs

    def counted(self, outputs: Any, target: Any) -> tuple[Any, ...]:
        """The summed loss, and the score of each sample (B,)."""

        count = samples_in(target)
        ask = partial(self._source.score, "score(outputs, targets)", "check problem.score")
        found = torch.as_tensor(ask(self._given(outputs), target))
        if found.ndim == 0:
            found = torch.stack(
                [
                    torch.as_tensor(ask(self._given(rows(outputs, n, n + 1)), rows(target, n, n + 1)))
                    for n in range(count)
                ]
            )
        scores_N = found.reshape(-1).double().cpu()
        if len(scores_N) != count or not bool(((scores_N >= 0) & (scores_N <= 1)).all()):
            got = (
                f"shape {tuple(found.shape)}" if len(scores_N) != count else f"{scores_N.min():g} to {scores_N.max():g}"
            )
            raise UserError(
                self._source.score.where,
                f"gives {got}",
                allowed=f"a number in [0, 1] for each of {count} samples, or one",
            )
        return 0.0 if self._source.loss is None else count * float(self.loss(outputs, target, 0.0)), scores_N

    def judged(self, facts: Sequence[Sequence[Any]]) -> Tallied:
        """The mean score, each score, and the mean loss."""
        scores_N = joined(facts[1])
        return Tallied(float(scores_N.mean()), sum(facts[0]) / len(scores_N), scores_N.astype(np.float16))

    def _given(self, outputs: Any) -> Any:
        """Outputs by their names, if they have any."""
        if self._names is None or isinstance(outputs, Mapping):
            return outputs
        values = outputs if isinstance(outputs, tuple) else (outputs,)
        if len(values) != len(self._names):
            raise UserError(
                "problem.outputs", f"{len(self._names)} names", allowed=f"{len(values)}, as the network's outputs"
            )
        return dict(zip(self._names, values, strict=True))


OWN = Own()


def imitation(outputs: Any, taught: Any) -> torch.Tensor:
    """The mean over outputs of the mean squared error from a teacher's output over its variance."""

    losses = []
    for output, wanted in zip(tensors(outputs), tensors(taught), strict=True):
        output, wanted = output.float(), wanted.float()
        error = functional.mse_loss(output, wanted)
        losses.append(error / wanted.var(correction=0).clamp_min(1e-12))
    return torch.stack(losses).mean()
