"""The user's network: a timm name, an ONNX file, or a Python callable; and where its weights come from."""

import difflib
import importlib
import sys
import threading
from pathlib import Path
from typing import Any, Literal

import onnx
import timm
import torch
from google.protobuf.message import DecodeError
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from pydantic import BaseModel, ConfigDict, Field, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import nn

from tasks.errors import UserError

_DRAWING = threading.RLock()
"""Initial weights come from the random numbers that all threads share."""


class ModelSettings(BaseModel):
    """Which network, and its weights. Classes, channels and resolution come from the data."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    kind: Literal["timm", "onnx", "callable"] = "timm"
    name: str = "resnet18"
    """timm: the architecture; callable: `module:function`; onnx: a name for reports."""
    path: Path | None = None
    """onnx: the file."""
    checkpoint: Path | None = None
    """A .safetensors file with the weights of exactly this network."""
    pretrained: bool = False
    """timm: download the published weights."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further keyword arguments of the timm model or the callable."""

    @model_validator(mode="after")
    def _check(self) -> "ModelSettings":
        if self.kind == "onnx" and self.path is None:
            raise ValueError("model.kind=onnx needs model.path=FILE.onnx")
        if self.kind == "onnx" and self.checkpoint is not None:
            raise ValueError("an .onnx file carries its weights; leave model.checkpoint out")
        if self.kind == "callable" and self.name.count(":") != 1:
            raise ValueError(f"model.name={self.name} is not of the form module:function")
        if self.pretrained and self.kind != "timm":
            raise ValueError("model.pretrained=true is for model.kind=timm")
        return self


def needs_training(settings: ModelSettings, classes: int) -> bool:
    """Whether the network has no weights for these classes, so that the base stage must train it."""
    if settings.kind == "onnx" or settings.checkpoint is not None:
        return False
    if settings.pretrained:
        config = timm.get_pretrained_cfg(settings.name)
        return config is None or config.num_classes != classes
    return True


def create(settings: ModelSettings, classes: int, channels: int, resolution: int, *, seed: int = 0) -> nn.Module | Path:
    """The network for `classes` classes and (B, channels, resolution, resolution) inputs, or its .onnx file.

    Weights: the checkpoint, else timm's, else random ones by `seed`.
    Raises UserError for an unknown name, bad options, weights that do not fit, or a missing or corrupt file.
    """
    if settings.kind == "onnx":
        assert settings.path is not None
        return _check_onnx(settings.path, classes)
    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        build = _create_timm if settings.kind == "timm" else _create_callable
        model = build(settings, classes, channels, resolution)
    if settings.checkpoint is not None:
        load_weights(model, settings.checkpoint)
    return model


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a .safetensors file into `model`, by name and shape; UserError when a tensor does not fit."""
    if not path.is_file():
        raise UserError(f"checkpoint '{path}'", "does not exist", next_step="choose another with model.checkpoint=FILE")
    try:
        load_model(model, path, strict=True)
    except (SafetensorError, RuntimeError, OSError) as error:
        raise UserError(
            f"checkpoint '{path}'",
            f"does not fit the network ({_first_lines(error)})",
            allowed="a .safetensors file of this network",
        ) from error


def weights_source(settings: ModelSettings) -> dict[str, str]:
    """For model cards: the network's name, where its first weights came from, and their licence where it is known."""
    known = {"name": settings.name, "licence": "unknown"}
    if settings.checkpoint is not None:
        return {**known, "weights": f"checkpoint {settings.checkpoint.name}"}
    if settings.kind == "onnx":
        return {**known, "weights": f"those of {settings.path.name if settings.path else settings.name}"}
    if settings.kind == "callable":
        return {**known, "weights": f"those that {settings.name} gives it"}
    config = timm.get_pretrained_cfg(settings.name) if settings.pretrained else None
    if config is None:
        return {**known, "weights": "random, trained from there", "licence": "none: trained here"}
    source = config.hf_hub_id or config.url or "timm"
    return {**known, "weights": f"published: {source}", "licence": config.license or "unknown"}


