"""`found.json`: SubNets that a search on the device has assembled from the segments of a bundle.

The file names files of the bundle and adds none. It belongs to one bundle, by the digest of the manifest.
"""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.message_files import FileMessage
from adaptive_runtime.bundle.bundles.manifest import BundleManifest
from adaptive_runtime.bundle.bundles.subnets import BundledSubNet
from profiling_agents.messages import Digest

FOUND_FILE = "found.json"
VERSION = 1
AGAIN = "search again: autotailor-runtime search"
HERE = "device"
"""The split of accuracies that a search on the device measures."""


class FoundSubNets(FileMessage):
    """The result of a search. bundle: sha256 of its manifest.

    images: number of images for measuring accuracies. labels: given by the user, or the largest SubNet's answers. accuracies:
    of the bundle's own SubNets on the same images, by digest. subnets: found ones; their files run one behind the other.
    """

    WHERE: ClassVar[str] = FOUND_FILE
    NEXT_STEP: ClassVar[str] = AGAIN
    READ_VERSION: ClassVar[int | None] = VERSION
    CONTENT: ClassVar[str] = "a search"

    version: int = VERSION
    bundle: Digest
    images: int = Field(ge=1)
    labels: Literal["given", "largest"]
    accuracies: dict[str, float]
    subnets: tuple[BundledSubNet, ...]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file in the folder of a search. AdaptiveError in one line."""
        return cls.from_file(folder / FOUND_FILE)

    def joined(self, manifest: BundleManifest, digest: str, folder: Path) -> BundleManifest:
        """The manifest plus these SubNets, all with the accuracies on the device first. AdaptiveError if of another bundle.

        digest: of the manifest's file. AdaptiveError, too, if a SubNet of the bundle has no accuracy on the device.
        """
        if digest != self.bundle:
            raise AdaptiveError(str(folder / FOUND_FILE), "was found for another bundle", next_step=AGAIN)
        own = [
            one.model_copy(update={"accuracy": {HERE: self.accuracies[one.digest], **one.accuracy}})
            for one in manifest.subnets
            if one.digest in self.accuracies
        ]
        silent = [one for one in manifest.subnets if one.digest not in self.accuracies]
        if silent:
            got = f"has no accuracy of SubNet {silent[0].digest}"
            raise AdaptiveError(str(folder / FOUND_FILE), got, next_step=AGAIN)
        fields = {name: getattr(manifest, name) for name in BundleManifest.model_fields}
        try:
            return BundleManifest.model_validate({**fields, "subnets": (*own, *self.subnets)})
        except ValueError as error:
            raise AdaptiveError(str(folder / FOUND_FILE), str(error), next_step=AGAIN) from error
