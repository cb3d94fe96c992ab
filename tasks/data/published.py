"""CIFAR-10, CIFAR-100 and ImageNet through torchvision, from the user's files; nothing is downloaded.

torchvision compares CIFAR's files with the published checksums before it unpickles them.
"""

import pickle
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100, ImageNet, VisionDataset

from tasks.base.errors import UserError
from tasks.data.decode import SCALING, Decoder
from tasks.data.settings import DataSettings
from tasks.data.source import complete_splits

CIFAR = {"cifar10": CIFAR10, "cifar100": CIFAR100}
NEEDED = {
    "cifar10": (CIFAR10.base_folder,),
    "cifar100": (CIFAR100.base_folder,),
    "imagenet": ("meta.bin", "train", "val"),
}
NOT_READABLE = (RuntimeError, OSError, EOFError, KeyError, TypeError, pickle.UnpicklingError)


class Published:
    """The published training images, then the published held-out ones."""

    scaling = SCALING
    notes: tuple[str, ...] = ()

    def __init__(self, settings: DataSettings, train: VisionDataset, held_out: VisionDataset) -> None:
        self.labels = np.asarray([*train.targets, *held_out.targets], dtype=np.int64)
        self.class_names = tuple(name if isinstance(name, str) else ", ".join(name) for name in train.classes)
        self._name = settings.name
        self._parts = (train, held_out)
        self._decoder = Decoder(settings)

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """A random order; any is fine, since images are in memory (CIFAR) or their own files (ImageNet)."""
        return rng.permutation(indices)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Scaled images; augmented by a random resized crop and a flip."""
        contents = [(f"'{self._name} {index}'", partial(self._image, int(index))) for index in indices]
        return self._decoder.batch(contents, draws)

    def _image(self, index: int) -> Image.Image:
        train, held_out = self._parts
        image: Image.Image = (train[index] if index < len(train) else held_out[index - len(train)])[0]
        return image


def _parts(name: str, path: Path) -> tuple[VisionDataset, VisionDataset]:
    if name in CIFAR:
        return CIFAR[name](path, train=True), CIFAR[name](path, train=False)
    train, held_out = ImageNet(path, "train"), ImageNet(path, "val")
    if train.wnids != held_out.wnids:
        raise RuntimeError("train and val have different class folders")
    return train, held_out


def open_published(settings: DataSettings) -> tuple[Published, dict[str, np.ndarray]]:
    """The source and its splits: the published held-out images are the test; validation is a share of the training images.

    Raises UserError for files that are missing or differ from the published ones.
    """
    assert settings.path is not None
    assert settings.name is not None
    missing = [name for name in NEEDED[settings.name] if not (settings.path / name).exists()]
    if missing:
        raise UserError(
            f"data folder '{settings.path}'",
            f"{settings.name} needs {', '.join(missing)} in it",
            next_step="choose another with data.path=FOLDER; nothing is downloaded",
        )
    try:
        train, held_out = _parts(settings.name, settings.path)
    except NOT_READABLE as error:
        raise UserError(
            f"data folder '{settings.path}'",
            f"the files of {settings.name} are incomplete or changed ({str(error)[:200]})",
            next_step="copy them anew or choose another folder with data.path=FOLDER",
        ) from error
    source = Published(settings, train, held_out)
    count = len(train.targets)
    splits = {"train": np.arange(count), "test": np.arange(count, len(source.labels))}
    return source, complete_splits(splits, source, settings)
