"""Methods by their names, as players that answer the batches of a stream. Legend: B batch, K classes."""

import copy
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from tasks.adaptation import (
    AdaptationMethod,
    AdaptationSettings,
    AdaptiveSubnet,
    GuardedSubnet,
    GuardEvent,
    MethodSettings,
    make_method,
)
from tasks.adaptation.streams.images import KnownImages
from tasks.adaptation.streams.settings import StreamMethod


class StreamPlayer(Protocol):
    """Answers batches, one after another, and may adapt to them."""

    def answer(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits (B, K)."""
        ...

    def new_events(self) -> Sequence[GuardEvent]:
        """Events of a guard since the last call; empty without a guard."""
        ...

    @property
    def adapted(self) -> AdaptiveSubnet | None:
        """The SubNet that answers now, if it is not the source."""
        ...


class SourcePlayer:
    """The unchanged network."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self.adapted: AdaptiveSubnet | None = None

    @torch.no_grad()
    def answer(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits (B, K)."""
        logits_BK: torch.Tensor = self._network(x_BCHW)
        return logits_BK

    def new_events(self) -> Sequence[GuardEvent]:
        """Empty: nothing adapts."""
        return ()


class MethodPlayer:
    """A method without guards."""

    def __init__(self, method: AdaptationMethod) -> None:
        self._method = method

    def answer(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits (B, K)."""
        return self._method.adapt(x_BCHW)

    def new_events(self) -> Sequence[GuardEvent]:
        """Empty: nothing guards."""
        return ()

    @property
    def adapted(self) -> AdaptiveSubnet:
        """The SubNet with its adaptation so far."""
        return self._method.subnet


class GuardedPlayer:
    """A method under guards."""

    def __init__(self, guard: GuardedSubnet) -> None:
        self._guard = guard

    def answer(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits (B, K)."""
        return self._guard.answer(x_BCHW).logits_BK

    def new_events(self) -> Sequence[GuardEvent]:
        """Events: drift detected, images aligned, adaptation kept or undone, drift over."""
        found = tuple(self._guard.events)
        self._guard.events.clear()
        return found

    @property
    def adapted(self) -> AdaptiveSubnet | None:
        """The SubNet that answers now, if it is not the source."""
        answering = self._guard.answering
        return None if answering is self._guard.source else answering


def make_player(
    method: StreamMethod, source: AdaptiveSubnet, known: KnownImages, settings: AdaptationSettings, batch_size: int
) -> StreamPlayer:
    """A player of a method that begins at the source, which stays unchanged. batch_size: of the stream."""
    if method == "source":
        return SourcePlayer(source.network)
    own = copy.deepcopy(source)
    if method == "guarded":
        return GuardedPlayer(GuardedSubnet(own, known.anchor, known.profile, settings.guard, settings.guarded))
    chosen = MethodSettings(method=method, **settings.methods.model_dump()).for_batches_of(batch_size)
    return MethodPlayer(make_method(own, chosen, known.profile))


def left_out(method: StreamMethod, source: AdaptiveSubnet) -> str | None:
    """The reason why a network cannot play a method; None if it can."""
    if method == "batchnorm" and not source.has_statistics:
        return "the network has no BatchNorm"
    return None
