"""First weights of exits from data: the linear layer of each head, fitted to the answers of the trained network.

A head's convolution keeps its random weights; the BatchNorm statistics behind it are taken from the images. The linear layer is
a ridge regression from its inputs to the network's numbers for classes. An exit therefore gives sensible answers before any
training, without labels. Legend: N images, F numbers that the layer reads, K classes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from tailor_ir.exits.classifier import SHARES
from tailor_ir.graph import Node
from tailor_ir.spaces.kinds.exit import EXIT
from tailor_ir.subnets.branches import Branches
from tailor_ir.subnets.elastic import Elastic

PASSES = 2
"""Passes over the images: statistics, linear layers."""
RIDGES = tuple(10.0**power for power in range(-5, 3))
"""Ridges to try, as shares of the mean square of the layer's inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstExit:
    """An exit with its first weights.

    agreement: share of the holdout images for which the exit and the network name the same class.
    """

    exit: str
    agreement: float


@torch.no_grad()
def fit_exits(
    elastic: Elastic,
    images: Sequence[torch.Tensor],
    held_out: Sequence[torch.Tensor],
    advance: Callable[[], None] = lambda: None,
) -> tuple[FirstExit, ...]:
    """Give the head of every exit first weights from data; return how often each agrees with the network on holdout images.

    images, held_out: batches (B, C, H, W) of the largest SubNet's resolution. The network's own tensors stay as they are.
    advance: called once for each batch in each of the passes over `images` (`PASSES`), and for each of `held_out`.
    """
    branches = Branches(elastic, EXIT.name)
    if not branches.branches:
        return ()

    def told(batches: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        for x in batches:
            yield x
            advance()

    with elastic.evaluated():
        for name, statistic in branches.observe(told(images)).items():
            elastic.tensor(name).copy_(statistic)
        _fit_linear_layers(elastic, branches, told(images))
        return _agreements(branches, told(held_out))


def _fit_linear_layers(elastic: Elastic, branches: Branches, batches: Iterator[torch.Tensor]) -> None:
    graph = elastic.structure.graph
    producers = graph.producers()
    target = _before_shares(graph.outputs[0], producers)
    layers = {branch.choice: producers[_before_shares(branch.producer, producers)] for branch in branches.branches}
    read: dict[str, list[torch.Tensor]] = {choice: [] for choice in layers}
    wanted: list[torch.Tensor] = []
    for x in batches:
        features = branches.features(x, {target})
        wanted.append(features[target])
        for branch in branches.branches:
            read[branch.choice].append(branches.values(branch, features)[layers[branch.choice].inputs[0]])
    for choice, layer in layers.items():
        weight, bias = ridge(torch.cat(read[choice]), torch.cat(wanted))
        elastic.tensor(layer.inputs[1]).copy_(weight)
        elastic.tensor(layer.inputs[2]).copy_(bias)


def _before_shares(value: str, producers: Mapping[str, Node]) -> str:
    """The numbers for classes from which the shares are computed; a linear layer gives them."""
    while producers[value].op in SHARES:
        value = producers[value].inputs[0]
    return value


def ridge(x_NF: torch.Tensor, y_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight (K, F) and bias (K,) of the ridge regression of y on x; the ridge is chosen by generalised cross-validation.

    Source: Golub, Heath and Wahba, *Generalized cross-validation as a method for choosing a good ridge parameter* (1979).
    """
    x_NF, y_NK = x_NF.double(), y_NK.double()
    mean_F, mean_K = x_NF.mean(0), y_NK.mean(0)
    left_NR, values_R, right_RF = torch.linalg.svd(x_NF - mean_F, full_matrices=False)
    centred_NK = y_NK - mean_K
    along_RK = left_NR.T @ centred_NK
    ridges = [share * float(values_R.square().mean()) + 1e-12 for share in RIDGES]

    def left_out(ridge: float) -> float:
        kept_R = values_R.square() / (values_R.square() + ridge)
        leverage_N = left_NR.square() @ kept_R + 1 / len(x_NF)
        error_NK = (centred_NK - left_NR @ (kept_R[:, None] * along_RK)) / (1 - leverage_N).clamp_min(1e-6)[:, None]
        return float(error_NK.square().sum())

    best = min(ridges, key=left_out)
    weight_KF = ((values_R / (values_R.square() + best))[:, None] * along_RK).T @ right_RF
    return weight_KF.float(), (mean_K - weight_KF @ mean_F).float()


def _agreements(branches: Branches, batches: Iterator[torch.Tensor]) -> tuple[FirstExit, ...]:
    same = {branch.choice: 0 for branch in branches.branches}
    count = 0
    for x in batches:
        features = branches.features(x)
        count += len(x)
        for branch in branches.branches:
            classes = branches.run(branch, features).argmax(-1)
            same[branch.choice] += int((classes == features[branch.exit].argmax(-1)).sum())
    return tuple(FirstExit(exit=choice, agreement=agreed / max(1, count)) for choice, agreed in same.items())
