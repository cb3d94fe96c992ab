"""A SuperNet whose SubNets are trained one after the other. Legend: B batch, C channels, H height, W width, K classes."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import nn

from tailor_ir import SuperNet
from tasks.data.batches import Inputs, answers
from tasks.data.images import resize
from tasks.data.problems import CLASSIFICATION, LearningProblem
from tasks.training.finetune.losses import loss_of
from tasks.training.finetune.networks.frozen import FrozenOriginal
from tasks.training.finetune.networks.record import Forward, Judge, Role
from tasks.training.finetune.settings import Settings


class TrainableSuperNet:
    """A SuperNet in training: `draw` gives the SubNets of a step, the teacher first.

    share: the weight of soft labels. original: the frozen original, if only alternatives are trained; it teaches if there is no
    other teacher.
    """

    def __init__(
        self,
        net: SuperNet,
        draw: Callable[[int], list[Role]],
        teacher: nn.Module | None,
        settings: Settings,
        share: float,
        original: FrozenOriginal | None = None,
        problem: LearningProblem = CLASSIFICATION,
    ) -> None:
        self.net = net
        self.module = self.runner = net.elastic
        self.teacher = teacher
        self.judge: Judge | None = None
        self.base_size = net.input_size(net.max_config)
        self.roles = draw
        self._settings, self._share = settings, share
        self._original, self._problem = original, problem

    def undecayed(self) -> Sequence[torch.Tensor]:
        """Kernel transforms, which decay would pull from the identity to zero."""
        return [matrix for matrix in self.net.kernel_matrices if matrix.requires_grad]

    def slowed(self) -> tuple[Sequence[torch.Tensor], float]:
        """Empty: all parameters have the same learning rate."""
        return (), 1.0

    def begin(self, batches: Iterable[Inputs]) -> None:
        """Set up the frozen original, if there is one."""
        if self._original is not None:
            self._original.begin(batches)

    def losses(
        self, roles: Sequence[Role], x_BCHW: Inputs, target: torch.Tensor, forward: Forward
    ) -> Iterator[torch.Tensor]:
        """The loss of each SubNet; without a frozen teacher the first SubNet teaches the others."""
        taught = self._taught(x_BCHW)
        for role in roles:
            self.net.elastic.activate(role.config)
            outputs = answers(forward, resize(x_BCHW, self.net.input_size(role.config)))
            own = taught if role.distilled else None
            yield loss_of(outputs, target, self._settings, own, self._share, self._problem)
            if taught is None:
                taught = outputs.detach()

    @torch.no_grad()
    def _taught(self, x_BCHW: Inputs) -> torch.Tensor | None:
        """Raw outputs of the frozen teacher, e.g. logits (B, K); None without a teacher or if `share` is 0."""
        if not self._share:
            return None
        x_BCHW = resize(x_BCHW, self.base_size)
        if self.teacher is not None:
            return answers(self.teacher, x_BCHW)
        return None if self._original is None else self._original.logits(x_BCHW)
