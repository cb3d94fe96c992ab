"""Images with boxes as a source of data. Legend: B batch, D draws, N boxes of an image, M boxes of an image at most."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from PIL import Image

from tasks.base.errors import UserError
from tasks.data.boxes.annotated import AnnotatedImage, UnusedBoxes
from tasks.data.decode import WHOLE_SCALING, Decoder
from tasks.data.images import random_box, whole_box
from tasks.data.problems.detection import Rows, flipped, packed, within
from tasks.data.settings import DataSettings
from tasks.data.source import complete_splits, first_of
from tasks.data.stratified import rarest_classes

BACKGROUND = "background"
SEEN = 0.25
"""Least share of a box inside an augmented image."""


class BoxedPictures:
    """Files with boxes, decoded on demand. labels: the rarest class of each image, if that has enough images.

    Class 0 is the background; images without boxes belong to it.
    """

    scaling = WHOLE_SCALING

    def __init__(self, settings: DataSettings, images: Sequence[AnnotatedImage], notes: Sequence[str]) -> None:
        """notes: warnings for the user about the annotations."""
        names = sorted({name for image in images for name in image.names})
        self.class_names = (BACKGROUND, *names)
        self.notes = tuple(notes)
        self._images = images
        self._rows = [_rows(image, self.class_names) for image in images]
        self.labels = rarest_classes([rows[:, 0].astype(np.int64) for rows in self._rows], len(self.class_names))
        self._decoder = Decoder(settings, whole_box)

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """A random order; any is fine, since each image is its own file."""
        return rng.permutation(indices)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Decoded images; augmented by a random resized crop and a flip."""
        own = [self._images[index] for index in indices]
        return self._decoder.batch([(f"'{one.file}' of {one.where}", partial(_opened, one)) for one in own], draws)

    def boxed(self, indices: np.ndarray, draws: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor]:
        """x_BCHW float32 in [0, 1], and a target of detection (B, M, 5); `draws` transform both alike."""
        rows = [self._rows[index] for index in indices]
        if draws is not None:
            pairs = zip(indices, rows, draws, strict=True)
            rows = [_augmented(self._images[index], own, draws_D) for index, own, draws_D in pairs]
        return self.images(indices, draws), packed(rows)

    def counts(self, indices: np.ndarray) -> np.ndarray:
        """Boxes of each class (K,)."""
        labels = [self._rows[index][:, 0].astype(np.int64) for index in indices]
        return np.bincount(np.concatenate([np.empty(0, dtype=np.int64), *labels]), minlength=len(self.class_names))


def _opened(image: AnnotatedImage) -> Image.Image:
    opened = Image.open(image.file)
    if opened.size != (image.width, image.height):
        got = f"{image.width} x {image.height} pixels, but '{image.file}' has {opened.width} x {opened.height}"
        opened.close()
        raise UserError(image.where, got, next_step="mend the annotation, or replace the image")
    return opened


def _rows(image: AnnotatedImage, class_names: Sequence[str]) -> Rows:
    numbers = {name: number for number, name in enumerate(class_names)}
    rows = [(numbers[name], *box) for name, box in zip(image.names, image.boxes, strict=True)]
    return np.array(rows, dtype=np.float32).reshape(-1, 5)


def _augmented(image: AnnotatedImage, rows_N5: Rows, draws_D: np.ndarray) -> Rows:
    """The boxes after the decoder's augmentation of the image."""
    top, left, height, width = random_box(image.height, image.width, draws_D)
    window = left / image.width, top / image.height, width / image.width, height / image.height
    inside_N5 = within(rows_N5, window, SEEN)
    return flipped(inside_N5) if draws_D[4] < 0.5 else inside_N5


def opened_source(
    settings: DataSettings,
    splits: Mapping[str, Sequence[AnnotatedImage]],
    left_out: UnusedBoxes,
    declared: Sequence[str],
) -> tuple[BoxedPictures, dict[str, np.ndarray]]:
    """The source and its splits; missing splits are shares of the training images.

    declared: names of all classes in the annotations. UserError: no image, or a class without a training image.
    """
    images = [image for own in splits.values() for image in own]
    used = Counter(name for image in images for name in image.names)
    where = f"data '{settings.path}'"
    if not used:
        raise UserError(
            where, f"{len(images)} images without any box", next_step="choose another with data.path=FOLDER"
        )
    notes = list(left_out.told())
    if unused := [name for name in declared if name not in used]:
        notes.append(
            f"data: {len(unused)} of {len(declared)} classes have no box and are left out ({first_of(unused)})"
        )
    source = BoxedPictures(settings, images, notes)
    ends = np.cumsum([len(own) for own in splits.values()])
    indices = dict(zip(splits, np.split(np.arange(len(images)), ends[:-1]), strict=True))
    found = complete_splits(indices, source, settings)
    _check_split(source, found, where)
    return source, found


def _check_split(source: BoxedPictures, splits: Mapping[str, np.ndarray], where: str) -> None:
    """UserError for untrained classes, or a split without boxes. A note lists splits that are judged by fewer classes."""
    for name, indices in splits.items():
        counts = source.counts(indices)
        missing = [source.class_names[label] for label in np.flatnonzero(counts[1:] == 0) + 1]
        if missing and (name == "train" or len(missing) == len(counts) - 1):
            got = f"no box of {len(missing)} of {len(counts) - 1} classes in {name}: {first_of(missing)}"
            raise UserError(where, got, next_step="add images with boxes of each class")
        if missing:
            source.notes += (f"data: {name} has no box of {first_of(missing)}, and is judged by the other classes",)


def split_named(name: str) -> str | None:
    """The split in the name of a file: `train`, `validation`, `test`, or None."""
    lower = name.lower()
    return next(
        (split for part, split in (("train", "train"), ("val", "validation"), ("test", "test")) if part in lower), None
    )
