"""Branch-wise distillation: each alternative by itself learns what the original network computes in its place.

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
from tasks.finetune.losses import distance
from tasks.finetune.networks.frozen import FrozenOriginal
from tasks.finetune.networks.record import Forward, Judge, Role
from tasks.finetune.settings import Settings


class BranchRunner(nn.Module):
    """Runs several branches in one forward pass, those `chosen`."""

    def __init__(self, net: SuperNet) -> None:
        super().__init__()
        self.elastic = net.elastic
        self.chosen: Sequence[Branch] = ()

    @cached_property
    def branches(self) -> Branches:
        """Those of the network; asked for once it is on its device, where its modules are made anew."""
        return Branches(self.elastic)

    def forward(self, features: Features) -> list[torch.Tensor]:
        """The result of each chosen branch on the features of its entry."""
        return [self.branches.run(branch, features) for branch in self.chosen]


class TrainableBranches:
    """A SuperNet whose alternatives are trained one by one, on the frozen original's features of a micro-batch."""

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
        """Those that have something to train."""
        return [one for one in self.runner.branches.branches if not self._originals.issuperset(one.parameters)]

    def undecayed(self) -> Sequence[torch.Tensor]:
        """None: every matrix of an alternative decays."""
        return ()

    def slowed(self) -> tuple[Sequence[torch.Tensor], float]:
        """None: all is trained alike."""
        return (), 1.0

    def roles(self, step: int) -> list[Role]:
        """One, with the branches of this step."""
        rng = np.random.default_rng((self._settings.seed, step))
        exits = [branch.exit for branch in self._branches]
        return [Role("branches", {}, True, draw_branches(exits, self._settings.branches_per_step, rng))]

    def losses(
        self, roles: Sequence[Role], x_BCHW: Inputs, target: torch.Tensor, forward: Forward
    ) -> Iterator[torch.Tensor]:
        """The mean of the branches' distances from the original's results."""
        features = self.runner.branches.features(x_BCHW)
        for role in roles:
            chosen = self.runner.chosen = [self._branches[position] for position in role.branches]
            results = forward({branch.entry: features[branch.entry] for branch in chosen})
            pairs = zip(results, chosen, strict=True)
            yield torch.stack([distance(result, features[branch.exit]) for result, branch in pairs]).mean()


def draw_branches(exits: Sequence[str], count: int | None, rng: np.random.Generator) -> tuple[int, ...]:
    """Positions of random branches, ascending; `exits`: the exit of each. None: one for each exit.

    A number: so many, or all; a second one of an exit only where all other exits have as many.
    """
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, int]] = []
    for position in rng.permutation(len(exits)).tolist():
        ranked.append((seen[exits[position]], position))
        seen[exits[position]] += 1
    ranked.sort(key=lambda pair: pair[0])
    taken = [pair for pair in ranked if pair[0] == 0] if count is None else ranked[:count]
    return tuple(sorted(position for _, position in taken))
