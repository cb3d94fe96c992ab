"""The images of a stream's measurement: drifting ones of the test split, known ones of the validation split."""

from typing import NamedTuple

import numpy as np
import torch

from tasks.adaptation import Anchor
from tasks.adaptation.guards.profile import FEWEST
from tasks.base.errors import UserError
from tasks.data import Dataset, DataSettings, load_splits
from tasks.data.drift import DriftSettings, LabelledImages
from tasks.data.images import resize
from tasks.data.problems import require
from tasks.data.samples import Size

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
