"""Settings of the network, and of the SuperNet that is made from it."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.base.artifacts import OutsideKey


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

    @model_validator(mode="after")
    def _check(self) -> "ModelSettings":
        if self.kind == "onnx" and self.path is None:
            raise ValueError("model.kind=onnx needs model.path=FILE.onnx")
        if self.kind == "onnx" and self.checkpoint is not None:
            raise ValueError("an .onnx file carries its weights; leave model.checkpoint out")
        if self.kind == "callable" and (self.name.count(":") != 1 or not all(self.name.split(":"))):
            raise ValueError(f"model.name={self.name} is not of the form module:function or FILE.py:function")
        if self.backbone is not None and self.kind != "callable":
            raise ValueError(f"model.backbone={self.backbone} is for model.kind=callable, not {self.kind}")
        if self.outputs is not None and self.kind != "onnx":
            raise ValueError(f"model.outputs={list(self.outputs)} is for model.kind=onnx, not {self.kind}")
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
    alternative_images: int = Field(default=256, ge=0)
    """Training images that the first weights of alternatives are fitted to; as many for validation judge them. 0: first weights
    follow from the network's weights alone."""
    exit_images: int = Field(default=512, ge=0)
    """Training images that the heads of exits are fitted to, by the network's own answers; as many for validation judge them.
    0: first weights are random."""
