"""`bundle.json`: all that a device needs to choose among the SubNets of a bundle, to run them, and to check their answers."""

from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from adaptive_runtime.base.message_files import FileMessage
from adaptive_runtime.bundle.bundles.formats import BUNDLE_FORMATS, BundleFormat
from adaptive_runtime.bundle.bundles.subnets import BundledSubNet
from adaptive_runtime.bundle.chains.manifest import FileName
from profiling_agents.messages import Digest, Message

BUNDLE_FILE = "bundle.json"
SIGNATURE_FILE = "bundle.sig"
VERSION = 2
AGAIN = "export the bundle again"


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
