"""Settings of the network and of its SuperNet, and checks of the named network and weights.

The checks load no library and take milliseconds.
"""

import difflib
import importlib.util
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tasks.base.artifacts import OutsideKey
from tasks.base.earlier import name_now
from tasks.base.errors import UserError
from tasks.base.own_code import check_source, is_function_name


class ModelSettings(BaseModel):
    """The network and its weights. Classes, channels and resolution come from the data."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    kind: Literal["timm", "onnx", "callable"] = "timm"
    name: str = "resnet18"
    """timm: the architecture; callable: `module:function` or `FILE.py:function`; onnx: a name for reports, that of the file
    unless given."""
    path: Annotated[Path | None, OutsideKey("its content counts")] = None
    """onnx: the file."""
    checkpoint: Annotated[Path | None, OutsideKey("its content counts")] = None
    """A file with the weights of exactly this network: .safetensors, or torch's .pt and .pth, whose tensors alone are read."""
    trained: bool = False
    """callable: the function gives a network that is trained already; it is taken as it is."""
    pretrained: bool = False
    """timm: download the published weights."""
    backbone: str | None = Field(default=None, pattern=r"^\w+(\.\w+)*$")
    """callable: the path of a module that gives feature maps, as backbone or backbone.body. The network is then this part of it
    alone, with a linear layer on the averages of its feature maps: a classifier."""
    outputs: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """onnx: names of the outputs that are taken, in the order of `data.targets`; null: the only one, or one for each target,
    which has its name, or its place in the order where no output is called as a target."""
    constants: dict[str, float] = Field(default_factory=dict)
    """onnx: inputs that have one value for all samples, such as a rate or a mode, by name; exported files lack them."""
    states: dict[str, str] | None = None
    """onnx: inputs whose value is that of an output for the sample before, {INPUT: OUTPUT}; null: those of one shape and alike
    names, such as h and hn, or state_in and state_out."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further keyword arguments of the timm model or the callable."""

    @property
    def comes_trained(self) -> bool:
        """Whether the network has weights before any run trains it."""
        return self.kind == "onnx" or self.checkpoint is not None or self.trained or self.pretrained

    @model_validator(mode="before")
    @classmethod
    def _call_a_file_by_its_name(cls, given: Any) -> Any:
        unnamed = isinstance(given, dict) and given.get("kind") == "onnx" and given.get("name") is None
        return {**given, "name": Path(str(given["path"])).stem} if unnamed and given.get("path") else given

    @field_validator("name")
    @classmethod
    def _take_an_earlier_name(cls, name: str) -> str:
        return name_now("network", "model.name", name)

    @model_validator(mode="after")
    def _check(self) -> "ModelSettings":
        if self.kind == "onnx" and self.path is None:
            raise ValueError("model.kind=onnx needs model.path=FILE.onnx")
        if self.kind == "onnx" and self.checkpoint is not None:
            raise ValueError("an .onnx file carries its weights; leave model.checkpoint out")
        if self.kind == "callable" and not is_function_name(self.name):
            raise ValueError(f"model.name={self.name} is not of the form module:function or FILE.py:function")
        if self.backbone is not None and self.kind != "callable":
            raise ValueError(f"model.backbone={self.backbone} is for model.kind=callable, not {self.kind}")
        for name in ("outputs", "constants", "states"):
            if self.kind != "onnx" and (given := getattr(self, name)):
                raise ValueError(
                    f"model.{name}={given if isinstance(given, dict) else list(given)} is for model.kind=onnx, not {self.kind}"
                )
        if self.outputs is not None and len(set(self.outputs)) < len(self.outputs):
            raise ValueError(f"model.outputs={list(self.outputs)}; allowed: each once")
        if self.trained and self.kind != "callable":
            raise ValueError(
                "model.trained=true is for model.kind=callable: other networks say where their weights are"
            )
        if self.pretrained and self.kind != "timm":
            raise ValueError("model.pretrained=true is for model.kind=timm")
        return self


class CompileSettings(BaseModel):
    """Settings for making the SuperNet, apart from its space."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    kernel_transform: bool = False
    """Smaller kernels are learned transforms of larger ones, not just their centre (Once-for-all, ICLR 2020)."""
    open_batch_norms: bool = True
    """BatchNorms that an exporter folded into the convolutions of an .onnx file are put back, by statistics of training
    images: they change nothing, and SubNets are recalibrated. Exported files have them folded again."""
    alternative_images: int = Field(default=256, ge=0)
    """Training images that the first weights of alternatives are fitted to; as many for validation judge them. 0: first weights
    follow from the network's weights alone."""
    exit_images: int = Field(default=512, ge=0)
    """Training images that the heads of exits are fitted to, by the network's own answers; as many for validation judge them.
    0: first weights are random."""


