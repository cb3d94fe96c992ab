"""Side files: the adaptation of a SubNet, saved in a folder on the device, never in the bundle's weights.

A side file is npz without pickles. It fits one SubNet of one bundle and has checksums of its whole content. Learned scales and
biases are optional; versions without them read the statistics beside them. An adaptation to aligned images is useless without
alignment: versions without alignment treat such a file as damaged.
"""

import hashlib
import io
import logging
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import replace_file
from adaptive_runtime.weights.scales import NormScales
from adaptive_runtime.weights.statistics import Array, NormStatistics

LOG = logging.getLogger("adaptive_runtime")


class KeptWeights(NamedTuple):
    """Adapted statistics after so many steps, and learned scales and biases; None: none were learned.

    aligns: whether images are aligned; without steps, alignment is the only adaptation.
    """

    statistics: NormStatistics
    steps: int
    scales: NormScales | None = None
    aligns: bool = False

    def told(self, source: str) -> str:
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
                told, checksum = str(arrays["source"]), str(arrays["checksum"])
                of_scales = None if learned is None else str(arrays["scales_checksum"])
        except FileNotFoundError:
            return None
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            line = " ".join(str(error).split())
            LOG.warning("'%s' is damaged (%s); the SubNet is as the bundle has it", file, line)
            return None
        wanted = _checksum(statistics, found.told(told))
        arrays_F: tuple[Array, ...] = statistics if learned is None else (*statistics, *learned)
        if checksum != wanted or not (learned is None or of_scales == _checksum(learned, wanted)):
            LOG.warning("'%s' is damaged (another checksum); the SubNet is as the bundle has it", file)
        elif told != source or any(one.shape != (channels,) for one in arrays_F):
            LOG.warning("'%s' belongs to another bundle; the SubNet is as this bundle has it", file)
        elif not statistics.is_finite or not (learned is None or learned.is_finite):
            LOG.warning("'%s' has values that no network can use; the SubNet is as the bundle has it", file)
        else:
            return found
        return None

    def write(self, digest: str, source: str, kept: KeptWeights) -> None:
        """Save the adaptation of a SubNet; a failure is logged in one line."""
        statistics, scales = kept.statistics, kept.scales
        stream, checksum = io.BytesIO(), _checksum(statistics, kept.told(source))
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


def _checksum(arrays: Iterable[Array], told: str) -> str:
    found = hashlib.sha256(told.encode())
    for array in arrays:
        found.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
