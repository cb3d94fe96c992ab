"""An open bundle: manifest, checked files, calibration sample, source images, and signature.

The manifest is read at once; every other file is checked against its digest before its first use, and again when its
size, modification time or inode has changed. The signature of the manifest is HMAC-SHA256 with a secret key that
exporter and device share. The manifest has the digests of all other files, so its signature covers them, too.

Samples are npz files without pickles. In the calibration sample, with which a device checks its computations, `x.CxHxW`
are images for all SubNets of this shape, in half precision, and `x.T` texts of T words. For several inputs, the name
after `x.` has the sizes of all, and the array has a field for each. `y.DIGEST` are answers of a whole SubNet (N, K),
`y.DIGEST.EXIT` the answers at an exit of its chain.

Legend: N samples, A labelled images, C channels, H height, W width, T words, E exits, K classes, F channels of all
BatchNorms, D statistics of an image, P directions.
"""

import hashlib
import hmac
import io
import os
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from io import BufferedReader
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Array
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import read_bytes
from adaptive_runtime.bundle.bundles.manifest import (
    AGAIN,
    BLOCKS_FILE,
    BUNDLE_FILE,
    SIGNATURE_FILE,
    BlocksManifest,
    BundleManifest,
    FoundSubNets,
)
from adaptive_runtime.bundle.bundles.subnets import CHAIN_FORMATS, AdaptableNet, BundledSubNet, BundleFormat
from adaptive_runtime.bundle.chains import ChainManifest, ChainSegment, ImagePreparation, text_of
from adaptive_runtime.samples.inputs import Vocabulary

CALIBRATION_FILE = "calibration.npz"
MOST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class CalibrationSample:
    """inputs: (N, C, H, W) by shape (C, H, W), texts (N, T) int64 by (T,), or several inputs (N,) by the sizes of all.

    answers: (N, K) by SubNet and exit; exit None: the whole SubNet.
    """

    inputs: Mapping[tuple[int, ...], NDArray[Any]]
    answers: Mapping[tuple[str, str | None], Array]

    def to_bytes(self) -> bytes:
        """The file's content."""
        found: dict[str, NDArray[Any]] = {
            f"x.{'x'.join(map(str, shape))}": x.astype(_stored(x)) for shape, x in self.inputs.items()
        }
        for (digest, exit), y_NK in self.answers.items():
            found[f"y.{digest}" if exit is None else f"y.{digest}.{exit}"] = y_NK
        return _written(found)

    @classmethod
    def from_bytes(cls, content: bytes, where: str = CALIBRATION_FILE) -> "CalibrationSample":
        """Read a file's content. AdaptiveError if it is no calibration sample."""
        inputs: dict[tuple[int, ...], NDArray[Any]] = {}
        answers: dict[tuple[str, str | None], Array] = {}
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                for name, array in arrays.items():
                    kind, _, rest = name.partition(".")
                    if kind == "x":
                        inputs[tuple(map(int, rest.split("x")))] = array.astype(_loaded(array))
                    else:
                        digest, _, exit = rest.partition(".")
                        answers[digest, exit or None] = array
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise AdaptiveError(where, f"is no calibration sample ({error})") from error
        return cls(inputs, answers)


def half(x: NDArray[Any]) -> NDArray[Any]:
    """Inputs as they come back from a file: images rounded to half precision, numbers of words unchanged."""
    stored = x.astype(_stored(x))
    return stored.astype(_loaded(stored))


def _stored(x: NDArray[Any]) -> np.dtype[Any]:
    return _with_floats(x.dtype, np.float16)


def _loaded(x: NDArray[Any]) -> np.dtype[Any]:
    return _with_floats(x.dtype, np.float32)


def _with_floats(given: np.dtype[Any], floats: type[np.floating[Any]]) -> np.dtype[Any]:
    """The type with floats replaced, also in the fields of several inputs; whole numbers become 64 bits."""
    if given.names is not None:
        return np.dtype([(name, _with_floats(given[name].base, floats), given[name].shape) for name in given.names])
    return np.dtype(floats if np.issubdtype(given, np.floating) else np.int64)


