"""`bundle/bundle.json`: what an application needs to choose among the SubNets of a bundle."""

from typing import ClassVar

from tasks.schemas.stored import Record, Stored

INDEX_FILE = "bundle.json"


class BundledSubNet(Record):
    """One SubNet: its ONNX file, and what is known of it. `segments`: the manifest of its chain, where it passes exits."""

    file: str
    digest: str
    input_shape: tuple[int, ...]
    macs: int
    parameters: int
    accuracy: dict[str, float]
    p50_ms: float | None
    relative_difference: float | None
    segments: str | None = None


class BundleIndex(Stored):
    """The SubNets of a bundle, which all take `batch` samples."""

    STAGE: ClassVar[str] = "export"

    batch: int
    subnets: tuple[BundledSubNet, ...]
