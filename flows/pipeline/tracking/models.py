"""Exported winners as MLflow models: folders that `mlflow.onnx.load_model` and `mlflow.pyfunc.load_model` open."""

import importlib.metadata
import platform
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import mlflow.pyfunc
import numpy as np
import yaml
from mlflow.models import Model, ModelSignature
from mlflow.types.schema import Schema, TensorSpec

from flows.pipeline.tracking import models_lines
from flows.pipeline.tracking.tracker import Tracker
from tasks.base.schemas.exports import EXPORTS_FILE, Card, ExportedFile, Exports, FileTensor
from tasks.export import readable_names

MODELS_FOLDER = "models"
SUFFIXES = {"onnx": "", "onnx_int8": ".int8"}
"""Name suffixes of models in the formats that MLflow runs."""
REQUIREMENTS = ("mlflow", "numpy", "onnx", "onnxruntime")
"""All requirements of a model. They are passed because MLflow would start processes and use the network to find them."""
REQUIREMENTS_FILE, ENVIRONMENT_FILE, MODEL_FILE = "requirements.txt", "python_env.yaml", "MLmodel"
ID_DIGITS = 32


def log_winners(tracker: Tracker, exported: Mapping[str, Path]) -> None:
    """Log the models of each device to the pipeline run, and describe there how to load them.

    exported: the folder of a finished export by device.
    """
    addresses: dict[str, list[str]] = {}
    with TemporaryDirectory() as scratch:
        for device, folder in exported.items():
            place = f"{MODELS_FOLDER}/{device}"
            if names := write_models(Exports.read(folder / EXPORTS_FILE), folder, Path(scratch) / place):
                address = tracker.log_artifact(tracker.run_id, Path(scratch), place)
                addresses[device] = [f"{address}/{name}" for name in names]
    if addresses:
        tracker.describe("\n".join(models_lines(addresses)))


def write_models(exports: Exports, exported: Path, folder: Path) -> list[str]:
    """Write a model into `folder` for each ONNX file of an export's winners (files in `exported`), and return their names.

    The names follow the readable file names. ONNX files are links into `exported`: nothing is copied or converted, and equal
    files make equal models.
    """
    cards = {card.digest: card for card in exports.subnets}
    names = []
    for digest, stem in readable_names(exports).items():
        for name, file, onnx in _onnx_files(cards[digest], exported):
            _write(cards[digest], file, onnx, folder / f"{stem}{SUFFIXES[name]}")
            names.append(f"{stem}{SUFFIXES[name]}")
    return names


def _onnx_files(card: Card, exported: Path) -> Iterator[tuple[str, ExportedFile, Path]]:
    """Format, record and path of one SubNet's ONNX files; MLflow cannot run other formats."""
    for name in SUFFIXES:
        file = card.files.get(name)
        if file is not None and file.state == "ok":
            (only,) = file.sha256
            yield name, file, exported / only


def _write(card: Card, file: ExportedFile, onnx: Path, folder: Path) -> None:
    """Write one model. Its id and date come from its file."""
    folder.mkdir(parents=True)
    (folder / onnx.name).symlink_to(onnx.resolve())
    made = datetime.fromtimestamp(onnx.stat().st_mtime, UTC)
    model = Model(
        utc_time_created=f"{made:%Y-%m-%d %H:%M:%S.%f}",
        model_uuid=file.sha256[onnx.name][:ID_DIGITS],
        signature=None if file.run is None else ModelSignature(_schema(file.run.inputs), _schema(file.run.outputs)),
        metadata={
            "subnet": card.digest,
            "device": f"{card.device.backend} {card.device.version}, {card.device.cpu_model}",
            "measured_ms": card.latency.p50_ms,
            "accuracy": card.accuracy,
        },
    )
    mlflow.pyfunc.add_to_model(model, loader_module="mlflow.onnx", data=onnx.name, python_env=ENVIRONMENT_FILE)
    version, providers = importlib.metadata.version("onnx"), ["CPUExecutionProvider"]
    model.add_flavor("onnx", onnx_version=version, data=onnx.name, providers=providers, code=None)
    model.save(str(folder / MODEL_FILE))
    lines = [f"{name}=={importlib.metadata.version(name)}" for name in REQUIREMENTS]
    (folder / REQUIREMENTS_FILE).write_text("\n".join([*lines, ""]), encoding="utf-8")
    environment = {
        "python": platform.python_version(), "build_dependencies": [], "dependencies": [f"-r {REQUIREMENTS_FILE}"]
    }  # fmt: skip
    (folder / ENVIRONMENT_FILE).write_text(yaml.safe_dump(environment, sort_keys=False), encoding="utf-8")


def _schema(tensors: tuple[FileTensor, ...]) -> Schema:
    """Schema of named tensors; MLflow uses -1 for a free size."""
    shapes = [tuple(-1 if size is None else size for size in tensor.shape) for tensor in tensors]
    return Schema([TensorSpec(np.dtype(one.type), shape, one.name) for one, shape in zip(tensors, shapes, strict=True)])
