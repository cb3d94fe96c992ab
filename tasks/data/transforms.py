"""Transforms of torchvision (v1, v2) and timm as steps from a picture to a sample, for cards, bundles and programs.

Transforms are known by the names of their classes and their attributes, so that timm need not be installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from torch import nn

from adaptive_runtime.samples.pictures import PictureSteps

NUMBERS = {"ToTensor", "MaybeToTensor", "ConvertImageDtype", "ConvertDtype"}
"""They divide whole numbers by 255."""
WHOLE_NUMBERS = {"PILToTensor", "MaybePILToTensor", "ToImage", "ToImageTensor", "ToNumpy", "ToRGB", "ToPureTensor"}
"""They keep the values."""


class UnknownStepError(ValueError):
    """A transform for which there is no step."""


def parts(transform: Any) -> Iterator[Any]:
    """Transforms in order, without containers."""
    inner = getattr(transform, "transforms", None)
    if isinstance(transform, nn.Sequential):
        inner = list(transform)
    if inner is None:
        yield transform
    else:
        for one in inner:
            yield from parts(one)


def random_parts(transform: Any) -> list[str]:
    """Names of the transforms that draw at random."""
    names = (type(one).__name__ for one in parts(transform))
    return [name for name in names if "Random" in name or "Auto" in name or name in ("ColorJitter", "AugMix")]


def of_config(config: Mapping[str, Any]) -> Any:
    """The transform of a configuration of timm (`timm.data.resolve_data_config`), for evaluation."""
    from timm.data import create_transform  # timm takes a second

    names = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
    return create_transform(**{name: config[name] for name in names if name in config}, is_training=False)


def in_words(transform: Any) -> str:
    """The transforms as they describe themselves, in one line."""
    return "; ".join(" ".join(repr(one).split()) for one in parts(transform))


def steps_of(transform: Any, shape: tuple[int, ...]) -> PictureSteps | None:
    """The steps of a transform that makes samples of a shape (C, H, W); None if the run time has no such steps."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        return None
    channels, *size = shape
    found: dict[str, Any] = {
        "scaled": size,
        "size": size,
        "colours": "grey" if channels == 1 else "RGB",
        "largest": 255,
    }
    found |= {"mean": (0.0,) * channels, "deviation": (1.0,) * channels}
    try:
        for one in _presets(parts(transform)):
            _add(found, one)
        steps = PictureSteps(**found)
    except (UnknownStepError, ValidationError):
        return None
    return steps if steps.shape == shape else None


def _presets(given: Iterable[Any]) -> Iterator[Any]:
    """Transforms, with those of torchvision's weights as the transforms that they stand for."""
    for one in given:
        if type(one).__name__ == "ImageClassification":  # torchvision.transforms._presets
            from torchvision.transforms import CenterCrop, Normalize, Resize, ToTensor

            yield Resize(one.resize_size, interpolation=one.interpolation)
            yield from (CenterCrop(one.crop_size), ToTensor(), Normalize(one.mean, one.std))
        else:
            yield one


def _add(found: dict[str, Any], one: Any) -> None:
    """Add a transform to the fields of `PictureSteps`. UnknownStepError: there is no such step, or not after the others."""
    name = type(one).__name__
    if name in ("Resize", "ResizeKeepRatio") and "fit" not in found:
        found |= _fit(one) | {"interpolation": _interpolation(one.interpolation)}
        found["size"] = found["scaled"] if found["fit"] == "stretch" else found["size"]
    elif name in ("CenterCrop", "CenterCropOrPad"):
        size = _pair(one.size)
        fill = getattr(one, "fill", 0)
        if not isinstance(fill, int) or ("fit" not in found and size != list(found["scaled"])):
            raise UnknownStepError(name)
        found |= {"size": size, "fill": fill}
    elif name == "Grayscale" and one.num_output_channels == 1:
        found["colours"] = "grey"
    elif name in NUMBERS or (name == "ToDtype" and one.scale):
        found["largest"] = 1
    elif name == "Normalize":
        channels = len(found["mean"])
        found |= {"mean": _numbers(one.mean, channels), "deviation": _numbers(one.std, channels)}
    elif name not in WHOLE_NUMBERS and name != "ToDtype":
        raise UnknownStepError(name)


def _fit(one: Any) -> dict[str, Any]:
    size = [one.size] if isinstance(one.size, int) else list(one.size)
    if getattr(one, "max_size", None) is not None or getattr(one, "antialias", True) is False:
        raise UnknownStepError("Resize")
    if type(one).__name__ == "ResizeKeepRatio":
        if one.longest not in (0, 1) or (one.longest == 0 and len(set(size)) > 1):
            raise UnknownStepError("ResizeKeepRatio")
        return {"fit": "letterbox" if one.longest else "shorter side", "scaled": _pair(size)}
    return {"fit": "stretch" if len(size) == 2 else "shorter side", "scaled": _pair(size)}


def _pair(size: Any) -> list[int]:
    whole = [size] if isinstance(size, int) else list(size)
    return whole * 2 if len(whole) == 1 else whole


def _interpolation(given: Any) -> str:
    name = getattr(given, "value", given)
    if name not in ("bilinear", "bicubic"):
        raise UnknownStepError(f"interpolation {name}")
    return str(name)


def _numbers(given: Any, channels: int) -> tuple[float, ...]:
    values = tuple(float(one) for one in given)
    return values * channels if len(values) == 1 else values
