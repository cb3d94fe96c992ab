"""Manifests of a bundle: `bundle.json`, segments in `blocks.json`, and SubNets found on a device in `found.json`.

`bundle.json` has all that a device needs to choose among SubNets, to run them and to check their answers, and the
digests of all other files. `blocks.json` has segments of the SuperNet, from which a device assembles further SubNets as
chains. Boundaries are counted from the network's input, 0, to its answer. A segment reads the value at one boundary and
gives the value at a later boundary. `found.json` has SubNets that a search on the device has assembled from these
segments. The file names files of the bundle and adds none; it belongs to one bundle, by the digest of the manifest.
"""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import FileMessage
from adaptive_runtime.bundle.bundles.subnets import BUNDLE_FORMATS, BundledSubNet, BundleFormat, Choice
from adaptive_runtime.bundle.chains import ChainTensor, ImagePreparation
from adaptive_runtime.bundle.chains.manifest import FileName
from profiling_agents.messages import Digest, Message

BLOCKS_FILE = "blocks.json"
BLOCKS_VERSION = 1
AGAIN = "export the bundle again"


class BundledSegment(Message):
    """A segment that leads from one boundary to a later one.

    variable, choice: the alternative that the segment implements; None: the network's own layers. bytes: size of its weights.
    macs: for one sample. predicted_ms: None if unknown. accuracy_loss: loss of the largest SubNet with this alternative alone,
    as a share of images; None: unknown.
    """

    start: int = Field(ge=0)
    end: int
    variable: str | None = None
    choice: str | None = None
    file: FileName
    input: ChainTensor
    output: ChainTensor
    bytes: int
    macs: int
    predicted_ms: float | None = None
    accuracy_loss: float | None = None


class BlocksManifest(FileMessage):
    """All segments of one SuperNet; its variables of other kinds than `block` have the values of `config`.

    weights: the file that segments refer to. accuracy: of the network's own layers, by split. relative_difference: largest
    difference from torch over the checked SubNets, relative to the largest value.
    """

    WHERE: ClassVar[str] = BLOCKS_FILE
    NEXT_STEP: ClassVar[str] = AGAIN
    READ_VERSION: ClassVar[int | None] = BLOCKS_VERSION
    CONTENT: ClassVar[str] = "blocks"

    version: int = BLOCKS_VERSION
    config: dict[str, Choice]
    preparation: ImagePreparation
    weights: FileName
    accuracy: dict[str, float]
    segments: Annotated[tuple[BundledSegment, ...], Field(min_length=1)]
    relative_difference: float = 0.0

    @model_validator(mode="after")
    def _leads_from_input_to_answer(self) -> Self:
        own = {(one.start, one.end) for one in self.segments if one.variable is None}
        wanted = {(at, at + 1) for at in range(self.boundaries - 1)}
        if own != wanted:
            raise ValueError(f"the network's own layers do not lead from boundary 0 to {self.boundaries - 1}")
        for number, one in enumerate(self.segments):
            if one.end <= one.start:
                raise ValueError(f"segment {number} leads from boundary {one.start} to {one.end}")
            if (one.variable is None) != (one.choice is None):
                raise ValueError(f"segment {number} has a variable without a choice, or a choice without a variable")
        if wrong := [n for n, one in enumerate(self.segments) if one.input.shape != self._shapes[one.start]]:
            raise ValueError(f"segment {wrong[0]} reads another shape than those before it give")
        return self

    @property
    def boundaries(self) -> int:
        """The number of boundaries, the input and the answer included."""
        return 1 + max(one.end for one in self.segments)

    @property
    def largest(self) -> tuple[int, ...]:
        """The network's own layers: positions of their segments in order."""
        own = [number for number, one in enumerate(self.segments) if one.variable is None]
        return tuple(sorted(own, key=lambda number: self.segments[number].start))

    @property
    def _shapes(self) -> dict[int, tuple[int | None, ...]]:
        own = [self.segments[number] for number in self.largest]
        return {one.start: one.input.shape for one in own}

    def config_of(self, path: tuple[int, ...]) -> dict[str, Choice]:
        """The config of a chain, without the variables of blocks that the chain passes over with another alternative."""
        taken = [self.segments[number] for number in path]
        ends = {one.variable: one.end for one in self.segments if one.variable is not None}
        passed = {name for name, end in ends.items() for one in taken if one.start < end < one.end}
        chosen = {one.variable: one.choice for one in taken if one.variable is not None and one.choice is not None}
        return {name: choice for name, choice in {**self.config, **chosen}.items() if name not in passed}


BUNDLE_FILE = "bundle.json"
SIGNATURE_FILE = "bundle.sig"
VERSION = 2


class FileFacts(Message):
    """Digest and size of a file as it was written."""

    sha256: Digest
    bytes: int = Field(ge=0)


class BundleRun(Message):
    """The runtime and settings with which the files of one format were checked.

    settings: by the names of the runtime's own API. measured: whether latencies are of this runtime on the bundle's device.
    tolerance: largest allowed difference from the expected answers, relative to the largest value.
    """

    runtime: str
    version: str
    threads: int
    precision: str
    settings: dict[str, bool | int | str] = Field(default_factory=dict)
    measured: bool
    tolerance: float = Field(gt=0)


class BundleDevice(Message):
    """The device on which latencies were measured."""

    backend: str
    version: str
    provider: str
    precision: str
    threads: int
    cpu_model: str
    system: str
    fingerprint: str


class BundleOrigin(Message):
    """The origin of a bundle. digests: by name, of the SuperNet, the look-up table and the predictors."""

    network: dict[str, str]
    data: str
    digests: dict[str, str]


