"""Samples without labels, pictures or arrays: the network's own answers are the targets.

Legend: B batch, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.datasets.folder import IMG_EXTENSIONS

from adaptive_runtime.samples.inputs import GivenPreparation
from tasks.base.errors import UserError, shortened
from tasks.data.batches import Inputs
from tasks.data.images import Decoder, whole_box
from tasks.data.own import Data, OwnSamples
from tasks.data.settings import DataSettings
from tasks.data.source import UNSCALED, Source, check_files, require_folder

ARRAYS = (".npz", ".npy", ".safetensors", ".parquet")
"""Files of arrays whose first axis is that of the samples."""
FEWEST_SAMPLES = 24
"""With fewer samples no split has enough of them."""


def unlabelled(settings: DataSettings) -> Source:
    """The samples of a folder of pictures, or of a file of arrays. UserError: there are none, or too few."""
    path = settings.path
    assert path is not None
    where = f"data.path '{path}'"
    if path.is_file():
        if path.suffix not in ARRAYS:
            raise UserError(
                where, f"is a {path.suffix or 'plain'} file", allowed=f"a folder of pictures, or {', '.join(ARRAYS)}"
            )
        return Arrays(settings, where, read_arrays(path))
    require_folder(path)
    check_files(path)
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMG_EXTENSIONS)
    _check_count(where, len(files), "pictures")
    return Pictures(settings, files)


def _check_count(where: str, count: int, called: str) -> None:
    if count < FEWEST_SAMPLES:
        raise UserError(where, f"{count} {called}", allowed=f"{FEWEST_SAMPLES} or more; a few hundred say more")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by name, "" for a single one. UserError: it cannot be read. Nothing is unpickled."""
    try:
        if path.suffix == ".npy":
            return {"": np.load(path, allow_pickle=False)}
        if path.suffix == ".npz":
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
                return {name: content[name] for name in content.files}
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            return dict(load_file(path))
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
        return {name: np.asarray(table.column(name).to_pylist()) for name in table.column_names}
    except Exception as error:  # readers raise errors of many kinds for damaged content
        raise UserError(
            f"data file '{path}'", f"cannot be read ({shortened(error)})", next_step="write it anew"
        ) from error


class Arrays(OwnSamples):
    """The samples of arrays: each array is an input, in the order of the file or of `data.names`."""

    def __init__(self, settings: DataSettings, where: str, arrays: Mapping[str, np.ndarray]) -> None:
        names = settings.names or tuple(arrays)
        if missing := [name for name in names if name not in arrays]:
            raise UserError("data.names", f"no array '{missing[0]}' in the file", allowed=", ".join(arrays))
        counts = {name: len(arrays[name]) if arrays[name].ndim else 0 for name in names}
        if len(set(counts.values())) != 1:
            described = ", ".join(f"{name}: {count}" for name, count in counts.items())
            raise UserError(where, f"samples of {described}", allowed="as many along the first axis of each array")
        _check_count(where, next(iter(counts.values())), "samples")
        given = arrays[names[0]] if len(names) == 1 else {name: arrays[name] for name in names}
        super().__init__(settings, Data(given, inputs=names if len(names) > 1 else None))


class Pictures(Source):
    """Pictures of any size, scaled as a whole to the network's height and width, on the scale of the settings."""

    has_classes = False

    def __init__(self, settings: DataSettings, files: list[Path]) -> None:
        self._files = files
        self.labels = np.zeros(len(files), np.int64)
        self.class_names = ()
        shape = settings.shape or (settings.channels, settings.resolution, settings.resolution)
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise UserError("data.shape", f"{list(shape)}", allowed="[1,HEIGHT,WIDTH] or [3,HEIGHT,WIDTH], of pictures")
        channels, height, width = shape
        own = settings.model_copy(update={"channels": channels})
        self._decoder = Decoder(own, whole_box, lambda height, width, draws: whole_box(height, width), (height, width))
        mean, deviation = (settings.per_channel(values, channels) for values in (settings.mean, settings.deviation))
        self._mean, self._deviation = (torch.tensor(values).reshape(channels, 1, 1) for values in (mean, deviation))
        colours = "grey" if channels == 1 else "RGB"
        described = (
            f"{colours} in [0, 1], the whole picture scaled to {height} x {width} pixels (bilinear, antialiased), less mean "
            f"{list(mean)}, over deviation {list(deviation)}, by channel; samples, channels, height, width"
        )
        self.scaling = UNSCALED._replace(given=GivenPreparation(shape=shape, size=shape, described=described))

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> Inputs:
        """Pictures (B, C, H, W) on the scale of the settings; with draws, every other one is flipped."""
        found: Any = self._decoder.files([self._files[index] for index in indices], draws)
        return (found - self._mean) / self._deviation