LEVELS = 255.0
"""Levels of a colour in uint8."""
NEEDED = ("mean", "variance", "usual_mean", "usual_deviation", "calibration")
TOGETHER = (("directions", "distances"), ("usual_light", "light_deviations"))
"""Arrays of `AdaptationSource`: NEEDED are in every file; TOGETHER are pairs that files of earlier versions lack."""


def _written(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, allow_pickle=False, **dict(arrays))
    return stream.getvalue()


def _read(content: bytes, names: tuple[str, ...], where: str, newer: tuple[str, ...] = ()) -> dict[str, NDArray[Any]]:
    """Arrays by name. newer: names that files of earlier versions lack. AdaptiveError if one of `names` is missing."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in (*names, *(name for name in newer if name in arrays))}
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise AdaptiveError(where, f"cannot be read ({error})", next_step="export the bundle again") from error


@dataclass(frozen=True, slots=True)
class SourceImages:
    """Labelled images (A, C, H, W) like those of training, in uint8 and the data's resolution; never used for training."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    @classmethod
    def of(cls, x_ACHW: Array, labels_A: NDArray[np.int64], prepared: ImagePreparation) -> Self:
        """Convert images as a SubNet takes them, in the data's resolution; colours are rounded to levels of uint8."""
        mean, deviation = _by_channel(prepared)
        levels = np.rint((x_ACHW * deviation + mean) * LEVELS)
        return cls(np.clip(levels, 0, LEVELS).astype(np.uint8), labels_A)

    def normalised(self, prepared: ImagePreparation) -> Array:
        """Images (A, C, H, W) as a SubNet takes them, in the data's resolution."""
        mean, deviation = _by_channel(prepared)
        return ((self.images / np.float32(LEVELS) - mean) / deviation).astype(np.float32)

    def to_bytes(self) -> bytes:
        """The file's content."""
        return _written({"images": self.images, "labels": self.labels})

    @classmethod
    def from_bytes(cls, content: bytes, where: str) -> Self:
        """Read a file's content. AdaptiveError if it is no such file."""
        return cls(**_read(content, ("images", "labels"), where))


def _by_channel(prepared: ImagePreparation) -> tuple[Array, Array]:
    return tuple(np.array(each, np.float32).reshape(-1, 1, 1) for each in (prepared.mean, prepared.deviation))  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class AdaptationSource:
    """The usual statistics for one SubNet.

    mean, variance (F,): of its BatchNorms, one after another. usual_mean, usual_deviation (2F,), directions (P, 2F): of the
    features of images (`adaptive_runtime.weights.UsualFeatures`). calibration (N, 3): statistics of images like those
    of training; distances (N,): the fourth statistic. usual_light (6, C), light_deviations (): of images in the SubNet's size
    (`adaptive_runtime.weights.ImageAlignment`). Files of version 0.6.0 have neither directions nor distances; files
    before version 0.12.0 have no light. Earlier run times ignore arrays that they do not know.
    """

    mean: Array
    variance: Array
    usual_mean: Array
    usual_deviation: Array
    calibration: NDArray[np.float64]
    directions: Array | None = None
    distances: NDArray[np.float64] | None = None
    usual_light: Array | None = None
    light_deviations: NDArray[np.float64] | None = None

    @property
    def calibration_ND(self) -> NDArray[np.float64]:
        """All statistics of the images of calibration."""
        return self.calibration if self.distances is None else np.column_stack([self.calibration, self.distances])

    def to_bytes(self) -> bytes:
        """The file's content."""
        arrays = {one.name: getattr(self, one.name) for one in fields(self)}
        return _written({name: array for name, array in arrays.items() if array is not None})

    @classmethod
    def from_bytes(cls, content: bytes, where: str) -> Self:
        """Read a file's content. AdaptiveError if it is no such file."""
        found = cls(**_read(content, NEEDED, where, newer=tuple(name for pair in TOGETHER for name in pair)))
        for pair in TOGETHER:
            if len({getattr(found, name) is None for name in pair}) > 1:
                raise AdaptiveError(where, f"has {' or '.join(pair)} alone", next_step="export the bundle again")
        return found


