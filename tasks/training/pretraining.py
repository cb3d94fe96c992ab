"""Two training stages: a backbone trained as a SuperNet on first data, then joined to a head and tuned on second data.

Source: AdaptiveNet (MobiCom 2023) §6. Stage "backbone" makes the SuperNet of the backbone, with the weights of the
whole SuperNet, and a classifier on it: a linear layer, fitted to the classes of images. Stage "join" puts the trained
backbone back under the head in the SuperNet of the whole network.

Legend: N images, F averages, K classes.
"""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import tailor_ir
from tailor_ir import SuperNet
from tasks.base.progress import Progress
from tasks.base.schemas.results import BackboneResult, JoinResult
from tasks.base.schemas.stored import StageResult
from tasks.data import Dataset, DataSettings, load_splits
from tasks.data.dataset import remember
from tasks.evaluation.models import ModelSettings, carry_origin, remember_origin
from tasks.evaluation.models.outputs import CLASSIFIER
from tasks.evaluation.subnets import EvaluationData, accuracy, set_own_statistics
from tasks.evaluation.subnets.evaluations import accuracies_of_ends
from tasks.training.compile import Settings as CompileSettings
from tasks.training.compile import supernet_of
from tasks.training.finetune.settings import PretrainingSettings

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


def make_backbone(
    settings: PretrainingSettings,
    compiling: CompileSettings,
    model: ModelSettings,
    space: Mapping[str, Any] | None,
    whole: Path,
    folder: Path,
    progress: Progress,
) -> StageResult:
    """Save the backbone's SuperNet in `folder`/supernet. whole: the folder of the SuperNet of the whole network.

    BatchNorm statistics come from the first data. Raises UserError or TailorError if the backbone's SuperNet cannot be made, or
    does not fit into the whole.
    """
    net, shared = cut_out(settings, compiling, model, space, tailor_ir.load(whole))
    for remark in net.remarks:
        progress.say(remark)
    splits = load_splits(settings.data)
    validation = EvaluationData(
        splits["validation"], splits["train"], recalibration_images=settings.finetune.recalibration_images
    )
    set_own_statistics(net, validation)
    fit_classifier(net, splits["train"], settings.classifier_images, progress)
    net.check_forms(where="stage backbone")
    net.save(folder / "supernet")
    remember(splits["train"], folder / "supernet")
    remember_origin(model, folder / "supernet")
    return BackboneResult(
        variables=len(net.space.variables),
        distinct=net.space.distinct,
        shared_tensors=len(shared),
        validation_accuracy=accuracy(net, net.max_config, validation).share,
    ).to_json()


def cut_out(
    settings: PretrainingSettings,
    compiling: CompileSettings,
    model: ModelSettings,
    space: Mapping[str, Any] | None,
    whole: SuperNet,
) -> tuple[SuperNet, tuple[str, ...]]:
    """The SuperNet of the backbone with the whole SuperNet's tensors, and the names of these tensors.
    The linear layer has random weights. Raises UserError or TailorError like `run`.
    """
    assert settings.backbone is not None
    net = supernet_of(compiling, settings.classifier(model), settings.data, None, space)
    return net, net.take(settings.backbone, whole)


def join(
    part: str,
    data: DataSettings,
    recalibration_images: int,
    whole: Path,
    backbone: Path,
    folder: Path,
    progress: Progress,
) -> StageResult:
    """Save the joined SuperNet in `folder`/supernet; accuracies of its largest and smallest SubNets on the second data.

    part: the path of the backbone. whole, backbone: folders of SuperNets. Weights of the backbone and its alternatives are
    those of `backbone`, bit by bit. BatchNorm statistics are computed from the second data. If the first stage did not change
    the network's own weights, its statistics stay, too, so that the largest SubNet equals the original network.
    Raises TailorError if the two SuperNets have different backbones.
    """
    net = tailor_ir.load(whole)
    original = net.structure.graph.original()
    answers = net.answers()
    before = {name: net.elastic.tensor(name).clone() for name in (*original.parameters, *original.statistics)}
    taken = net.take(part, tailor_ir.load(backbone))
    moved = any(not torch.equal(before[name], net.elastic.tensor(name)) for name in original.parameters)
    splits = load_splits(data)
    validation = EvaluationData(splits["validation"], splits["train"], recalibration_images=recalibration_images)
    if not moved:
        net.set_statistics({name: before[name] for name in original.statistics})
    set_own_statistics(net, validation, largest=moved)
    result = JoinResult(tensors=len(taken), moved=moved, **accuracies_of_ends(net, validation, splits["test"]))
    progress.say(f"joined: {len(taken)} tensors of '{part}' under the head of the whole network")
    if not moved:
        net.check_against(answers, "stage join, weights as they were")
    net.check_forms(where="stage join")
    net.save(folder / "supernet")
    remember(splits["train"], folder / "supernet")
    carry_origin(whole, folder / "supernet")
    return result.to_json()
