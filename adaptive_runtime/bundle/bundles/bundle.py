"""An open bundle: its manifest is read at once; every other file is checked before its first use.

A file is checked against its digest once, and again when its size, modification time or inode has changed.
"""

import hashlib
import os
import threading
from io import BufferedReader
from pathlib import Path
from typing import Self

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.message_files import read_bytes
from adaptive_runtime.bundle.bundles.blocks import BLOCKS_FILE, BlocksManifest
from adaptive_runtime.bundle.bundles.calibration import CalibrationSample
from adaptive_runtime.bundle.bundles.formats import CHAIN_FORMATS, BundleFormat
from adaptive_runtime.bundle.bundles.found import FoundSubNets
from adaptive_runtime.bundle.bundles.manifest import AGAIN, BUNDLE_FILE, SIGNATURE_FILE, BundleManifest
from adaptive_runtime.bundle.bundles.signatures import read_key, verify
from adaptive_runtime.bundle.bundles.sources import AdaptationSource, SourceImages
from adaptive_runtime.bundle.bundles.subnets import AdaptableNet, BundledSubNet
from adaptive_runtime.bundle.chains import ChainManifest, ChainSegment, text_of
from adaptive_runtime.samples.texts import Vocabulary

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
