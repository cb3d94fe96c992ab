"""Players that answer the batches of a stream, one for each method by its name, and the images of the stream.

Drifting images are from the test split, known images from the validation split. Legend: B batch, K classes.
"""

import copy
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import nn

from tasks.adaptation import (
    AdaptationSettings,
    AdaptiveSubnet,
    Anchor,
    GuardedSubnet,
    GuardEvent,
    MethodSettings,
    make_method,
)
from tasks.adaptation.guards import FEWEST
from tasks.adaptation.settings import StreamMethod
from tasks.base.errors import UserError
from tasks.data import Dataset, DataSettings, load_splits
from tasks.data.drift import LabelledImages
from tasks.data.images import resize
from tasks.data.problems import require
from tasks.data.samples import Size
from tasks.data.settings import DriftSettings

PROFILE_IMAGES, ANCHOR_IMAGES = 512, 256
BATCH = 64
LABELLED = 3
"""One held-out image out of this many is labelled; the others are for the profile."""


class KnownImages(NamedTuple):
    """Images like those of training, on which the network has not been trained.
    profile: batches (B, C, H, W) without labels. anchor: labelled images.
    """

    profile: list[torch.Tensor]
    anchor: Anchor


def held_out_images(validation: Dataset, size: Size) -> KnownImages:
    """Shuffled images of the validation split at (height, width): at most a third as labelled anchor, the next as profile."""
    held_out = LabelledImages.of(validation)
    order = np.random.default_rng(0).permutation(len(held_out.label_M))
    labelled = min(ANCHOR_IMAGES, len(order) // LABELLED)
    anchor, profile = order[:labelled], order[labelled:][:PROFILE_IMAGES]

    def normalised(chosen: np.ndarray) -> torch.Tensor:
        return resize(held_out.normalised(held_out.x_MCHW[chosen]), size)

    return KnownImages(
        list(normalised(profile).split(BATCH)), Anchor(normalised(anchor), torch.from_numpy(held_out.label_M[anchor]))
    )


def require_images(dataset: Dataset) -> None:
    """Raise UserError if streams cannot consist of such samples, or of their learning problem."""
    require(dataset.problem, "streams", "stage 'stream'", "leave streams out")
    dataset.form.require("streams", "stage 'stream'", "leave streams out")


def check_images(data: DataSettings, drift: DriftSettings) -> None:
    """Raise UserError if streams do not support the data, or the test split (for guards the validation split) is too small."""
    splits = load_splits(data)
    require_images(splits["test"])
    found = len(splits["test"])
    if drift.images > found:
        raise UserError(
            f"drift.images={drift.images}",
            f"the test split of '{data.title}' has {found} images, and none comes twice in one phase of a stream: "
            f"{drift.images} are needed",
            allowed=f"1 to {found}",
            next_step=f"ask for fewer (drift.images={found}), or give more images",
        )
    needed, found = LABELLED * FEWEST, len(splits["validation"])
    if found < needed:
        raise UserError(
            "streams",
            f"the validation split of '{data.title}' has {found} images, which tell what is usual: {needed} are needed",
            allowed=f"{needed} or more",
            next_step="hold more out (data.validation_share), or give more images",
        )


@dataclass(frozen=True, slots=True)
class StreamPlayer:
    """Answers batches, one after another, and may adapt to them.

    answer: logits (B, K) of images. adapted: the SubNet that answers now; None: the source. events: of a guard, since they were
    last taken.
    """

    answer: Callable[[torch.Tensor], torch.Tensor]
    adapted: Callable[[], AdaptiveSubnet | None] = lambda: None
    events: deque[GuardEvent] = field(default_factory=deque)

    @classmethod
    def of_source(cls, network: nn.Module) -> Self:
        """The unchanged network."""
        return cls(torch.no_grad()(network.__call__))

    @classmethod
    def of_guard(cls, guard: GuardedSubnet) -> Self:
        """A method under guards."""

        def adapted() -> AdaptiveSubnet | None:
            answering = guard.answering
            return None if answering is guard.source else answering

        return cls(lambda x_BCHW: guard.answer(x_BCHW).logits_BK, adapted, guard.events)

    def new_events(self) -> Sequence[GuardEvent]:
        """Take the events: drift detected, images aligned, adaptation kept or undone, drift over."""
        found = tuple(self.events)
        self.events.clear()
        return found


def make_player(
    method: StreamMethod, source: AdaptiveSubnet, known: KnownImages, settings: AdaptationSettings, batch_size: int
) -> StreamPlayer:
    """A player of a method that begins at the source, which stays unchanged. batch_size: of the stream."""
    if method == "source":
        return StreamPlayer.of_source(source.network)
    own = copy.deepcopy(source)
    if method == "guarded":
        return StreamPlayer.of_guard(GuardedSubnet(own, known.anchor, known.profile, settings.guard, settings.guarded))
    chosen = MethodSettings(method=method, **settings.methods.model_dump()).for_batches_of(batch_size)
    adapting = make_method(own, chosen, known.profile)
    return StreamPlayer(adapting.adapt, lambda: adapting.subnet)


def left_out(method: StreamMethod, source: AdaptiveSubnet) -> str | None:
    """The reason why a network cannot play a method; None if it can."""
    if method == "batchnorm" and not source.has_statistics:
        return "the network has no BatchNorm"
    return None
