"""The user's data and models as parts of a stage's key: contents, or file listings where hashing takes long."""

from pathlib import Path
from typing import Any

from adaptive_runtime.base.files import sha256_of
from flows.config import RunConfig
from flows.pipeline.versions import user_code_version
from tasks.base.artifacts import key_settings
from tasks.data.settings import DataSettings
from tasks.data.source import listing_of
from tasks.evaluation.models import ModelSettings
from tasks.evaluation.models.own_code import source_of


def data_key(settings: DataSettings) -> dict[str, Any]:
    """The data settings that determine the images; files count by relative name, size and modification time."""
    key = key_settings(settings)
    if settings.inputs is not None:
        key["inputs"] = [list(one) for one in settings.inputs.items()]  # order counts, but digests sort mappings
    return {**key, "files": listing_of(settings.path)} if settings.path else key


def backbone_key(config: RunConfig) -> dict[str, Any]:
    """The parts of a backbone SuperNet's key; empty if the run has no first stage on other data."""
    first = config.pretraining
    if first.backbone is None:
        return {}
    return {
        "backbone": first.backbone,
        "first_data": data_key(first.data),
        "backbone_space": first.space_of(config.space),
    }


def model_key(settings: ModelSettings) -> dict[str, Any]:
    """The model settings, with contents of the ONNX file, the checkpoint, or the callable's source and its neighbouring
    imports.

    The name of an ONNX file's network has no effect and is left out.
    """
    key = key_settings(settings)
    if settings.kind == "onnx":
        del key["name"]
    files = {name: sha256_of(path) for name in ("path", "checkpoint") if _is_file(path := getattr(settings, name))}
    if settings.kind == "callable" and (source := _source(settings.name)):
        files["source"] = source
    return {**key, "files": files}


def _is_file(path: Path | None) -> bool:
    return path is not None and path.is_file()


def _source(name: str) -> str | None:
    """Version of a callable's code; None if it has no source (making the network then reports this in one line)."""
    source = source_of(name)
    return None if source is None else user_code_version(source)
