"""The trained and the constant parts of a network with exits."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from tailor_ir import Config, ExitParts, SuperNet
from tailor_ir.subnets.plans import remembered

PARTS_KEPT = 32


class ExitRunner(nn.Module):
    """Runs exits of any SubNet in one forward pass; in training with dropout in heads."""

    def __init__(self, net: SuperNet, dropout: float = 0.0) -> None:
        super().__init__()
        self._dropout = dropout
        self.elastic = net.elastic
        self._space = net.space
        self._known: OrderedDict[bytes, ExitParts] = OrderedDict()

    def parts(self, config: Config) -> ExitParts:
        """The parts of a SubNet; called once the network is on its device, since moving it makes its modules anew."""
        key = self._space.row(config).tobytes()
        return remembered(self._known, key, PARTS_KEPT, lambda: ExitParts(self.elastic, config))

    def forward(self, x_BCHW: torch.Tensor, config: Config, exits: Sequence[int], constant: int) -> list[torch.Tensor]:
        """The answers (B, K) of some exits; the bodies of the first `constant` parts get no gradients."""
        dropout = self._dropout if self.elastic.training else 0.0
        return self.parts(config).answers(x_BCHW, exits, constant, dropout)


@dataclass(slots=True)
class Course:
    """Positions of the trained exits, and the number of constant parts before them; both may change during training.

    earlier: number of parts, of those not constant, that are trained with a lower rate.
    """

    exits: tuple[int, ...]
    constant: int = 0
    earlier: int = 0

    def freeze_earlier(self) -> None:
        """Train only the last exit, and make all parts before it constant."""
        self.exits, self.constant, self.earlier = self.exits[-1:], self.exits[-1], 0

    def restrict(self, net: SuperNet) -> None:
        """Enable gradients for the trained tensors only."""
        trained = self.trained(net)
        for name in net.structure.graph.parameters:
            net.elastic.tensor(name).requires_grad_(name in trained)

    def trained(self, net: SuperNet) -> set[str]:
        """Names of the trained tensors."""
        parts = ExitParts(net.elastic, net.max_config).parts
        heads = {name for part in parts for name in part.head_parameters}
        own = {name for part in parts[self.constant : max(self.exits) + 1] for name in part.parameters} - heads
        return own | {name for position in self.exits for name in parts[position].head_parameters}

    def statistics(self, net: SuperNet) -> set[str]:
        """Names of the BatchNorm statistics that depend on trained tensors."""
        parts = ExitParts(net.elastic, net.max_config).parts
        return {name for part in parts[: max(self.exits) + 1] for name in part.statistics}

    def slowed(self, net: SuperNet) -> list[torch.Tensor]:
        """The trained tensors of earlier parts."""
        parts = ExitParts(net.elastic, net.max_config).parts
        earlier = {name for part in parts[: self.earlier] for name in part.parameters}
        return [net.elastic.tensor(name) for name in earlier & self.trained(net)]