LEAST_BYTES = 16


def read_key(file: str | Path) -> bytes:
    """The secret key, the content of a file. AdaptiveError if the file cannot be read or is too short to be secret."""
    try:
        key = Path(file).read_bytes().strip()
    except OSError as error:
        raise AdaptiveError(f"key file '{file}'", f"cannot be read ({error.strerror})") from error
    if len(key) < LEAST_BYTES:
        next_step = f"make one: openssl rand -hex 32 > {file}"
        raise AdaptiveError(
            f"key file '{file}'", f"{len(key)} bytes", allowed=f"{LEAST_BYTES} or more", next_step=next_step
        )
    return key


def signature(content: bytes, key: bytes) -> str:
    """The signature as hex digits."""
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def verify(content: bytes, stated: Path, key: bytes) -> None:
    """AdaptiveError unless the file `stated` has the signature of this content."""
    try:
        found = stated.read_text().strip()
    except (OSError, ValueError) as error:
        raise AdaptiveError(
            str(stated), "cannot be read, but a key was given", next_step="export with export.bundle_key"
        ) from error
    if not hmac.compare_digest(found.encode(), signature(content, key).encode()):
        raise AdaptiveError(
            str(stated),
            "is not the signature of the manifest by this key",
            next_step="take the exporter's key, or its bundle",
        )


Stamp = tuple[int, int, int]


