"""Samples without labels, pictures, sounds, lines of a text, or arrays: the network's own answers are the targets.

Legend: B batch, C channels, H height, W width.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pydantic import ValidationError
from torchvision.datasets.folder import IMG_EXTENSIONS

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.samples.inputs import GivenPreparation, Vocabulary, fitted
from adaptive_runtime.samples.pictures import PictureSteps
from tasks.base.errors import UserError, shortened
from tasks.data.batches import Inputs
from tasks.data.images import decoded
from tasks.data.own import Data, OwnSamples, function_of
from tasks.data.settings import IMAGENET_MEAN, DataSettings, GivenNetwork
from tasks.data.source import UNSCALED, Source, Splits, check_files, complete_splits, require_folder
from tasks.data.teacher import states_of

ARRAYS = (".npz", ".npy", ".safetensors", ".parquet")
"""Files of arrays whose first axis is that of the samples."""
PICTURE_OPTIONS = ("colours", "fit", "scaled", "interpolation", "fill", "largest")
"""Fields of `PictureSteps` in `data.options`; the others follow from the settings."""
LINES = ".txt"
SOUNDS = (".wav", ".wave")
LONGEST_RUN, LONGEST_UNROLL, FEWEST_RUNS = 256, 64, 16
"""Samples that follow one another, at most, in a split and by default in training; fewer runs make no splits."""
FEWEST_SAMPLES = 24
"""With fewer samples no split has enough of them."""


def unlabelled(settings: DataSettings) -> Source:
    """The samples of a folder of pictures or sounds, or of a file of arrays or lines. UserError: there are none, or too few."""
    path = settings.path
    assert path is not None
    where = f"data.path '{path}'"
    if path.is_file():
        if path.suffix == LINES:
            return _lines(settings, where)
        if path.suffix not in ARRAYS:
            allowed = f"a folder of pictures or sounds, or {', '.join((*ARRAYS, LINES))}"
            raise UserError(where, f"is a {path.suffix or 'plain'} file", allowed=allowed)
        return Arrays(settings, where, read_arrays(path))
    require_folder(path)
    check_files(path)
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMG_EXTENSIONS)
    sounds = sorted(file for file in path.rglob("*") if file.suffix.lower() in SOUNDS)
    if files and sounds:
        raise UserError(where, f"{len(files)} pictures and {len(sounds)} sounds", allowed="files of one kind")
    _check_count(where, len(files or sounds), "sounds" if sounds else "pictures")
    return _sounds(settings, sounds) if sounds else Pictures(settings, files)


def _check_count(where: str, count: int, called: str) -> None:
    if count < FEWEST_SAMPLES:
        raise UserError(where, f"{count} {called}", allowed=f"{FEWEST_SAMPLES} or more; a few hundred say more")


class Waveforms:
    """The middle of each sound in [-1, 1], as long as the network's input; shorter sounds are filled up with zeros."""

    def __init__(self, files: Sequence[Path], shape: tuple[int, ...]) -> None:
        self._files, self._shape = files, shape

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> np.ndarray:
        from tasks.data.signals.sounds import read_sound

        sound_T, _ = read_sound(self._files[number], f"'{self._files[number]}'")
        return fitted(sound_T, math.prod(self._shape)).reshape(self._shape).astype(np.float32)


def _sounds(settings: DataSettings, files: Sequence[Path]) -> OwnSamples:
    """Sounds of one sampling rate as waveforms. UserError: rates differ, or the network takes no waveform."""
    from tasks.data.signals.sounds import same_rate

    shape = _of_one_axis(settings, "of sounds")
    with ThreadPoolExecutor(settings.workers) as pool:
        rate_hz = same_rate(files, [f"'{file}'" for file in files], pool)
    described = (
        f"one channel in [-1, 1] at {rate_hz} Hz, the middle {math.prod(shape)} numbers of a sound, or zeros beside it"
    )
    return OwnSamples(settings, Data(Waveforms(files, shape), preparation=described))


