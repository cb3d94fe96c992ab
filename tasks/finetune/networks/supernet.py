"""A SuperNet in training: its SubNets, one after the other. Legend: B batch, C channels, H height, W width, K classes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

from tailor_ir import Config, SuperNet
from tailor_ir.subnets.branches import Features
from tasks.data.images import resize
from tasks.finetune.losses import distance, loss_of
from tasks.finetune.networks.frozen import FrozenOriginal
from tasks.finetune.networks.record import Forward, Judge, Role
from tasks.finetune.settings import Settings


class TrainableSuperNet:
    """A SuperNet, and how its SubNets are drawn: `draw` gives those of a step, the teacher first.

    original: where the alternatives alone are trained; it teaches where no other teacher does.
    """

    def __init__(
        self,
        net: SuperNet,
        draw: Callable[[int], list[Role]],
        teacher: nn.Module | None,
        settings: Settings,
        original: FrozenOriginal | None = None,
    ) -> None:
        self.net = net
        self.module = net.elastic
        self.runner = WatchedRunner(net, original)
        self.teacher = teacher
        self.judge: Judge | None = None
        self.base_size = input_size(net, net.max_config)
        self.roles = draw
        self._settings = settings
        self._original = original

    def undecayed(self) -> Sequence[torch.Tensor]:
        """Kernel transforms, which decay would pull from the identity to zero."""
        return [matrix for matrix in self.net.kernel_matrices if matrix.requires_grad]

    def slowed(self) -> tuple[Sequence[torch.Tensor], float]:
        """None: all is trained alike."""
        return (), 1.0

    def begin(self, batches: Iterable[torch.Tensor]) -> None:
        """Take what the frozen original needs."""
        if self._original is not None:
            self._original.begin(batches)

    def losses(
        self, roles: Sequence[Role], x_BCHW: torch.Tensor, target: torch.Tensor, forward: Forward
    ) -> Iterator[torch.Tensor]:
        """That of each SubNet; without a frozen teacher the first one teaches the others."""
        teacher_BK, features = self._taught(x_BCHW)
        for role in roles:
            self.net.elastic.activate(role.config)
            logits_BK, seen = forward(resize(x_BCHW, input_size(self.net, role.config)))
            loss = loss_of(logits_BK, target, teacher_BK if role.distilled else None, self._settings)
            yield loss + self._hinted(seen, features)
            if teacher_BK is None:
                teacher_BK = logits_BK.detach()

    def _hinted(self, seen: Mapping[str, torch.Tensor], features: Features) -> torch.Tensor | float:
        """The mean distance of what alternatives give from the network's own values at their places, by its weight."""
        if self._original is None or not features:
            return 0.0
        pairs = [(value, features[self._original.hints[name]]) for name, value in seen.items()]
        alike = [distance(found, wanted) for found, wanted in pairs if found.shape == wanted.shape]
        return self._settings.hints * torch.stack(alike).mean() if alike else 0.0

    @torch.no_grad()
    def _taught(self, x_BCHW: torch.Tensor) -> tuple[torch.Tensor | None, Features]:
        """Logits of the frozen teacher, (B, K), and its values where alternatives end; None and none without one."""
        if self.teacher is not None:
            taught_BK: torch.Tensor = self.teacher(resize(x_BCHW, self.base_size))
            return taught_BK, {}
        if self._original is None or not self._settings.distillation:
            return None, {}
        return self._original.features(resize(x_BCHW, self.base_size))


class WatchedRunner(nn.Module):
    """Runs the active SubNet: its answers, and where the original is frozen what its alternatives give."""

    def __init__(self, net: SuperNet, original: FrozenOriginal | None) -> None:
        super().__init__()
        self.elastic, self._original = net.elastic, original

    def forward(self, x_BCHW: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Logits (B, K), and values by name."""
        return self.elastic.watched(x_BCHW, () if self._original is None else self._original.hints)


def input_size(net: SuperNet, config: Config) -> tuple[int, int]:
    """(height, width) of a SubNet's input."""
    height, width = net.input_shape(config)[-2:]
    return height, width
