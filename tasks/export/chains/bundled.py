"""The chain of a SubNet inside a bundle: its ONNX segments refer to the shared weights of the bundle."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from adaptive_runtime.base.files import sha256_of
from adaptive_runtime.bundle.chains import SEGMENTS_FILE, ChainManifest, ChainSegment, session_options
from adaptive_runtime.exits import Thresholds
from profiling_agents.messages import Setting
from tailor_ir import Statistics, SuperNet
from tailor_ir.subnets.shared_weights import WEIGHTS_FILE
from tasks.base.artifacts import write_bytes
from tasks.base.schemas.exports import Card
from tasks.export.chains.checking import Values, differences_of
from tasks.export.files import Images

CHAIN = "onnx_segments"


def chain_exits(card: Card) -> tuple[str, ...]:
    """The exits of a SubNet's chain of ONNX files; () if there is none."""
    return tuple(segment.exit for segment in card.files[CHAIN].segments) if CHAIN in card.files else ()


@dataclass(frozen=True, slots=True)
class BundledChain:
    """A chain in a bundle: the name of its manifest, and its largest difference from torch, over the largest value."""

    name: str
    manifest: ChainManifest
    thresholds: Thresholds | None
    difference: float


def bundle_chain(
    net: SuperNet,
    card: Card,
    statistics: Statistics,
    out: Path,
    folder: Path,
    inputs: Images,
    settings: Mapping[str, Setting],
) -> BundledChain:
    """Write the manifest of the segments `DIGEST.0.onnx`, … in the bundle `folder`, and their thresholds.

    out: the stage's folder with the chain's own files. inputs: images for the check (N, C, H, W). settings: of the runtime. The
    difference is inf if it is not finite.
    """
    own = out / f"{card.digest}.onnx.segments"
    alone = ChainManifest.read(own / SEGMENTS_FILE)
    segments = tuple(
        _renamed(segment, f"{card.digest}.{at}.onnx", net.batch) for at, segment in enumerate(alone.segments)
    )
    names = [*(str(segment.file) for segment in segments), WEIGHTS_FILE]
    told = {"segments": segments, "input": segments[0].inputs[0], "runtime": "onnxruntime", "settings": dict(settings)}
    name, manifest, thresholds = _written(
        f"{card.digest}.{SEGMENTS_FILE}", alone, own, folder, {**told, "files": _digests(folder, names)}
    )
    options = session_options(settings)
    sessions = [
        onnxruntime.InferenceSession(folder / str(segment.file), options, providers=["CPUExecutionProvider"])
        for segment in segments
    ]

    def run(x_BCHW: Images) -> Iterator[Values]:
        values = {manifest.input.name: x_BCHW}
        for session in sessions:
            given = [one.name for one in session.get_outputs()]
            results = session.run(given, {one.name: values[one.name] for one in session.get_inputs()})
            values.update(zip(given, results, strict=True))
            yield list(results)

    config = net.space.canonical({**card.config, "exit": manifest.exits[-1]})
    parts = net.segments(config, statistics, manifest.exits)
    worst = max(differences_of(parts, inputs, net.batch, run))
    return BundledChain(name, manifest, thresholds, worst if np.isfinite(worst) else np.inf)


def copy_ncnn_chain(card: Card, out: Path, folder: Path) -> BundledChain | None:
    """Copy the checked ncnn chain of stage export into the bundle `folder`; None if there is none."""
    file = card.files.get("ncnn_segments")
    if file is None or file.state != "ok" or file.relative_difference is None:
        return None
    own = out / f"{card.digest}.ncnn.segments"
    alone = ChainManifest.read(own / SEGMENTS_FILE)
    for name in alone.files:
        shutil.copyfile(own / name, folder / f"{card.digest}.{name}")
    files = _digests(folder, [f"{card.digest}.{name}" for name in alone.files])
    found = _written(f"{card.digest}.ncnn.{SEGMENTS_FILE}", alone, own, folder, {"files": files})
    return BundledChain(*found, file.relative_difference)


def _written(
    name: str, alone: ChainManifest, own: Path, folder: Path, changed: Mapping[str, Any]
) -> tuple[str, ChainManifest, Thresholds | None]:
    """Write the manifest of a chain, changed for the bundle, and its thresholds."""
    thresholds, names = None, {}
    if alone.thresholds is not None:
        content = (own / alone.thresholds).read_bytes()
        thresholds = Thresholds.from_json(content, alone.thresholds)
        names["thresholds"] = f"{alone.digest}.{alone.thresholds}"
        write_bytes(folder / names["thresholds"], content)
    manifest = alone.model_copy(update={**changed, **names})
    write_bytes(folder / name, manifest.to_json().encode())
    return name, manifest, thresholds


def _digests(folder: Path, names: list[str]) -> dict[str, str]:
    return {name: sha256_of(folder / name) for name in names}


def _renamed(segment: ChainSegment, file: str, batch: int) -> ChainSegment:
    """The segment in another file, which takes `batch` samples."""
    tensors = {
        field: tuple(
            one.model_copy(update={"shape": tuple(batch if size is None else size for size in one.shape)})
            for one in each
        )
        for field, each in (("inputs", segment.inputs), ("outputs", segment.outputs))
    }
    return segment.model_copy(update={"file": file, **tensors})