def _first_lines(error: Exception, length: int = 200) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= length else text[:length] + "…"


def _timm_options(settings: ModelSettings, resolution: int) -> dict[str, Any]:
    """`img_size` where the architecture has a fixed input size (vision transformers)."""
    config = timm.get_pretrained_cfg(settings.name)
    fixed = config is not None and config.fixed_input_size
    return {**({"img_size": resolution} if fixed else {}), **settings.options}


def unknown(name: str) -> tuple[str, str] | None:
    """For a network that timm does not have: what is wrong, and what is allowed. None when timm has it."""
    plain = name.split(".")[0]
    if timm.is_model(plain):
        return None
    near = difflib.get_close_matches(plain, timm.list_models(), n=3, cutoff=0.4)
    return f"timm has no network '{name}'", f"for example {', '.join(near)}" if near else "those of timm.list_models()"


def _create_timm(settings: ModelSettings, classes: int, channels: int, resolution: int) -> nn.Module:
    if fault := unknown(settings.name):
        raise UserError("model.name", fault[0], allowed=fault[1], next_step="see timm.list_models()")
    overlay = {"file": _published_weights(settings)} if settings.pretrained else None
    try:
        return timm.create_model(
            settings.name,
            pretrained=settings.pretrained,
            pretrained_cfg_overlay=overlay,
            num_classes=classes,
            in_chans=channels,
            **_timm_options(settings, resolution),
        )
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise UserError(
            f"model '{settings.name}'",
            f"cannot be made ({_first_lines(error)})",
            next_step="check model.options and data.resolution",
        ) from error


def _published_weights(settings: ModelSettings) -> str:
    """timm's published weights, safetensors only, from the local cache or the Hugging Face hub."""
    config = timm.get_pretrained_cfg(settings.name)
    if config is None or not config.hf_hub_id:
        raise UserError(
            f"model '{settings.name}'",
            "has no published weights",
            next_step="set model.pretrained=false or give model.checkpoint=FILE",
        )
    try:
        return hf_hub_download(config.hf_hub_id, "model.safetensors", etag_timeout=5)
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        raise UserError(
            f"model '{settings.name}'",
            f"published weights cannot be downloaded ({type(error).__name__})",
            next_step="go online, or set model.pretrained=false, or give model.checkpoint=FILE",
        ) from error


def _create_callable(settings: ModelSettings, classes: int, channels: int, resolution: int) -> nn.Module:
    """Call `module:function` (on the Python path or in the working folder) with num_classes and in_chans."""
    module_name, function_name = settings.name.split(":")
    folder = str(Path.cwd())
    sys.path.append(folder)
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"model.name '{settings.name}'",
            f"cannot be imported ({error})",
            allowed="module:function, on the Python path or in the working folder",
        ) from error
    finally:
        sys.path.remove(folder)
    try:
        model = function(num_classes=classes, in_chans=channels, **settings.options)
    except TypeError as error:
        raise UserError(
            f"model.name '{settings.name}'",
            f"cannot be called ({error})",
            allowed="a function of num_classes, in_chans and model.options",
        ) from error
    if not isinstance(model, nn.Module):
        raise UserError(f"model.name '{settings.name}'", f"returns {type(model).__name__}", allowed="torch.nn.Module")
    return model


def _check_onnx(path: Path, classes: int) -> Path:
    if not path.is_file():
        raise UserError(f"model file '{path}'", "does not exist", next_step="choose another with model.path=FILE.onnx")
    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, ValueError, OSError) as error:
        raise UserError(f"model file '{path}'", "is not a readable ONNX model", next_step="export it again") from error
    if not model.graph.node or not model.graph.output:
        raise UserError(f"model file '{path}'", "has no graph", next_step="export it again")
    dims = model.graph.output[0].type.tensor_type.shape.dim
    if dims and dims[-1].HasField("dim_value") and dims[-1].dim_value != classes:
        raise UserError(
            f"model file '{path}'",
            f"gives {dims[-1].dim_value} outputs",
            allowed=f"{classes}, the classes of the data",
        )
    return path
