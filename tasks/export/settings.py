"""Settings of the export stage."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import BundleFormat
from adaptive_runtime.policy import parse_rules
from tasks.base.artifacts import OutsideKey
from tasks.base.schemas.stored import Strict
from tasks.evaluation.conversion import require_executorch
from tasks.evaluation.quantise import Settings as QuantiseSettings
from tasks.measuring.settings import TimingSettings, Tolerance

FileFormat = Literal["onnx", "onnx_int8", "ncnn", "ncnn_fp16", "torch", "executorch"]
FILES: Mapping[BundleFormat, FileFormat] = {
    "onnx": "onnx",
    "onnx_int8": "onnx_int8",
    "ncnn": "ncnn",
    "ncnn_fp16": "ncnn_fp16",
    "ncnn_bf16": "ncnn",
}
"""The exported file format behind each bundle format."""
BUNDLE_FOLDER = "bundle"


def required_files(forms: Sequence[BundleFormat]) -> tuple[FileFormat, ...]:
    """The exported files that some bundle formats need; ONNX files are in every bundle."""
    return tuple(dict.fromkeys(FILES[form] for form in forms if form != "onnx"))


class Settings(TimingSettings):
    """Formats of the exported files, and how they are checked and measured."""

    formats: tuple[FileFormat, ...] = Field(
        ("onnx", "ncnn"),
        min_length=1,
        description="onnx_int8: statically quantised; ncnn_fp16: weights in half the bytes; torch: .pt2; executorch: .pte",
    )
    dynamic_batch: bool = Field(False, description="ONNX files and torch archives take any number of samples")
    planned_memory: bool = Field(
        False, description="nodes of ONNX files stand in the order with the least peak of memory, where that saves some"
    )
    segments: Literal["auto"] | bool = Field(
        "auto",
        description="SubNets that pass exits also as chains of segments (onnx, ncnn); true: refused in a space without exits",
    )
    bundle: bool = Field(
        False, description="all SubNets of a device in one folder, whose common weights are there once"
    )
    blocks: bool = Field(
        False, description="the bundle has the segments of blocks with alternatives, too, for a search on the device"
    )
    adaptable: bool = Field(
        False, description="the bundle has what its SubNets need to adapt their BatchNorm statistics on the device, too"
    )
    adaptable_images: int = Field(
        16, ge=2, le=256, description="adaptable: images of a batch from which statistics are taken on the device"
    )
    shared_bundle: dict[str, tuple[str, ...]] = Field(
        {},
        description="device -> devices of the run that are the same machine in another runtime or precision: its bundle has "
        "the SubNets in their formats, too",
    )
    offload: bool = Field(
        False,
        description="the bundle of partition.devices' first has SubNets over the others, too, where some link prefers them",
    )
    bundle_key: Path | None = Field(
        None,
        description="file with a secret of 16 bytes or more, by which the bundle's manifest is signed (HMAC-SHA256)",
    )
    adapted: Annotated[tuple[Path, ...], OutsideKey("their contents count")] = Field(
        (), description="side files of winners that have adapted, which are exported so; one for each SubNet at most"
    )
    replacements: int = Field(
        2, ge=0, le=100, description="further SubNets that are timed in the place of a winner that misses its budget"
    )
    keep_winners: bool = Field(
        False,
        description="each budget keeps its winner, also where another exported SubNet keeps the budget and is more accurate",
    )
    check_images: int = Field(4, ge=1, le=1000)
    tolerance: Tolerance = Tolerance()
    quantise: QuantiseSettings = QuantiseSettings()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        of_bundle = {
            "blocks": "segments are part of a bundle",
            "adaptable": "SubNets of a bundle adapt",
            "offload": "rows over devices are part of a bundle",
        }
        for name, why in of_bundle.items():
            if getattr(self, name) and not self.bundle:
                raise ValueError(f"{name}=true with bundle=false: {why}; allowed: bundle=true")
        if self.planned_memory and "onnx" not in self.formats:
            raise ValueError(
                f"planned_memory=true with formats=[{','.join(self.formats)}]: ONNX files alone have an order that is "
                "kept; allowed: onnx among the formats"
            )
        if self.planned_memory and self.dynamic_batch:
            raise ValueError(
                "planned_memory=true with dynamic_batch=true: an order is of one batch; allowed: one of them"
            )
        return self

    @field_validator("adapted")
    @classmethod
    def _are_files(cls, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        for path in paths:
            if not path.is_file():
                raise ValueError(f"'{path}' does not exist; allowed: side files, as autotailor stream writes them")
        return paths

    @field_validator("formats")
    @classmethod
    def _each_once(cls, formats: tuple[FileFormat, ...]) -> tuple[FileFormat, ...]:
        if len(set(formats)) != len(formats):
            raise ValueError(f"[{','.join(formats)}]: one is there twice")
        if "executorch" in formats:
            require_executorch()
        return formats


class RuntimeSettings(Strict):
    """How a device chooses among the SubNets of its bundle."""

    rules: str | None = Field(
        None, min_length=1, description="what is best on the device; null: the most accurate SubNet within the limits"
    )

    @field_validator("rules")
    @classmethod
    def _are_rules(cls, text: str | None) -> str | None:
        try:
            return text if text is None else parse_rules(text).text
        except AdaptiveError as error:
            raise ValueError(str(error)) from error
