"""Adapting statistics of one SubNet without labels, optionally with learned scales and biases, and side files.

A side file is npz without pickles, in a folder on the device, never in the bundle's weights. It fits one SubNet of one
bundle and has checksums of its whole content. Learned scales and biases are optional; versions without them read the
statistics beside them. An adaptation to aligned images is useless without alignment: versions without alignment treat
such a file as damaged.

Legend: A labelled source images, B batch, C channels, H height, W width, K classes.
"""

import hashlib
import io
import logging
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import replace_file
from adaptive_runtime.base.weight_options import WeightOptions
from adaptive_runtime.weights.aligning import ImageAlignment
from adaptive_runtime.weights.guard import AdaptedVerdict, AnchorGap, confidence, judged
from adaptive_runtime.weights.statistics import (
    Array,
    LearnedScales,
    NormScales,
    NormStatistics,
    ObservedNetwork,
    SeenImages,
)

LOG = logging.getLogger("adaptive_runtime")


class KeptWeights(NamedTuple):
    """Adapted statistics after so many steps, and learned scales and biases; None: none were learned.

    aligns: whether images are aligned; without steps, alignment is the only adaptation.
    """

    statistics: NormStatistics
    steps: int
    scales: NormScales | None = None
    aligns: bool = False

    def described(self, source: str) -> str:
        """The text that goes into the checksum besides the arrays."""
        return f"{source} {self.steps}{' aligned' if self.aligns else ''}"


class AdaptedFiles:
    """Side files by the SubNet's digest, in a folder that is created if missing. AdaptiveError: it cannot be created."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AdaptiveError(f"state folder '{folder}'", f"cannot be made ({error.strerror})") from error

    def file(self, digest: str) -> Path:
        """The path of a SubNet's side file."""
        return self.folder / f"{digest}.adapted.npz"

    def read(self, digest: str, source: str, channels: int) -> KeptWeights | None:
        """The saved adaptation of a SubNet; None: no file, or a damaged or foreign file, which is logged.

        source: digest of the SubNet's statistics before adaptation.
        """
        file = self.file(digest)
        try:
            with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as arrays:
                statistics = NormStatistics(arrays["mean"], arrays["variance"])
                learned = NormScales(arrays["scale"], arrays["bias"]) if "scale" in arrays else None
                aligns = "aligns" in arrays and bool(arrays["aligns"])
                found = KeptWeights(statistics, int(arrays["steps"]), learned, aligns)
                described, checksum = str(arrays["source"]), str(arrays["checksum"])
                of_scales = None if learned is None else str(arrays["scales_checksum"])
        except FileNotFoundError:
            return None
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            line = " ".join(str(error).split())
            LOG.warning("'%s' is damaged (%s); the SubNet is as the bundle has it", file, line)
            return None
        wanted = _checksum(statistics, found.described(described))
        arrays_F: tuple[Array, ...] = statistics if learned is None else (*statistics, *learned)
        if checksum != wanted or not (learned is None or of_scales == _checksum(learned, wanted)):
            LOG.warning("'%s' is damaged (another checksum); the SubNet is as the bundle has it", file)
        elif described != source or any(one.shape != (channels,) for one in arrays_F):
            LOG.warning("'%s' belongs to another bundle; the SubNet is as this bundle has it", file)
        elif not statistics.is_finite or not (learned is None or learned.is_finite):
            LOG.warning("'%s' has values that no network can use; the SubNet is as the bundle has it", file)
        else:
            return found
        return None

    def write(self, digest: str, source: str, kept: KeptWeights) -> None:
        """Save the adaptation of a SubNet; a failure is logged in one line."""
        statistics, scales = kept.statistics, kept.scales
        stream, checksum = io.BytesIO(), _checksum(statistics, kept.described(source))
        arrays = {
            "mean": statistics.mean_F,
            "variance": statistics.variance_F,
            "steps": np.array(kept.steps),
            "source": np.array(source),
            "checksum": np.array(checksum),
        }
        if kept.aligns:
            arrays["aligns"] = np.array(True)
        if scales is not None:
            arrays |= {"scale": scales.scale_F, "bias": scales.bias_F}
            arrays["scales_checksum"] = np.array(_checksum(scales, checksum))
        np.savez(stream, allow_pickle=False, **arrays)
        try:
            replace_file(self.file(digest), stream.getvalue())
        except OSError as error:
            LOG.warning(
                "'%s' cannot be written (%s): a restart begins with the source", self.file(digest), error.strerror
            )

    def remove(self, digest: str) -> None:
        """Delete the saved adaptation of a SubNet."""
        try:
            self.file(digest).unlink(missing_ok=True)
        except OSError as error:
            LOG.warning("'%s' cannot be removed (%s): a restart finds it", self.file(digest), error.strerror)


def _checksum(arrays: Iterable[Array], described: str) -> str:
    found = hashlib.sha256(described.encode())
    for array in arrays:
        found.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


class LabelledSource(NamedTuple):
    """Images (A, C, H, W) like those of training, in the SubNet's size, and their labels (A,)."""

    x_ACHW: Array
    label_A: NDArray[np.int64]


