"""The linear layer over a backbone, fitted to the classes of images. Legend: N images, F averages, K classes."""

from itertools import islice

import torch
from torch import nn
from torch.nn import functional

from tailor_ir import SuperNet
from tasks.base.progress import Progress
from tasks.data import Dataset
from tasks.evaluation.models.backbone import CLASSIFIER

BATCH, SEED = 64, 0
ITERATIONS, DECAY = 100, 1e-4
"""Largest number of iterations of L-BFGS; weight of the squared weights in the loss."""


@torch.no_grad()
def fit_classifier(net: SuperNet, train: Dataset, images: int, progress: Progress) -> None:
    """Fit the linear layer to this many training images; the backbone of the largest SubNet stays unchanged."""
    (layer,) = (node for node in net.structure.graph if f"{CLASSIFIER}.weight" in node.inputs)
    read, weight, bias = layer.inputs
    net.elastic.activate(net.max_config)
    net.elastic.eval()
    batch = min(BATCH, images, len(train))
    count = min(images, len(train)) // batch
    x, y = [], []
    with progress.bar("classifier on the backbone", count) as bar:
        for x_BCHW, y_B in islice(train.batches(batch, seed=SEED, augment=False), count):
            x.append(net.elastic.watched([x_BCHW], [read])[1][read])
            y.append(y_B)
            bar.advance()
    weight_KF, bias_K = logistic(torch.cat(x), torch.cat(y), train.classes)
    net.elastic.tensor(weight).copy_(weight_KF)
    net.elastic.tensor(bias).copy_(bias_K)


@torch.enable_grad()
def logistic(x_NF: torch.Tensor, y_N: torch.Tensor, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight (K, F) and bias (K,) of a logistic regression of classes on averages, which are standardised for the fit."""
    mean_F, deviation_F = x_NF.mean(0), x_NF.std(0, correction=0).clamp_min(1e-6)
    scaled_NF = (x_NF - mean_F) / deviation_F
    layer = nn.Linear(x_NF.shape[1], classes)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    optimiser = torch.optim.LBFGS(layer.parameters(), max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        found = functional.cross_entropy(layer(scaled_NF), y_N) + DECAY * layer.weight.square().sum()
        found.backward()
        return found

    optimiser.step(loss)
    weight_KF = (layer.weight / deviation_F).detach()
    return weight_KF, layer.bias.detach() - weight_KF @ mean_F
