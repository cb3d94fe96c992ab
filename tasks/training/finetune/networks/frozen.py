"""The user's network inside a SuperNet of which only alternatives are trained: its weights do not change."""

from collections.abc import Iterable
from functools import cached_property

import numpy as np
import torch

from tailor_ir import SuperNet
from tailor_ir.subnets.branches import Branches
from tasks.data.batches import Inputs


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