class BundleManifest(FileMessage):
    """The SubNets of a bundle; all take `batch` samples in ONNX, and one in ncnn.

    files: all files but the manifest and its signature. runs: by format. predicted_error: mean of |predicted / measured − 1|
    over the latencies of these SubNets; None: none was measured. calibration: file of inputs and expected answers.
    source_images: file of `adaptive_runtime.bundle.bundles.SourceImages`; None: no SubNet can adapt. policy: rules by which an
    adapting model chooses; None: no rules, and the file does not name them. problem: meaning of raw outputs: 'segmentation',
    'detection_HEAD' for a head of `adaptive_runtime.samples.boxes`, 'several_classes' with class names TARGET: CLASS, 'tagging'
    of words, 'restoration' of images, or 'super_resolution_x2' to 'super_resolution_x8', where the number is the factor of
    height and width; None: a number for each class of the whole image, and the file does not name it. With a problem,
    accuracies are its score, for example mean IoU, mAP@0.5 or PSNR.
    """

    WHERE: ClassVar[str] = BUNDLE_FILE
    NEXT_STEP: ClassVar[str] = AGAIN
    READ_VERSION: ClassVar[int | None] = VERSION
    CONTENT: ClassVar[str] = "a bundle"

    version: int = VERSION
    batch: int = Field(ge=1)
    files: dict[FileName, FileFacts]
    subnets: Annotated[tuple[BundledSubNet, ...], Field(min_length=1)]
    runs: Annotated[dict[BundleFormat, BundleRun], Field(min_length=1)]
    classes: tuple[str, ...] = ()
    device: BundleDevice
    made_from: BundleOrigin
    predicted_error: float | None = None
    calibration: FileName | None = None
    source_images: FileName | None = None
    policy: str | None = None
    problem: str | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        named = {name for subnet in self.subnets for name in subnet.named_files}
        named |= {name for name in (self.calibration, self.source_images) if name is not None}
        if missing := sorted(named - self.files.keys()):
            raise ValueError(f"'{missing[0]}' is not among the files")
        digests = [subnet.digest for subnet in self.subnets]
        if len(set(digests)) < len(digests):
            raise ValueError("a SubNet is there twice")
        if unknown := {name for subnet in self.subnets for name in subnet.nets} - self.runs.keys():
            raise ValueError(f"no run for format '{min(unknown)}'")
        return self

    @cached_property
    def by_digest(self) -> dict[str, BundledSubNet]:
        """The SubNets by digest."""
        return {subnet.digest: subnet for subnet in self.subnets}

    @property
    def own_format(self) -> BundleFormat:
        """The format in which latencies were measured; ONNX if the device runs none of the formats."""
        return next((name for name, run in self.runs.items() if run.measured), "onnx")

    @property
    def known_formats(self) -> tuple[BundleFormat, ...]:
        """The formats with known latencies on the device; the one in which they were measured comes first."""
        own = self.own_format
        known = {name for subnet in self.subnets for name, net in subnet.nets.items() if net.figures is not None}
        return (own, *(name for name in BUNDLE_FORMATS if name in known and name != own))

    def to_json(self) -> str:
        """The file's text; fields that older run times do not know are left out if they are empty."""
        absent: dict[str, Any] = {name: True for name in ("policy", "problem") if getattr(self, name) is None}
        of_subnets: dict[str, Any] = {}
        if len(self.known_formats) == 1:
            of_subnets["nets"] = {"__all__": {"figures"}}
        for name in ("adapted", "placement"):
            if all(getattr(subnet, name) is None for subnet in self.subnets):
                of_subnets[name] = True
        if of_subnets:
            absent["subnets"] = {"__all__": of_subnets}
        return self.model_dump_json(indent=1, exclude=absent or None) + "\n"


FOUND_FILE = "found.json"
FOUND_VERSION = 1
SEARCH_AGAIN = "search again: autotailor-runtime search"
HERE = "device"
"""The split of accuracies that a search on the device measures."""


class FoundSubNets(FileMessage):
    """The result of a search. bundle: sha256 of its manifest.

    images: number of images for measuring accuracies. labels: given by the user, or the largest SubNet's answers. accuracies:
    of the bundle's own SubNets on the same images, by digest. subnets: found ones; their files run one behind the other.
    """

    WHERE: ClassVar[str] = FOUND_FILE
    NEXT_STEP: ClassVar[str] = SEARCH_AGAIN
    READ_VERSION: ClassVar[int | None] = FOUND_VERSION
    CONTENT: ClassVar[str] = "a search"

    version: int = FOUND_VERSION
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
            raise AdaptiveError(str(folder / FOUND_FILE), "was found for another bundle", next_step=SEARCH_AGAIN)
        own = [
            one.model_copy(update={"accuracy": {HERE: self.accuracies[one.digest], **one.accuracy}})
            for one in manifest.subnets
            if one.digest in self.accuracies
        ]
        silent = [one for one in manifest.subnets if one.digest not in self.accuracies]
        if silent:
            got = f"has no accuracy of SubNet {silent[0].digest}"
            raise AdaptiveError(str(folder / FOUND_FILE), got, next_step=SEARCH_AGAIN)
        fields = {name: getattr(manifest, name) for name in BundleManifest.model_fields}
        try:
            return BundleManifest.model_validate({**fields, "subnets": (*own, *self.subnets)})
        except ValueError as error:
            raise AdaptiveError(str(folder / FOUND_FILE), str(error), next_step=SEARCH_AGAIN) from error