SAFETENSORS = ".safetensors"
TORCH_FILES = (".pt", ".pth", ".bin", ".ckpt", ".tar")
OLD_TORCH = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")
MOST_BEFORE_NUMBER = 32
"""Torch files that are no zip archives begin with `OLD_TORCH`, after at most this number of bytes of pickle."""
PICKLE, LIST_BYTES = b"/data.pkl", 2**20
"""A name in the file list of torch's zip archives, and the number of bytes at the end of the file that contain the list."""
ANOTHER = "choose another with model.checkpoint=FILE"
LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000
"""Largest header of a .safetensors file; the file's first `LENGTH_BYTES` bytes are the header's length."""
REGISTERED = re.compile(r"^@register_model\s+def (\w+)\(", re.MULTILINE)


def check_named(settings: ModelSettings) -> None:
    """Raise UserError if a file is missing, a checkpoint has another format, or timm does not have the network.

    Errors that depend on the network itself, such as weights that do not fit, are raised when it is created.
    """
    if settings.kind == "onnx":
        assert settings.path is not None
        check_network_file(settings.path)
    elif settings.kind == "callable":
        check_source("model.name", settings.name)
    elif fault := _unknown_to_timm(settings.name):
        raise UserError("model.name", fault[0], allowed=fault[1], next_step="see timm.list_models()")
    if settings.checkpoint is not None:
        check_checkpoint(settings.checkpoint)
        _check_content(settings.checkpoint)


def check_network_file(path: Path) -> None:
    """Raise UserError if the file does not exist."""
    if not path.is_file():
        raise UserError(f"model file '{path}'", "does not exist", next_step="choose another with model.path=FILE.onnx")


def check_checkpoint(path: Path) -> None:
    """Raise UserError if the file does not exist."""
    if not path.is_file():
        raise UserError(f"checkpoint '{path}'", "does not exist", next_step=ANOTHER)


def is_of_torch(path: Path) -> bool:
    """Whether torch reads a file, judged by its first bytes (a zip archive, or an old pickle file) or its name."""
    with path.open("rb") as stream:
        first = stream.read(LENGTH_BYTES + 1)
    by_content = first[:2] in (b"PK", b"\x80\x02")
    return by_content or (path.suffix.lower() in TORCH_FILES and first[LENGTH_BYTES:] != b"{")


def _check_content(path: Path) -> None:
    """Raise UserError unless the file is a complete torch or safetensors file. No code in it is run."""
    try:
        of_torch = is_of_torch(path)
        is_one = _is_saved_by_torch(path) if of_torch else _has_header(path)
    except OSError as error:
        raise UserError(f"checkpoint '{path}'", f"cannot be read ({error.strerror})", next_step=ANOTHER) from error
    if not is_one:
        kind = (
            "file of torch" if of_torch else "safetensors file" if path.suffix != SAFETENSORS else ".safetensors file"
        )
        allowed = "a .safetensors file, or torch.save(model.state_dict(), 'FILE.pt'), of this network"
        raise UserError(f"checkpoint '{path}'", f"is no {kind}, or not all of one", allowed=allowed, next_step=ANOTHER)


def _is_saved_by_torch(path: Path) -> bool:
    """Whether a file is a zip archive that lists a pickle, or begins with the number of torch's older format."""
    with path.open("rb") as stream:
        if OLD_TORCH in stream.read(MOST_BEFORE_NUMBER + len(OLD_TORCH)):
            return True
        if not zipfile.is_zipfile(stream):
            return False
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - LIST_BYTES))  # the file list is at the end
        return PICKLE in stream.read()


def _has_header(path: Path) -> bool:
    """Whether a file begins with a safetensors header."""
    with path.open("rb") as stream:
        size = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        header = stream.read(size) if 0 < size <= MOST_HEADER_BYTES else b""
    try:
        return len(header) == size and isinstance(json.loads(header), dict)
    except (ValueError, RecursionError):
        return False


def _unknown_to_timm(name: str) -> tuple[str, str] | None:
    """The error for a network whose name is nowhere in timm's sources, and similar names; None: timm may have it.

    Only timm itself could decide, but importing it takes seconds.
    """
    plain = name.split(".")[0]
    spec = importlib.util.find_spec("timm")
    folder = Path(spec.origin).parent / "models" if spec is not None and spec.origin is not None else None
    files = sorted(folder.glob("*.py")) if folder is not None else []
    sources = [file.read_text(encoding="utf-8") for file in files]
    word = re.compile(rf"\b{re.escape(plain)}\b")
    if ":" in name or not sources or any(plain in source and word.search(source) for source in sources):
        return None
    known = sorted({found for source in sources for found in REGISTERED.findall(source)})
    near = difflib.get_close_matches(plain, known, n=3, cutoff=0.4)
    return f"timm has no network '{name}'", f"for example {', '.join(near)}" if near else "those of timm.list_models()"
