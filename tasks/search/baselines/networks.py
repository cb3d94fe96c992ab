"""Separate networks as baselines: SuperNets with one SubNet, so that they are evaluated and timed like all others."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

import tailor_ir
from tailor_ir import SuperNet
from tasks.base.errors import UserError
from tasks.data import Dataset
from tasks.evaluation.models import ModelSettings, create, load_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A trained network of a baseline. weights: file of the base stage; None: the weights in the .onnx file of `model`."""

    baseline: str
    name: str
    model: ModelSettings
    weights: Path | None = None


def frozen(network: Trained, train: Dataset, folder: Path) -> SuperNet:
    """The network as a SuperNet without variables, saved in a folder; files of an earlier call are replaced.

    UserError or TailorError: the file is missing, its classes or its input differ from the data's, or the network cannot be
    read.
    """
    form = train.form
    module = create(network.model, train.classes, form, problem=train.problem)
    if isinstance(module, torch.nn.Module):
        if network.weights is not None:
            load_weights(module, network.weights)
        module.eval()
    net = tailor_ir.compile(module, form.blank(1), {})
    if fault := form.fault(net.input_shapes(net.max_config)):
        raise UserError(
            f"baseline '{network.name}'",
            f"takes {fault}",
            allowed=f"{form.line}, the data's {form.called}",
        )
    partial = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(partial, ignore_errors=True)
    net.save(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return net