class StatisticsWeights:
    """Statistics of a SubNet's BatchNorms that follow the images when `DriftGuard` says so.

    learned: scales and biases that change in each step, too; None: they stay the source's. anchor: reads labelled source images
    when they are needed. alignment: of images, while it is switched on; None: never. example: an image (1, C, H, W) of the
    latest verdict, aligned if alignment was on, and the adapted logits (1, K) for it; before the first verdict those of the
    source.

    A step takes the statistics of images, with each BatchNorm normalising by them, mixed with the source's by a prior of
    `prior_images` images; steps are averaged. One step on one batch equals the method `batchnorm` of `tasks.adaptation`; with
    `learned` it equals `tent`.
    """

    def __init__(
        self,
        network: ObservedNetwork,
        source: NormStatistics,
        anchor: Callable[[], LabelledSource],
        options: WeightOptions,
        learned: LearnedScales | None = None,
        alignment: ImageAlignment | None = None,
    ) -> None:
        self.network, self.source, self.options, self._anchor = network, source, options, anchor
        self._learned, self.alignment = learned, alignment
        self._usual = self._gap(source)
        x_ACHW, _ = anchor()
        self.example = self._example(x_ACHW, self.network.look(x_ACHW[:1], source))
        self.reset()

    @property
    def fewest(self) -> int:
        """Minimum number of images of a step and of a verdict."""
        return self.network.images

    def reset(self, *, aligns: bool = False) -> None:
        """Return to the source. aligns: images are aligned from now on."""
        self.restore(self.source, 0, aligns=aligns)

    def restore(
        self, statistics: NormStatistics, steps: int, scales: NormScales | None = None, *, aligns: bool = False
    ) -> None:
        """Set statistics that come from so many steps, and learned scales and biases. None: the source's."""
        self.statistics, self.steps, self._aligns = statistics, steps, aligns
        if self._learned is not None:
            self._learned.restore(scales)

    @property
    def scales(self) -> NormScales | None:
        """Current scales and biases; None: they stay the source's."""
        return None if self._learned is None else self._learned.now

    @property
    def folded(self) -> NormStatistics:
        """Statistics with which the bundle's weights compute the adapted answers."""
        return self._folded(self.statistics)

    def release(self) -> None:
        """Free the memory for observing until the next images come."""
        self.network.release()
        if self._learned is not None:
            self._learned.release()

    def _folded(self, statistics: NormStatistics) -> NormStatistics:
        """The same for other statistics, with the current scales and biases."""
        return statistics if self._learned is None else self._learned.folded(statistics)

    def adapt(self, x_BCHW: Array) -> None:
        """Make one step on images, at least `fewest`."""
        x_BCHW = self.given(x_BCHW)
        share = self.network.images / (self.network.images + self.options.prior_images)
        if self._learned is None:
            found = self.network.statistics(x_BCHW, self.source, share)
        else:
            found = self._learned.step(self.network.batches(x_BCHW), self.source, share)
        newest = max(self.options.newest_share, 1 / (self.steps + 1))
        self.statistics = self.statistics.averaged(self.source.towards(found, share), newest)
        self.steps += 1

    def look(self, x_BCHW: Array) -> SeenImages:
        """Run images through the SubNet in its current adaptation."""
        return self.network.look(self.given(x_BCHW), self.folded)

    def answers(self, x_BCHW: Array) -> Array:
        """Logits (B, K) for images."""
        return self.look(x_BCHW).logits_BK

    def given(self, x_BCHW: Array) -> Array:
        """Images in the form that the SubNet gets: aligned or unchanged."""
        return self.alignment(x_BCHW) if self._aligns and self.alignment is not None else x_BCHW

    def verdict(self, x_BCHW: Array, source_BK: Array) -> AdaptedVerdict:
        """Whether the adaptation is better on holdout images than the source, which gets the same images.

        First condition: the BatchNorms' inputs on these images are closer to the adapted statistics than they are, with the
        source, to the source's (`NormStatistics.distance`). The adapted statistics then fit the images as the source's fit the
        source images, and the source's fit the images as badly as the adapted ones fit the source images. The adapted network's
        expected excess of accuracy over confidence is therefore that of the source's statistics on labelled source images, and
        the source's is that of the adapted statistics there. Learned scales and biases, which increase confidence, are combined
        with the source's statistics there; they may lose `GuardSettings.anchor_points` of accuracy.
        """
        if not self.statistics.is_finite or not (self.scales is None or self.scales.is_finite):
            return AdaptedVerdict(False, "adapted weights are no finite numbers", 0.0, 0.0)
        x_BCHW = self.given(x_BCHW)
        seen, usual = (self.network.look(x_BCHW, one) for one in (self.folded, self.source))
        self.example = self._example(x_BCHW, seen)
        away, usually_away = seen.statistics.distance(self.statistics), usual.statistics.distance(self.source)
        if not away < usually_away:
            reason = (
                f"held-back images are {away:.2g} away from adapted statistics, {usually_away:.2g} from the source's"
            )
            return AdaptedVerdict(False, reason, confidence(source_BK), confidence(seen.logits_BK))
        fitting = self._usual if self._learned is None else self._gap(self._folded(self.source))
        lost_points = 100 * (self._usual.accuracy - fitting.accuracy)
        lost_points = lost_points if lost_points > self.options.guard.anchor_points else 0.0
        return judged(source_BK, self._gap(self.statistics).above, seen.logits_BK, fitting.above, lost_points)

    @staticmethod
    def _example(x_BCHW: Array, seen: SeenImages) -> tuple[Array, Array]:
        return x_BCHW[:1].copy(), seen.logits_BK[:1]

    def lost_by_alignment(self) -> float:
        """Points of accuracy on labelled source images that the source loses by aligning them."""
        return 100 * (self._usual.accuracy - self._gap(self.source, aligned=True).accuracy)

    def _gap(self, statistics: NormStatistics, *, aligned: bool = False) -> AnchorGap:
        """The gap on labelled source images, aligned or unchanged."""
        x_ACHW, label_A = self._anchor()
        if aligned and self.alignment is not None:
            x_ACHW = self.alignment(x_ACHW)
        return AnchorGap.of(self.network.look(x_ACHW, statistics).logits_BK, label_A)
