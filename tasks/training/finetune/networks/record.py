"""Base classes of networks in training and of their judges, and the user's frozen network inside a SuperNet.

The weights of the frozen network do not change: only alternatives are trained.

Legend: B batch, C channels, H height, W width, K classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from tailor_ir import Config, SuperNet
from tailor_ir.subnets.elastic import Branches
from tasks.data.batches import Inputs
from tasks.data.samples import Size
from tasks.evaluation.subnets import EvaluationData
from tasks.training.finetune.job import TrainingPhase


class FrozenOriginal:
    """Makes everything but the alternatives' own parameters constant.

    refit: the phase before trained the network, so `begin` makes its BatchNorm statistics and the first weights of its
    alternatives anew. Random numbers follow from the seed.
    """

    def __init__(self, net: SuperNet, seed: int, *, refit: bool) -> None:
        self._net, self._seed, self._refit = net, seed, refit
        for name in net.structure.graph.original().parameters:
            net.elastic.tensor(name).requires_grad_(False)

    def begin(self, batches: Iterable[Inputs]) -> None:
        """If `refit`, compute statistics and first weights from training images (B, C, H, W)."""
        if self._refit:
            images = list(batches)
            self._net.set_statistics(self._net.recalibrate(self._net.max_config, images))
            self._net.fit_alternatives(images, (), np.random.default_rng(self._seed))

    @cached_property
    def _branches(self) -> Branches:
        """The alternatives; read once the network is on its device, since moving it makes its modules anew."""
        return Branches(self._net.elastic)

    def logits(self, x_BCHW: Inputs) -> torch.Tensor:
        """The network's answers (B, K), with stored BatchNorm statistics."""
        (output,) = self._net.structure.graph.outputs
        return self._branches.features(x_BCHW, {output})[output]


Forward = Callable[..., Any]
"""The forward pass of `runner`, in DistributedDataParallel."""


@dataclass(frozen=True, slots=True)
class Role:
    """A part of a step with a loss of its own: its name in the history, the config of its SubNet, whether it has a teacher.

    branches: positions of alternatives that are trained by themselves. parts: names and weights of the losses (P,) that sum to
    its loss; () if it has a single loss.
    """

    name: str
    config: Config
    distilled: bool
    branches: tuple[int, ...] = ()
    parts: tuple[tuple[str, float], ...] = ()

    def total(self, losses: torch.Tensor) -> torch.Tensor:
        """The total loss (), from the losses of the parts (P,) or the single loss ()."""
        return losses @ losses.new_tensor([weight for _, weight in self.parts]) if self.parts else losses


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict of a judge after a step.

    accuracies: for the history, by name. ended: the phase is over before its last step. changed: other parameters are trained
    from now on, so the optimiser starts anew.
    """

    accuracies: dict[str, float]
    ended: bool = False
    changed: bool = False


class Judge(ABC):
    """Evaluates a network in training on validation images. All ranks come to the same verdict.

    kept: the tensors that the judge may restore, by name. It judges every `steps` steps, counted from the end of the phase.
    """

    def __init__(self, phase: TrainingPhase, steps: int) -> None:
        self._last, self._steps = phase.last_step, steps
        self.kept: Mapping[str, torch.Tensor] = {}
        self._data: EvaluationData | None = None

    def is_due(self, step: int) -> bool:
        """Whether the judge judges after a step."""
        return (self._last - step) % self._steps == 0

    @abstractmethod
    def begin(self, data: EvaluationData, move: Callable[[], None]) -> None:
        """Judge the weights at the start of a phase. move: called for each batch of images."""

    @abstractmethod
    def go_on(self, data: EvaluationData, state: Mapping[str, Any], kept: Mapping[str, torch.Tensor]) -> None:
        """Resume in the middle of a phase, with `state` and `kept` from its checkpoint."""

    @abstractmethod
    def judge(self, step: int, move: Callable[[], None]) -> Verdict:
        """Judge the weights after a step; may replace them."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The judge's state, as JSON."""


class Trainable(ABC):
    """A network, the parts that each step trains, and the losses.

    module: parameters with gradients are trained; a checkpoint holds all its tensors. base_size: input size of the largest
    SubNet and of the teacher: (height, width), or the length. roles: the parts that a step trains, in the order of its losses.
    net: the SuperNet whose SubNets are trained; None: a plain network. runner: the module whose forward pass `losses` calls:
    the network itself, or a module that contains it. teacher: a frozen network that teaches all SubNets. original: the frozen
    original, if only alternatives are trained. judge: evaluates the network now and then and may change what is trained.
    """

    def __init__(
        self,
        module: nn.Module,
        base_size: Size,
        roles: Callable[[int], list[Role]],
        *,
        net: SuperNet | None = None,
        runner: nn.Module | None = None,
        teacher: nn.Module | None = None,
        original: FrozenOriginal | None = None,
    ) -> None:
        self.module, self.base_size, self.roles = module, base_size, roles
        self.net, self.teacher, self.original = net, teacher, original
        self.runner = module if runner is None else runner
        self.judge: Judge | None = None

    def undecayed(self) -> Sequence[torch.Tensor]:
        """Kernel transforms, which decay would pull from the identity to zero; called once the module is on its device."""
        return [] if self.net is None else [matrix for matrix in self.net.kernel_matrices if matrix.requires_grad]

    def slowed(self) -> tuple[Sequence[torch.Tensor], float]:
        """Trained tensors with a lower learning rate, and its factor; called once the module is on its device."""
        return (), 1.0

    def begin(self, batches: Iterable[Inputs]) -> None:
        """Called before the first step, with weights loaded. batches: training images (B, C, H, W) at `base_size`."""
        if self.original is not None:
            self.original.begin(batches)

    @abstractmethod
    def losses(self, roles: Sequence[Role], x_BCHW: Inputs, target: Any, forward: Forward) -> Iterator[torch.Tensor]:
        """The loss of each role on a micro-batch: () for a single loss, (P,) for parts.

        Each loss is computed only on request, so that passes run one by one.

        x_BCHW: at `base_size`. target: of the learning problem, e.g. classes (B,), or soft labels (B, K).
        """