def _of_one_axis(settings: DataSettings, called: str) -> tuple[int, ...]:
    """The shape of a sample of which one axis alone is longer than 1. UserError: it is another, or unknown."""
    shape = settings.shape or ()
    if sum(size > 1 for size in shape) != 1:
        raise UserError("data.shape", f"{list(shape) or 'null'}", allowed=f"[LENGTH] or [1,LENGTH], {called}")
    return shape


def _lines(settings: DataSettings, where: str) -> OwnSamples:
    """The lines of a text as numbers. UserError: it cannot be read, or how lines become numbers is not known."""
    assert settings.path is not None
    try:
        lines = [line for line in settings.path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(where, f"cannot be read ({shortened(error)})", allowed="UTF-8") from error
    _check_count(where, len(lines), "lines")
    shape = _of_one_axis(settings, "of texts")
    length = math.prod(shape)
    if settings.tokens == "bytes":
        cut = [line.encode()[:length] for line in lines]
        tokens = np.array([[*line, *(0,) * (length - len(line))] for line in cut], np.int64)
        described = f"the first {length} bytes of a text in UTF-8, filled up with 0"
    elif settings.tokens is not None and Path(settings.tokens).is_file():
        try:
            tokens = Vocabulary.from_file(Path(settings.tokens)).tokens(lines, length)
        except AdaptiveError as error:
            raise UserError("data.tokens", str(error), allowed="bytes, or a vocabulary.json") from error
        described = f"the numbers of the first {length} words of a text by `{Path(settings.tokens).name}`"
    else:
        known = "own tokenisers give an .npz file of numbers: data.path=FILE.npz"
        raise UserError(
            "data.tokens", f"{settings.tokens}", allowed="bytes, or the path of a vocabulary.json", next_step=known
        )
    return OwnSamples(settings, Data(tokens.reshape(-1, *shape), preparation=described))


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


TARGETS = ("labels", "targets")
"""Arrays of a file of labelled samples that are targets."""


def labelled(settings: DataSettings, opened: Source | None) -> Source | None:
    """The samples of `data.labelled`, or those of the user's own data (`opened` before), with targets; None: there are none."""
    path = settings.labelled
    if path is None:
        own = (opened if isinstance(opened, OwnSamples) else OwnSamples(settings)).data
        given = replace(own, train=own.labelled, validation=None, test=None)
        return None if own.labelled is None else OwnSamples(settings, given)
    where, at = f"data.labelled '{path}'", settings.model_copy(update={"path": path})
    if path.is_file():
        arrays = read_arrays(path) if path.suffix in ARRAYS else {}
        target = next((name for name in TARGETS if name in arrays), "")
        inputs = settings.names or tuple(name for name in arrays if name not in TARGETS)
        if not target or not inputs or not set(inputs) <= set(arrays):
            allowed = (
                f"{', '.join(settings.names or ('the inputs',))} and 'labels' or 'targets', in {', '.join(ARRAYS)}"
            )
            raise UserError(where, f"arrays {', '.join(arrays) or 'none'}", allowed=allowed)
        kept = {name: arrays[name] for name in (*inputs, target)}
        return OwnSamples(at, Data(kept, inputs=inputs))
    require_folder(path)
    check_files(path)
    files = [file for file in sorted(path.glob("*/**/*")) if file.suffix.lower() in IMG_EXTENSIONS]
    if not files:
        raise UserError(where, "no pictures in folders", allowed="a folder of pictures for each class")
    return LabelledPictures(at, files)


class Arrays(OwnSamples):
    """The samples of arrays: each array is an input, in the order of the network's inputs, of the file, or of `data.names`.

    States of the network that are not among the arrays are the network's own: samples follow one another.
    """

    def __init__(self, settings: DataSettings, where: str, arrays: Mapping[str, np.ndarray]) -> None:
        network = settings.network
        names = settings.names or _ordered(arrays, () if network is None else network.inputs)
        if missing := [name for name in names if name not in arrays]:
            raise UserError("data.names", f"no array '{missing[0]}' in the file", allowed=", ".join(arrays))
        counts = {name: len(arrays[name]) if arrays[name].ndim else 0 for name in names}
        if len(set(counts.values())) != 1:
            described = ", ".join(f"{name}: {count}" for name, count in counts.items())
            raise UserError(where, f"samples of {described}", allowed="as many along the first axis of each array")
        _check_count(where, next(iter(counts.values())), "samples")
        given = {name: arrays[name] for name in names}
        if network is not None and len(network.inputs) > 1:
            given = _with_states(network, given, settings.window)
        several = len(given) > 1
        own = () if network is None else [name for name in given if name in network.states and name not in names]
        data = Data(given if several else next(iter(given.values())), inputs=tuple(given) if several else None)
        super().__init__(settings.model_copy(update={"names": None}), data)
        if own:
            self._keep_runs(settings)

    def _keep_runs(self, settings: DataSettings) -> None:
        """Set the lengths of runs of samples. UserError: windows are no such runs, or these are too few."""
        count = len(self.labels)
        most = min(count // FEWEST_RUNS, LONGEST_RUN)
        window = settings.window or 1 << most.bit_length() - 1
        self.run_length = max(number for number in range(1, most + 1) if window % number == 0)
        divisors = [number for number in range(1, self.run_length + 1) if self.run_length % number == 0]
        self.unroll = settings.unroll or max(number for number in divisors if number <= LONGEST_UNROLL)
        if self.unroll not in divisors:
            allowed = f"{', '.join(map(str, divisors))}, which divide the samples that follow one another in a split"
            raise UserError("data.unroll", str(self.unroll), allowed=allowed, next_step="or change data.window")
        if self.run_length == 1:
            got = "SubNets are trained and scored with the states of the given network, not with their own"
            remedy = (
                f"{FEWEST_RUNS} or more windows (data.window) of at most {LONGEST_RUN} samples let them keep their own"
            )
            self.notes = (*self.notes, f"data: {got}; {remedy}")
        elif left := count % self.run_length:
            kept = f"behind runs of {self.run_length} samples that follow one another"
            self.notes = (*self.notes, f"data: the last {left} of {count} samples are left out, {kept}")

    def splits(self, settings: DataSettings) -> Splits:
        """Shares of runs of samples; samples behind the last whole run are left out."""
        if self.run_length == 1:
            return super().splits(settings)
        of_runs = copy.copy(self)
        of_runs.labels = self.labels[:: self.run_length][: len(self.labels) // self.run_length]
        found = complete_splits({"train": np.arange(len(of_runs.labels))}, of_runs, settings)
        return {name: _following(runs * self.run_length, self.run_length) for name, runs in found.items()}

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Samples in a random order in which `unroll` of them follow one another."""
        return _following(rng.permutation(indices[:: self.unroll]), self.unroll)


def _following(firsts: np.ndarray, count: int) -> np.ndarray:
    """`count` samples from each of the first ones on."""
    samples: np.ndarray = (firsts[:, None] + np.arange(count)).ravel()
    return samples


def _ordered(arrays: Mapping[str, np.ndarray], inputs: Sequence[str]) -> tuple[str, ...]:
    """Names of the arrays, in the order of the inputs of these names if all arrays have such a name."""
    known = tuple(name for name in inputs if name in arrays)
    return known if len(known) == len(arrays) else tuple(arrays)


def _with_states(network: GivenNetwork, given: dict[str, np.ndarray], window: int | None) -> dict[str, np.ndarray]:
    """The arrays by the names of the network's inputs, with the states that are not among them."""
    own = list(network.inputs)
    if len(given) < len(own):
        own = [name for name in own if name not in network.states or name in given]
    if len(own) == len(given):
        given = dict(zip(own, given.values(), strict=True))
    if set(own) != set(given) or len(own) == len(network.inputs):
        return given  # the network's file is checked against the names
    given |= states_of(network, given, window)
    return {name: given[name] for name in network.inputs}


class Pictures(Source):
    """Pictures of any size as samples: by the steps in `data.options`, on the scale of the settings."""

    has_classes = False

    def __init__(self, settings: DataSettings, files: list[Path]) -> None:
        self._files = files
        self.labels = np.zeros(len(files), np.int64)
        self.class_names = ()
        self._steps = steps_of(settings)
        self._pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="decode")
        shape = self._steps.shape
        self.scaling = UNSCALED._replace(given=GivenPreparation(shape=shape, size=shape, pictures=self._steps))

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> Inputs:
        """Samples (B, C, H, W) or (B, H, W, C) of pictures; with draws, every other picture is flipped."""
        flips = [False] * len(indices) if draws is None else (draws[:, 4] < 0.5).tolist()
        files = [self._files[index] for index in indices]
        return torch.from_numpy(np.stack(list(self._pool.map(self._one, files, flips))))

    def _one(self, file: Path, flip: bool) -> np.ndarray:
        image = decoded((f"'{file}'", partial(Image.open, file)), "L" if self._steps.channels == 1 else "RGB")
        if flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        height, width = self._steps.scaled_size(image.height, image.width)
        pixels = np.asarray(image.resize((width, height), Image.Resampling[self._steps.interpolation.upper()]))
        return self._steps.placed(pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0))


def steps_of(settings: DataSettings) -> PictureSteps:
    """The steps from pictures to samples. UserError: options that are none, or a shape that pictures do not have."""
    shape = settings.shape or (settings.channels, settings.resolution, settings.resolution)
    is_last = len(shape) == 3 and shape[2] in (1, 3) and shape[0] not in (1, 3)
    channels, *size = (shape[2], *shape[:2]) if is_last else shape
    if len(size) != 2 or channels not in (1, 3):
        allowed = "[1 or 3,HEIGHT,WIDTH] or [HEIGHT,WIDTH,1 or 3], of pictures"
        raise UserError("data.shape", f"{list(shape)}", allowed=allowed)
    mean, deviation = (settings.per_channel(values, channels) for values in (settings.mean, settings.deviation))
    given: dict[str, Any] = {"colours": "RGB" if channels == 3 else "grey", "scaled": size, **settings.options}
    if given.get("largest") == 255 and mean == settings.per_channel(IMAGENET_MEAN, channels):
        next_step = "give data.mean and data.deviation for values up to 255"
        raise UserError("data.options", f"largest=255 with data.mean={list(mean)}", next_step=next_step)
    fixed: dict[str, Any] = {
        "size": size,
        "mean": mean,
        "deviation": deviation,
        "layout": "NHWC" if is_last else "NCHW",
    }
    if unknown := [name for name in given if name not in PICTURE_OPTIONS]:
        raise UserError("data.options", f"'{unknown[0]}'", allowed=f"{', '.join(PICTURE_OPTIONS)}, of pictures")
    try:
        return PictureSteps(**given, **fixed)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("data.options", *first["loc"])))
        raise UserError(place, f"{first['input']!r}", allowed=first["msg"]) from error


class LabelledPictures(Pictures):
    """Pictures in a folder for each class, for the true score. loss, score: as of `OwnSamples`."""

    has_targets = True
    loss = None

    def __init__(self, settings: DataSettings, files: list[Path]) -> None:
        super().__init__(settings, files)
        folder = settings.path
        assert folder is not None
        classes = [file.relative_to(folder).parts[0] for file in files]
        self.class_names = tuple(sorted(set(classes)))
        self.labels = np.array([self.class_names.index(name) for name in classes])
        self.score = function_of("score", settings.own_problem.score) if settings.own_problem else None
