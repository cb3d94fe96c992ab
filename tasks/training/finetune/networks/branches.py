"""Branch-wise distillation: each alternative by itself learns to reproduce the part of the original network that it replaces.

Legend: B batch, C channels, H height, W width. Source: AdaptiveNet (MobiCom 2023) §4.2.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import nn

from tailor_ir import SuperNet
from tailor_ir.subnets.branches import Branch, Branches, Features
from tasks.data.batches import Inputs
from tasks.training.finetune.losses import distance
from tasks.training.finetune.networks.frozen import FrozenOriginal
from tasks.training.finetune.networks.record import Forward, Judge, Role
from tasks.training.finetune.settings import Settings


class BranchRunner(nn.Module):
    """Runs several branches, those in `chosen`, in one forward pass."""

    def __init__(self, net: SuperNet) -> None:
        super().__init__()
        self.elastic = net.elastic
        self.chosen: Sequence[Branch] = ()

    @cached_property
    def branches(self) -> Branches:
        """Branches of the network; read once it is on its device, since moving it makes its modules anew."""
        return Branches(self.elastic)

    def forward(self, features: Features) -> list[torch.Tensor]:
        """The result of each chosen branch on the features of its entry."""
        return [self.branches.run(branch, features) for branch in self.chosen]


class TrainableBranches:
    """A SuperNet whose alternatives are trained one by one, on features of the frozen original for each micro-batch."""

    def __init__(self, net: SuperNet, original: FrozenOriginal, settings: Settings) -> None:
        self.net = net
        self.module = net.elastic
        self.runner = BranchRunner(net)
        self.teacher: nn.Module | None = None
        self.judge: Judge | None = None
        self.base_size = net.input_size(net.max_config)
        self.begin = original.begin
        self._settings = settings
        self._originals = frozenset(net.structure.graph.original().parameters)

    @cached_property
    def _branches(self) -> Sequence[Branch]:
        """Branches with parameters to train."""
        return [one for one in self.runner.branches.branches if not self._originals.issuperset(one.parameters)]

    def undecayed(self) -> Sequence[torch.Tensor]:
        """Empty: every matrix of an alternative decays."""
        return ()

    def slowed(self) -> tuple[Sequence[torch.Tensor], float]:
        """Empty: all parameters have the same learning rate."""
        return (), 1.0

    def roles(self, step: int) -> list[Role]:
        """One role, with the branches of this step."""
        rng = np.random.default_rng((self._settings.seed, step))
        exits = [branch.exit for branch in self._branches]
        return [Role("branches", {}, True, draw_branches(exits, self._settings.branches_per_step, rng))]

    def losses(
        self, roles: Sequence[Role], x_BCHW: Inputs, target: torch.Tensor, forward: Forward
    ) -> Iterator[torch.Tensor]:
        """The mean distance of the branches' results from the original's."""
        features = self.runner.branches.features(x_BCHW)
        for role in roles:
            chosen = self.runner.chosen = [self._branches[position] for position in role.branches]
            results = forward({branch.entry: features[branch.entry] for branch in chosen})
            pairs = zip(results, chosen, strict=True)
            yield torch.stack([distance(result, features[branch.exit]) for result, branch in pairs]).mean()


def draw_branches(exits: Sequence[str], count: int | None, rng: np.random.Generator) -> tuple[int, ...]:
    """Positions of random branches, ascending. exits: the exit of each branch. count: None draws one branch per exit.

    Otherwise `count` branches, or all; an exit gets a second branch only if all other exits have as many as it has.
    """
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, int]] = []
    for position in rng.permutation(len(exits)).tolist():
        ranked.append((seen[exits[position]], position))
        seen[exits[position]] += 1
    ranked.sort(key=lambda pair: pair[0])
    taken = [pair for pair in ranked if pair[0] == 0] if count is None else ranked[:count]
    return tuple(sorted(position for _, position in taken))
