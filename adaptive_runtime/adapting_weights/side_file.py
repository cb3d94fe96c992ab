"""Side files: what a SubNet has adapted, in a folder of the device, never in the bundle's weights.

A side file is npz without pickles. It fits one SubNet of one bundle, and has a checksum of all that it says.
"""

import hashlib
import io
import logging
import zipfile
from pathlib import Path

import numpy as np

from adaptive_runtime.adapting_weights.statistics import NormStatistics
from adaptive_runtime.errors import AdaptiveError
from adaptive_runtime.files import replace_file

LOG = logging.getLogger("adaptive_runtime")


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

    def read(self, digest: str, source: str, channels: int) -> tuple[NormStatistics, int] | None:
        """Statistics and steps that are kept of a SubNet; None: none, or the file is damaged or foreign, which the log tells.

        source: digest of what the SubNet's statistics were before.
        """
        file = self.file(digest)
        try:
            with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as arrays:
                found = NormStatistics(arrays["mean"], arrays["variance"])
                steps, told, checksum = int(arrays["steps"]), str(arrays["source"]), str(arrays["checksum"])
        except FileNotFoundError:
            return None
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            line = " ".join(str(error).split())
            LOG.warning("'%s' is damaged (%s); the SubNet is as the bundle has it", file, line)
            return None
        if checksum != _checksum(found, steps, told):
            LOG.warning("'%s' is damaged (another checksum); the SubNet is as the bundle has it", file)
        elif told != source or found.mean_F.shape != (channels,) or found.variance_F.shape != (channels,):
            LOG.warning("'%s' belongs to another bundle; the SubNet is as this bundle has it", file)
        elif not found.is_finite:
            LOG.warning("'%s' has values that no network can use; the SubNet is as the bundle has it", file)
        else:
            return found, steps
        return None

    def write(self, digest: str, source: str, statistics: NormStatistics, steps: int) -> None:
        """Keep what a SubNet has adapted; where that fails, one line tells so."""
        stream = io.BytesIO()
        arrays = {
            "mean": statistics.mean_F,
            "variance": statistics.variance_F,
            "steps": np.array(steps),
            "source": np.array(source),
            "checksum": np.array(_checksum(statistics, steps, source)),
        }
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


def _checksum(statistics: NormStatistics, steps: int, source: str) -> str:
    found = hashlib.sha256(f"{source} {steps}".encode())
    for array in statistics:
        found.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
