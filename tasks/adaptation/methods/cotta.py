"""CoTTA. Legend: B batch, K classes."""

import copy

import numpy as np
import torch

from tasks.adaptation.methods.record import OptimiserSteps, forward
from tasks.adaptation.settings import MethodSettings
from tasks.data.images import DRAWS, jitter
from tasks.evaluation.adapted import AdaptiveSubnet

NOISE = 0.005
"""Standard deviation of the noise of views, in deviations of the data."""


class Cotta:
    """A student learns from a teacher, its own mean over time; all weights adapt, and a few return to the source each step.

    Loss: −Σ_c q_c log p_c, p the student's and q the teacher's answer. Teacher ← α teacher + (1 − α) student. If the source is
    uncertain about a batch, q is the teacher's mean over views of each image (shifted, rotated, scaled, with noise; not
    mirrored, since a mirrored character is a different one). Afterwards each of the student's weights is reset to the source's
    with a small probability. Answers are q. Source: Wang et al., CVPR 2022, eq. 1 to 8. `subnet` is the teacher.
    """

    def __init__(self, subnet: AdaptiveSubnet, settings: MethodSettings) -> None:
        self.subnet, self._settings = subnet, settings
        self.student = copy.deepcopy(subnet)
        self._anchor = copy.deepcopy(subnet)
        self._steps = OptimiserSteps(self.student.everything(), settings)
        self._teacher = list(subnet.network.parameters())
        self._origin = [parameter.detach().clone() for parameter in self._teacher]
        self._start()

    def _start(self) -> None:
        self._rng = np.random.default_rng(self._settings.seed)
        self._generator = torch.Generator().manual_seed(self._settings.seed)

    def adapt(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits (B, K): logarithms of the teacher's answers."""
        with torch.no_grad():
            q_BK = self._taught(x_BCHW)
        log_p_BK = forward(self.student, x_BCHW, self._settings).log_softmax(1)
        self._steps.take(-(q_BK * log_p_BK).sum(1).mean())
        self._follow()
        self._forget()
        return q_BK.clamp(min=torch.finfo(q_BK.dtype).tiny).log()

    def _taught(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """(B, K) probabilities."""
        plain_BK = forward(self.subnet, x_BCHW, self._settings).softmax(1)
        sure_B = forward(self._anchor, x_BCHW, self._settings, keeps=False).softmax(1).amax(1)
        if sure_B.mean() >= self._settings.sure:
            return plain_BK
        views = [
            forward(self.subnet, self._view(x_BCHW), self._settings, keeps=False).softmax(1)
            for _ in range(self._settings.views)
        ]
        return torch.stack(views).mean(0)

    def _view(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        moved = jitter(x_BCHW, self._rng.random((len(x_BCHW), DRAWS), dtype=np.float32))
        return moved + NOISE * torch.randn(x_BCHW.shape, generator=self._generator)

    @torch.no_grad()
    def _follow(self) -> None:
        for teacher, student in zip(self._teacher, self._steps.parameters, strict=True):
            teacher.lerp_(student, 1 - self._settings.teacher_share)

    @torch.no_grad()
    def _forget(self) -> None:
        for student, origin in zip(self._steps.parameters, self._origin, strict=True):
            back = torch.rand(origin.shape, generator=self._generator) < self._settings.restored_share
            student.copy_(torch.where(back, origin, student))

    def reset(self) -> None:
        """Go back to the source."""
        self.subnet.reset()
        self.student.reset()
        self._steps.reset()
        self._start()
