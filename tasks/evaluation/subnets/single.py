"""Single networks: their answers, accuracy, and BatchNorm statistics.

Legend: B batch, C channels, H height, W width, K classes.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from tailor_ir import Config, Statistics
from tasks.data import Batch
from tasks.data.batches import Inputs, answers
from tasks.data.problems import CLASSIFICATION, LearningProblem, Tallied
from tasks.data.samples import Size
from tasks.evaluation.subnets.images import EvaluationData
from tasks.evaluation.subnets.record import Accuracy


@torch.no_grad()
def tallied(
    forward: Callable[..., torch.Tensor],
    batches: Iterable[Batch],
    problem: LearningProblem = CLASSIFICATION,
) -> Tallied:
    """Tally of the answers of `forward` (x_BCHW, or each of several inputs -> raw outputs, such as logits_BK)."""
    tally = problem.tally()
    for x_BCHW, target in batches:
        tally.add(answers(forward, x_BCHW), target)
    return tally.found()


def count_correct(
    forward: Callable[..., torch.Tensor],
    batches: Iterable[Batch],
    problem: LearningProblem = CLASSIFICATION,
) -> Accuracy:
    """Accuracy and loss of `forward`, as `tallied`."""
    return Accuracy.tallied(tallied(forward, batches, problem))


def evaluated(forward: Callable[..., torch.Tensor], size: Size, data: EvaluationData) -> Accuracy:
    """Accuracy of `forward` on the images of `data` in a size."""
    found = tallied(forward, data.batches(size), data.problem)
    return Accuracy.tallied(found, confusions=data.tells_confusions)


def known_statistics(net: Any, config: Config, data: EvaluationData) -> Statistics | None:
    """BatchNorm statistics of a SubNet if they are known without training images; else None."""
    own: Statistics | None = net.own_statistics(config)
    return data.known.get(net.elastic, net.space.digest(config)) if own is None else own


def statistics_of(net: Any, config: Config, data: EvaluationData) -> Statistics:
    """BatchNorm statistics of one SubNet, for evaluation and export: from the training images, unless they are known.

    Those of the largest SubNet, and of its exits, are known: they are stored, and are the network's own until a training
    replaces them.
    """
    digest = net.space.digest(config)
    statistics = known_statistics(net, config, data)
    if statistics is None:
        statistics = net.recalibrate(config, data.calibration(net.input_size(config)))
        data.known.put(net.elastic, digest, statistics)
    return statistics


def accuracy(net: Any, config: Config, data: EvaluationData) -> Accuracy:
    """Accuracy of one SubNet with recalibrated BatchNorm; the stored statistics do not change."""
    net.elastic.activate(config, statistics_of(net, config, data))
    net.elastic.eval()
    return evaluated(net.elastic, net.input_size(config), data)


def recalibrate_module(module: nn.Module, batches: Iterable[Inputs]) -> None:
    """Set BatchNorm statistics of an ordinary network to the mean over `batches`; leaves it in eval mode."""
    torch.optim.swa_utils.update_bn(((x,) for x in batches), _OfBatch(module))  # update_bn takes the first of a tuple
    module.eval()


class _OfBatch(nn.Module):
    """A network that takes all inputs of a batch together."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Inputs) -> torch.Tensor:
        """The network's answers."""
        return answers(self.network, x)
