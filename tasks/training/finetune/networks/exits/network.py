"""A SuperNet whose exits are trained. Legend: B batch, C channels, H height, W width, K classes."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import nn

from tailor_ir import SuperNet
from tasks.data.batches import Inputs, only
from tasks.data.images import resize
from tasks.training.finetune.losses import loss_of
from tasks.training.finetune.networks.exits.course import Course, ExitRunner
from tasks.training.finetune.networks.frozen import FrozenOriginal
from tasks.training.finetune.networks.record import Forward, Judge, Role
from tasks.training.finetune.settings import Settings


class TrainableExits:
    """A SuperNet in which all exits of a SubNet are trained in one pass: `draw` gives the SubNets of a step, the largest first.

    share: the weight of soft labels. teaching: position of the exit of the first SubNet that teaches the others; None: no exit
    teaches. original: the frozen original, if heads alone are trained.
    """

    def __init__(
        self,
        net: SuperNet,
        runner: ExitRunner,
        course: Course,
        draw: Callable[[int], list[Role]],
        judge: Judge,
        settings: Settings,
        share: float,
        teaching: Callable[[], int | None] = lambda: None,
        original: FrozenOriginal | None = None,
    ) -> None:
        self.net: SuperNet | None = net
        self.module = net.elastic
        self.runner = runner
        self.teacher: nn.Module | None = net.build(net.max_config) if settings.teacher == "base" else None
        self.judge: Judge | None = judge
        self.base_size = net.input_size(net.max_config)
        self.roles = draw
        self._net, self._course, self._settings, self._share = net, course, settings, share
        self._teaching, self._original = teaching, original

    def undecayed(self) -> Sequence[torch.Tensor]:
        """Kernel transforms, which decay would pull from the identity to zero."""
        return [matrix for matrix in self._net.kernel_matrices if matrix.requires_grad]

    def slowed(self) -> tuple[Sequence[torch.Tensor], float]:
        """Weights of earlier parts, and their factor."""
        return self._course.slowed(self._net), self._settings.exits.earlier_rate

    def begin(self, batches: Iterable[Inputs]) -> None:
        """Set up the frozen original, if there is one."""
        if self._original is not None:
            self._original.begin(batches)

    def losses(
        self, roles: Sequence[Role], x: Inputs, target: torch.Tensor, forward: Forward
    ) -> Iterator[torch.Tensor]:
        """Losses (P,) of the trained exits, for each SubNet."""
        net, exits, constant = self._net, self._course.exits, self._course.constant
        x_BCHW = only(x)
        taught_BK = self._taught(x_BCHW)
        teaching = None if taught_BK is not None or not self._share else self._teaching()
        asked = exits if teaching is None or teaching in exits else (*exits, teaching)
        for role in roles:
            pixels = resize(x_BCHW, net.input_size(role.config))
            answers = dict(zip(asked, forward(pixels, role.config, asked, constant), strict=True))
            own = None
            if teaching is not None and taught_BK is None:
                own, taught_BK = teaching, answers[teaching].detach()
            yield torch.stack(
                [
                    loss_of(answers[at], target, self._settings, None if at == own else taught_BK, self._share)
                    for at in exits
                ]
            )

    @torch.no_grad()
    def _taught(self, x_BCHW: torch.Tensor) -> torch.Tensor | None:
        """Logits (B, K) of the frozen copy; None if it does not teach."""
        if self.teacher is None or not self._share:
            return None
        taught_BK: torch.Tensor = self.teacher(resize(x_BCHW, self.base_size))
        return taught_BK
