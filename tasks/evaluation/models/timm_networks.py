"""Networks of timm by name, with published weights on request."""

import difflib
from typing import Any

import timm
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from torch import nn

from tasks.base.errors import UserError, shortened
from tasks.evaluation.models.settings import ModelSettings


def _timm_options(settings: ModelSettings, resolution: int) -> dict[str, Any]:
    """The model options, with `img_size` if the architecture has a fixed input size (vision transformers)."""
    config = timm.get_pretrained_cfg(settings.name)
    fixed = config is not None and config.fixed_input_size
    return {**({"img_size": resolution} if fixed else {}), **settings.options}


def unknown(name: str) -> tuple[str, str] | None:
    """The error for a network that timm does not have, and the allowed names; None if timm has it."""
    plain = name.split(".")[0]
    if timm.is_model(plain):
        return None
    near = difflib.get_close_matches(plain, timm.list_models(), n=3, cutoff=0.4)
    return f"timm has no network '{name}'", f"for example {', '.join(near)}" if near else "those of timm.list_models()"


def create_timm(settings: ModelSettings, classes: int, channels: int, resolution: int) -> nn.Module:
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
            f"cannot be made ({shortened(error)})",
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
