"""What a network in training is to the loop. Legend: B batch, C channels, H height, W width, K classes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from tailor_ir import Config, SuperNet
from tasks.data.batches import Inputs
from tasks.data.samples import Size
from tasks.evaluation.subnets import EvaluationData

Forward = Callable[..., Any]
"""The forward pass of `runner`, in DistributedDataParallel."""


@dataclass(frozen=True, slots=True)
class Role:
    """What has a loss of its own in a step: its name in the history, the config of its SubNet, whether it has a teacher.

    branches: positions of alternatives that are trained by themselves. parts: names and weights of the losses (P,) that its
    loss is the sum of; () where it is a single one.
    """

    name: str
    config: Config
    distilled: bool
    branches: tuple[int, ...] = ()
    parts: tuple[tuple[str, float], ...] = ()

    def total(self, losses: torch.Tensor) -> torch.Tensor:
        """Its loss (), from the losses of its parts (P,), or from itself ()."""
        return losses @ losses.new_tensor([weight for _, weight in self.parts]) if self.parts else losses


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a judge has found after a step.

    accuracies: for the history, by name. ended: the phase is over before its last step. changed: other parameters are trained
    from now on, so that the optimiser begins anew.
    """

    accuracies: dict[str, float]
    ended: bool = False
    changed: bool = False


class Judge(Protocol):
    """Evaluates a network in training on validation images. All ranks come to the same verdict."""

    def begin(self, data: EvaluationData, move: Callable[[], None]) -> None:
        """Judge the weights that a phase begins with. move: called for each batch of images."""
        ...

    def go_on(self, data: EvaluationData, state: Mapping[str, Any], kept: Mapping[str, torch.Tensor]) -> None:
        """Go on in the midst of a phase, with what `state` and `kept` gave when its checkpoint was written."""
        ...

    @property
    def is_due(self) -> Callable[[int], bool]:
        """Whether it judges after a step."""
        ...

    def judge(self, step: int, move: Callable[[], None]) -> Verdict:
        """Judge the weights after a step; it may put others in their place."""
        ...

    def state(self) -> dict[str, Any]:
        """What it remembers, as JSON."""
        ...

    @property
    def kept(self) -> Mapping[str, torch.Tensor]:
        """The tensors that it may put back, by name."""
        ...


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
    def judge(self) -> Judge | None:
        """What looks at the network now and then, and may change what is trained; None: nothing does."""
        ...

    @property
    def base_size(self) -> Size:
        """(height, width), or the length, of the largest SubNet's input, and of the teacher's."""
        ...

    def undecayed(self) -> Sequence[torch.Tensor]:
        """The trained matrices that weight decay is not for; asked for once the module is on its device."""
        ...

    def slowed(self) -> tuple[Sequence[torch.Tensor], float]:
        """Trained tensors with a lower learning rate, and its factor; asked for once the module is on its device."""
        ...

    def begin(self, batches: Iterable[Inputs]) -> None:
        """Called before the first step, with the weights there. batches: training images (B, C, H, W) at `base_size`."""
        ...

    def roles(self, step: int) -> list[Role]:
        """What `step` trains, in the order of its losses."""
        ...

    def losses(
        self, roles: Sequence[Role], x_BCHW: Inputs, target: torch.Tensor, forward: Forward
    ) -> Iterator[torch.Tensor]:
        """The loss of each role on a micro-batch, () or that of each of its parts (P,).

        One is computed when it is asked for, so that passes go one by one.

        `x_BCHW`: at `base_size`. `target`: of the learning problem, as classes (B,), or soft labels (B, K).
        """
        ...
