"""The user's network inside a SuperNet whose alternatives alone are trained: its weights stay as they are."""

from collections.abc import Iterable
from functools import cached_property

import torch

from tailor_ir import SuperNet
from tailor_ir.subnets.branches import Branches, Features


class FrozenOriginal:
    """Makes everything but the alternatives' own parameters constant.

    retake: the network was trained in an earlier phase, so that its BatchNorm statistics are taken anew when this one begins.
    """

    def __init__(self, net: SuperNet, *, retake: bool) -> None:
        self._net, self._retake = net, retake
        for name in net.structure.graph.original().parameters:
            net.elastic.tensor(name).requires_grad_(False)

    def begin(self, batches: Iterable[torch.Tensor]) -> None:
        """Take the statistics, where that is wanted, from training images (B, C, H, W)."""
        if self._retake:
            self._net.set_statistics(self._net.recalibrate(self._net.max_config, batches))

    @cached_property
    def branches(self) -> Branches:
        """The alternatives; asked for once the network is on its device, where its modules are made anew."""
        return Branches(self._net.elastic)

    @cached_property
    def hints(self) -> dict[str, str]:
        """The value that an alternative gives -> the network's own value that it stands for."""
        return {branch.producer: branch.exit for branch in self.branches.branches}

    def features(self, x_BCHW: torch.Tensor) -> tuple[torch.Tensor, Features]:
        """The network's answers (B, K), and its values at the alternatives' ends; BatchNorm by its statistics."""
        (output,) = self._net.structure.graph.outputs
        found = self.branches.features(x_BCHW, {output})
        return found[output], found
