"""A SubNet that adapts: its own copy of the weights, and the way back to the source."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from tailor_ir import Config, InputAlignment, Statistics, SuperNet
from tasks.evaluation.adapted.norms import AdaptiveBatchNorm, StatisticsRule, make_adaptive

AdaptedState = dict[str, torch.Tensor]
"""Tensors of a SubNet that differ from the source's, by their names in `SuperNet.build(config).state_dict()`."""


class AdaptiveSubnet:
    """A stand-alone SubNet whose normalisation adapts. *Source*: the SubNet as it was built.

    network: made by `SuperNet.build`, in eval mode. Only this copy changes; the SuperNet's weights stay the same.
    """

    def __init__(self, network: nn.Module) -> None:
        self.rule = StatisticsRule()
        self.alignment: InputAlignment | None = None
        self.network = network
        self.norms = make_adaptive(network, self.rule)
        self.network.requires_grad_(False)
        self.source = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}

    @classmethod
    def of(cls, net: SuperNet, config: Config, statistics: Statistics | None = None) -> "AdaptiveSubnet":
        """A SubNet of a SuperNet, with its own BatchNorm statistics if they are given."""
        return cls(net.build(config, statistics))

    def __call__(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits (B, K) with the running statistics, after the method's alignment of images if it has one.
        Bit-equal to the built SubNet's logits in the source's state without alignment.
        """
        return self.network(x_BCHW if self.alignment is None else self.alignment(x_BCHW))

    @contextmanager
    def by_batch(self, prior_images: float, newest_share: float, *, keeps: bool = True) -> Iterator[None]:
        """Within the context, BatchNorm normalises by batches (`StatisticsRule`); with `keeps` it counts as one step."""
        rule = self.rule
        rule.by_batch, rule.keeps, rule.prior_images, rule.newest_share = True, keeps, prior_images, newest_share
        try:
            yield
        finally:
            rule.by_batch = False
            rule.steps += keeps

    def affine(self, share: float = 1.0) -> list[nn.Parameter]:
        """Scales and biases of the first `share` of the normalisation layers, with gradients from now on."""
        count = max(1, round(share * len(self.norms)))
        layers = list(self.norms.values())[:count]
        return self._with_gradients([p for layer in layers for p in layer.parameters(recurse=False)])

    def everything(self) -> list[nn.Parameter]:
        """All parameters, with gradients from now on."""
        return self._with_gradients(list(self.network.parameters()))

    @staticmethod
    def _with_gradients(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        for parameter in parameters:
            parameter.requires_grad_()
        return list(dict.fromkeys(parameters))

    @property
    def has_statistics(self) -> bool:
        """Whether the SubNet has BatchNorm."""
        return any(isinstance(layer, AdaptiveBatchNorm) for layer in self.norms.values())

    def state(self) -> AdaptedState:
        """Copies of the tensors that differ from the source's."""
        return {
            name: tensor.detach().clone()
            for name, tensor in self.network.state_dict().items()
            if not torch.equal(tensor, self.source[name])
        }

    @torch.no_grad()
    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load a state; tensors that it lacks are the source's."""
        for name, tensor in self.network.state_dict().items():
            tensor.copy_(state.get(name, self.source[name]))

    def reset(self) -> None:
        """Go back to the source, bit by bit."""
        self.restore({})
        self.rule.steps = 0
