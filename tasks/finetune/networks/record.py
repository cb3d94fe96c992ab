"""What a network in training is to the loop. Legend: B batch, C channels, H height, W width, K classes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from tailor_ir import Config, SuperNet

Forward = Callable[..., Any]
"""The forward pass of `runner`, in DistributedDataParallel."""


@dataclass(frozen=True, slots=True)
class Role:
    """What has a loss of its own in a step: its name in the history, the config of its SubNet, whether it has a teacher.

    branches: positions of alternatives that are trained by themselves.
    """

    name: str
    config: Config
    distilled: bool
    branches: tuple[int, ...] = ()


class Trainable(Protocol):
    """A network, what each step trains of it, and the losses."""

    @property
    def module(self) -> nn.Module:
        """The network. Its parameters that need gradients are trained; its tensors are what a checkpoint holds."""
        ...

    @property
    def net(self) -> SuperNet | None:
        """The SuperNet whose SubNets are trained; None for a plain network."""
        ...

    @property
    def runner(self) -> nn.Module:
        """The module whose forward pass `losses` calls; the network itself, or one that holds it."""
        ...

    @property
    def teacher(self) -> nn.Module | None:
        """A frozen network that teaches all SubNets, and is not trained."""
        ...

    @property
    def base_size(self) -> tuple[int, int]:
        """(height, width) of the largest SubNet's input, and of the teacher's."""
        ...

    def undecayed(self) -> Sequence[torch.Tensor]:
        """The trained matrices that weight decay is not for; asked for once the module is on its device."""
        ...

    def begin(self, batches: Iterable[torch.Tensor]) -> None:
        """Called before the first step, with the weights there. batches: training images (B, C, H, W) at `base_size`."""
        ...

    def roles(self, step: int) -> list[Role]:
        """What `step` trains, in the order of its losses."""
        ...

    def losses(
        self, roles: Sequence[Role], x_BCHW: torch.Tensor, target: torch.Tensor, forward: Forward
    ) -> Iterator[torch.Tensor]:
        """The loss of each role on a micro-batch. One is computed when it is asked for, so that passes go one by one.

        `x_BCHW`: at `base_size`. `target`: classes (B,), or soft labels (B, K).
        """
        ...
