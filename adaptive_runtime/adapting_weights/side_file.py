"""Side files: what a SubNet has adapted, in a folder of the device, never in the bundle's weights.

A side file is npz without pickles. It fits one SubNet of one bundle, and has checksums of all that it says. Scales and biases
are there where they were learned; versions that know none read the statistics beside them. What was adapted to aligned images
is of no use without aligning: versions that align none take such a file for damaged.
"""

import hashlib
import io
import logging
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from adaptive_runtime.adapting_weights.scales import NormScales
from adaptive_runtime.adapting_weights.statistics import Array, NormStatistics
from adaptive_runtime.errors import AdaptiveError
from adaptive_runtime.files import replace_file

LOG = logging.getLogger("adaptive_runtime")


class KeptWeights(NamedTuple):
    """Statistics that come from so many steps, and learned scales and biases. None: nothing of these was learned.

    aligns: whether images are aligned; without steps, that is all that was done.
    """

    statistics: NormStatistics
    steps: int
    scales: NormScales | None = None
    aligns: bool = False

    def told(self, source: str) -> str:
        """What the checksum has of all this but the arrays."""
        return f"{source} {self.steps}{' aligned' if self.aligns else ''}"


class AdaptedFiles:
    """Side files by the SubNet's digest, in a folder that is made where it is missing. AdaptiveError: it cannot be made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AdaptiveError(f"state folder '{folder}'", f"cannot be made ({error.strerror})") from error

    def file(self, digest: str) -> Path:
        """The side file of a SubNet."""
        return self.folder / f"{digest}.adapted.npz"

    def read(self, digest: str, source: str, channels: int) -> KeptWeights | None:
        """What is kept of a SubNet; None: nothing, or the file is damaged or foreign, which the log tells.

        source: digest of what the SubNet's statistics were before.
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
        """Keep what a SubNet has adapted; where that fails, one line tells so."""
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
        """Forget what a SubNet has adapted."""
        try:
            self.file(digest).unlink(missing_ok=True)
        except OSError as error:
            LOG.warning("'%s' cannot be removed (%s): a restart finds it", self.file(digest), error.strerror)


def _checksum(arrays: Iterable[Array], told: str) -> str:
    found = hashlib.sha256(told.encode())
    for array in arrays:
        found.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
