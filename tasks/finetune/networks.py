"""Networks in training. A plain network is a SuperNet with one SubNet, itself."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import nn

import tailor_ir
from tasks.data import Dataset
from tasks.finetune.job import Job
from tasks.finetune.sampling import Role, sample_roles
from tasks.models import create, load_weights


class Trainable(Protocol):
    """A module whose forward pass is that of the SubNet activated last."""

    module: nn.Module
    teacher: nn.Module | None
    """A frozen network that teaches all SubNets, and is not trained."""
    base_size: tuple[int, int]
    """(height, width) of the largest SubNet's input, and of the teacher's."""

    def undecayed(self) -> Sequence[torch.Tensor]:
        """The matrices that weight decay is not for; asked for once the module is on its device."""
        ...

    def roles(self, step: int) -> list[Role]:
        """The SubNets that `step` trains, the teacher first."""
        ...

    def activate(self, role: Role) -> tuple[int, int]:
        """Make `module` compute this SubNet; its input's (height, width)."""
        ...


class TrainableNetwork:
    """One network with one input size."""

    def __init__(self, module: nn.Module, size: tuple[int, int]) -> None:
        self.module = module
        self.teacher: nn.Module | None = None
        self.base_size = size

    def undecayed(self) -> Sequence[torch.Tensor]:
        """None: every matrix decays."""
        return ()

    def roles(self, step: int) -> list[Role]:
        """Itself."""
        return [Role("network", {}, False)]

    def activate(self, role: Role) -> tuple[int, int]:
        """Do nothing: the network is its only SubNet."""
        return self.base_size


class TrainableSuperNet:
    """A SuperNet and how its SubNets are drawn."""

    def __init__(self, net: Any, draw: Callable[[int], list[Role]], teacher: nn.Module | None) -> None:
        self.module = net.elastic
        self.teacher = teacher
        self.base_size = net.input_shape(net.max_config)[-2:]
        self._net = net
        self.roles = draw

    def undecayed(self) -> Sequence[torch.Tensor]:
        """Parameters without weight decay: kernel transforms, which decay would pull from the identity to zero."""
        matrices: Sequence[torch.Tensor] = self._net.kernel_matrices
        return matrices

    def activate(self, role: Role) -> tuple[int, int]:
        """Activate the role's SubNet."""
        self._net.elastic.activate(role.config)
        height, width = self._net.input_shape(role.config)[-2:]
        return height, width


def open_network(job: Job, dataset: Dataset) -> Trainable:
    """The network of a job, with its initial weights."""
    if job.finetune is not None:
        settings = job.finetune
        assert job.supernet is not None
        net = tailor_ir.load(job.supernet)
        teacher = net.build(net.max_config) if settings.teacher == "base" else None
        return TrainableSuperNet(net, lambda step: sample_roles(net, settings, step, job.total_steps), teacher)
    assert job.model is not None
    assert job.initial is not None
    resolution = job.data.resolution
    untrained = job.model.model_copy(update={"pretrained": False, "checkpoint": None})
    module = create(untrained, dataset.classes, dataset.channels, resolution)
    assert isinstance(module, nn.Module)
    load_weights(module, job.initial)
    return TrainableNetwork(module, (resolution, resolution))