class OpenBundle:
    """A folder with a manifest whose files all exist and have their size."""

    def __init__(self, folder: Path, manifest: BundleManifest, digest: str) -> None:
        """digest: sha256 of the manifest's file."""
        self.folder, self.manifest, self.digest = folder, manifest, digest
        self._checked: dict[str, Stamp] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: str | Path, key_file: str | Path | None = None, also: str | Path | None = None) -> Self:
        """Read a bundle; sizes of files are checked now, digests before a file is used. AdaptiveError in one line.

        key_file: also check the manifest's signature with this key; without it no signature is needed.
        also: the folder of a search on this device, whose SubNets join those of the bundle.
        """
        folder = Path(folder)
        content = read_bytes(folder / BUNDLE_FILE, AGAIN)
        if key_file is not None:
            verify(content, folder / SIGNATURE_FILE, read_key(key_file))
        digest = hashlib.sha256(content).hexdigest()
        manifest = BundleManifest.from_json(content, str(folder / BUNDLE_FILE))
        if also is not None:
            manifest = FoundSubNets.read(Path(also)).joined(manifest, digest, Path(also))
        found = cls(folder, manifest, digest)
        for name in found.manifest.files:
            found._stamp(name)
        return found

    def verified(self, *names: str) -> list[Path]:
        """The paths of files after their digests have been checked. AdaptiveError for the first file that differs."""
        with self._lock:
            for name in names:
                stamp = self._stamp(name)
                if self._checked.get(name) == stamp:
                    continue
                with _opened(self.folder / name) as stream:
                    found = hashlib.file_digest(stream, "sha256").hexdigest()
                if found != self.manifest.files[name].sha256:
                    got = f"is not the file that {BUNDLE_FILE} names"
                    raise AdaptiveError(str(self.folder / name), got, next_step=AGAIN)
                self._checked[name] = stamp
        return [self.folder / name for name in names]

    def verify_all(self) -> None:
        """Check all files at once. AdaptiveError for the first file that differs from its digest."""
        self.verified(*self.manifest.files)

    def whole(self, subnet: BundledSubNet, form: BundleFormat) -> ChainManifest:
        """A whole SubNet as a chain of one segment."""
        net, run = subnet.nets[form], self.manifest.runs[form]
        exit = str(subnet.config.get("exit", "last"))
        own = {"file": net.files[0]} if CHAIN_FORMATS[form] == "onnx" else {}
        return ChainManifest(
            format=CHAIN_FORMATS[form],
            digest=subnet.digest,
            files={name: self.manifest.files[name].sha256 for name in net.files},
            input=net.input,
            segments=(ChainSegment(exit=exit, inputs=net.input.every, outputs=(net.output,), macs=subnet.macs, **own),),
            classes=self.manifest.classes,
            preparation=subnet.preparation,
            runtime=run.runtime,
            settings=run.settings,
        )

    def chain(self, subnet: BundledSubNet, form: BundleFormat) -> ChainManifest:
        """The chain of a SubNet; only its manifest is read. AdaptiveError if the SubNet has none.

        The chain runs with the format's settings if these are of another precision than the chain's own.
        """
        name = subnet.nets[form].chain
        if name is None:
            where = f"SubNet {subnet.digest}"
            raise AdaptiveError(
                where, f"has no exits in {form}", next_step="use the whole SubNet, or export.segments=true"
            )
        (file,) = self.verified(name)
        found = ChainManifest.from_json(read_bytes(file, AGAIN), str(file))
        if subnet.nets[form].figures is None:
            return found
        return found.model_copy(update={"settings": self.manifest.runs[form].settings})

    def blocks(self) -> BlocksManifest:
        """The segments from which SubNets can be assembled. AdaptiveError if the bundle has none."""
        if BLOCKS_FILE not in self.manifest.files:
            next_step = "export a SuperNet with alternatives by export.blocks=true"
            raise AdaptiveError(str(self.folder), "has no segments of blocks", next_step=next_step)
        (file,) = self.verified(BLOCKS_FILE)
        found = BlocksManifest.from_file(file)
        for name in (found.weights, *(one.file for one in found.segments)):
            if name not in self.manifest.files:
                raise AdaptiveError(str(file), f"'{name}' is not among the bundle's files", next_step=AGAIN)
        return found

    def calibration(self) -> CalibrationSample | None:
        """Inputs with expected answers; None if the bundle has none."""
        if self.manifest.calibration is None:
            return None
        (file,) = self.verified(self.manifest.calibration)
        return CalibrationSample.from_bytes(read_bytes(file, AGAIN), str(file))

    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary of texts; None if samples have no text."""
        text = text_of(self.manifest.subnets[0].preparation)
        if text is None:
            return None
        (file,) = self.verified(text.vocabulary)
        return Vocabulary.from_file(file)

    def source_images(self) -> SourceImages | None:
        """Labelled images like those of training; None if no SubNet can adapt."""
        if self.manifest.source_images is None:
            return None
        (file,) = self.verified(self.manifest.source_images)
        return SourceImages.from_bytes(read_bytes(file, AGAIN), str(file))

    def adaptation_source(self, net: AdaptableNet) -> AdaptationSource:
        """The usual statistics of a SubNet that can adapt."""
        (file,) = self.verified(net.source)
        return AdaptationSource.from_bytes(read_bytes(file, AGAIN), str(file))

    def _stamp(self, name: str) -> Stamp:
        file, expected = self.folder / name, self.manifest.files[name].bytes
        try:
            found = os.stat(file)
        except OSError as error:
            raise AdaptiveError(str(file), f"cannot be read ({error.strerror})", next_step=AGAIN) from error
        if found.st_size != expected:
            got = f"has {found.st_size} bytes"
            raise AdaptiveError(str(file), got, allowed=str(expected), next_step=AGAIN)
        return found.st_ino, found.st_mtime_ns, found.st_size


def _opened(file: Path) -> BufferedReader:
    try:
        return file.open("rb")
    except OSError as error:
        raise AdaptiveError(str(file), f"cannot be read ({error.strerror})", next_step=AGAIN) from error
