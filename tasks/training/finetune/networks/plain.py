"""A plain network in training: a SuperNet with one SubNet, itself."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from tailor_ir import SuperNet
from tasks.data.batches import Inputs, answers
from tasks.data.images import resize
from tasks.data.problems import CLASSIFICATION, LearningProblem
from tasks.data.samples import Size
from tasks.training.finetune.losses import loss_of
from tasks.training.finetune.networks.record import Forward, Judge, Role
from tasks.training.finetune.settings import TrainSettings


class TrainableNetwork:
    """One network with one input size."""

    def __init__(
        self,
        module: nn.Module,
        size: Size,
        settings: TrainSettings,
        problem: LearningProblem = CLASSIFICATION,
    ) -> None:
        self.module = self.runner = module
        self.net: SuperNet | None = None
        self.teacher: nn.Module | None = None
        self.judge: Judge | None = None
        self.base_size = size
        self._settings, self._problem = settings, problem

    def undecayed(self) -> Sequence[torch.Tensor]:
        """Empty: every matrix decays."""
        return ()

    def slowed(self) -> tuple[Sequence[torch.Tensor], float]:
        """Empty: all parameters have the same learning rate."""
        return (), 1.0

    def begin(self, batches: Iterable[Inputs]) -> None:
        """Do nothing: the network is used as it was made."""

    def roles(self, step: int) -> list[Role]:
        """One role, the network itself."""
        return [Role("network", {}, False)]

    def losses(
        self, roles: Sequence[Role], x_BCHW: Inputs, target: torch.Tensor, forward: Forward
    ) -> Iterator[torch.Tensor]:
        """The loss from the targets."""
        outputs = answers(forward, resize(x_BCHW, self.base_size))
        yield loss_of(outputs, target, self._settings, problem=self._problem)
