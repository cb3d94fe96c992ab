"""The better weights of a fine-tuned SuperNet: those after fine-tuning, or those before if it did harm."""

from collections.abc import Callable
from typing import Self

import torch

from tailor_ir import SuperNet
from tasks.base.schemas.results import BeforeTuning
from tasks.evaluation.ends import Ends, ends_on
from tasks.evaluation.subnets import EvaluationData
from tasks.evaluation.uncertainty import change
from tasks.training.finetune.checkpoint import model_tensors

GENTLER = "a lower finetune.learning_rate, or finetune.teacher=base, changes it less"


class BeforeWeights:
    """The weights of a SuperNet before fine-tuning, and the accuracies of its ends with them."""

    def __init__(self, net: SuperNet, ends: Ends) -> None:
        self._net = net
        self._tensors = {name: tensor.clone() for name, tensor in model_tensors(net.elastic).items()}
        self._ends = ends

    @classmethod
    def of(cls, net: SuperNet, data: EvaluationData) -> Self:
        """The current weights and accuracies of a SuperNet."""
        return cls(net, ends_on(net, data))

    def better(self, after: Ends, say: Callable[[str], None]) -> tuple[Ends, BeforeTuning]:
        """Keep the better weights in the SuperNet; returns the accuracies of its ends with them, and a comparison to report.

        after: accuracies with the current weights. A message reports if these made the largest SubNet worse, beyond the
        standard error of the difference; the weights are then kept whose largest and smallest SubNets are better on average.
        """
        found = change(self._ends.largest, after.largest)
        kept = found.is_loss and self._ends.mean >= after.mean
        told = BeforeTuning(
            largest_validation_accuracy=self._ends.largest.share,
            change_points=100 * found.share,
            error_points=100 * found.error,
            kept=kept,
        )
        if told.is_worse:
            say(f"{told.line}; {GENTLER}")
        if not kept:
            return after, told
        with torch.no_grad():
            for name, tensor in model_tensors(self._net.elastic).items():
                tensor.copy_(self._tensors[name])
        return self._ends, told
