"""The chain of a SubNet inside a bundle: its segments refer to the bundle's weights, which all SubNets share."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from adaptive_runtime.chains import SEGMENTS_FILE, ChainManifest, ChainSegment
from tailor_ir import Statistics, SuperNet
from tailor_ir.subnets.shared_weights import WEIGHTS_FILE
from tasks.artifacts import write_bytes
from tasks.export.chains.checking import Values, differences_of
from tasks.export.files import Images
from tasks.schemas.exports import Card

CHAIN = "onnx_segments"


def chain_exits(card: Card) -> tuple[str, ...]:
    """The exits of a SubNet's chain of ONNX files; () where there is none."""
    return tuple(segment.exit for segment in card.files[CHAIN].segments) if CHAIN in card.files else ()


def bundle_chain(
    net: SuperNet, card: Card, statistics: Statistics, out: Path, folder: Path, inputs: Images
) -> tuple[str, float]:
    """Write the manifest of the segments `DIGEST.0.onnx`, … that are in the bundle `folder`, and their thresholds.

    Its name, and their difference.

    out: the stage's folder, which has the chain's own files. The difference is the largest from torch's segments on some images
    (N, C, H, W), over the largest value; inf where it is no number.
    """
    own = out / f"{card.digest}.onnx.segments"
    alone = ChainManifest.read(own / SEGMENTS_FILE)
    segments = tuple(
        _renamed(segment, f"{card.digest}.{at}.onnx", net.batch) for at, segment in enumerate(alone.segments)
    )
    names = [*(str(segment.file) for segment in segments), WEIGHTS_FILE]
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    changed: dict[str, Any] = {"files": digests, "segments": segments, "input": segments[0].inputs[0]}
    if alone.thresholds is not None:
        changed["thresholds"] = f"{card.digest}.{alone.thresholds}"
        write_bytes(folder / changed["thresholds"], (own / alone.thresholds).read_bytes())
    manifest = alone.model_copy(update=changed)
    name = f"{card.digest}.{SEGMENTS_FILE}"
    write_bytes(folder / name, manifest.to_json().encode())
    sessions = [
        onnxruntime.InferenceSession(folder / str(segment.file), providers=["CPUExecutionProvider"])
        for segment in segments
    ]

    def run(x_BCHW: Images) -> Iterator[Values]:
        values = {manifest.input.name: x_BCHW}
        for session in sessions:
            given = [one.name for one in session.get_outputs()]
            found = session.run(given, {one.name: values[one.name] for one in session.get_inputs()})
            values.update(zip(given, found, strict=True))
            yield list(found)

    config = net.space.canonical({**card.config, "exit": manifest.exits[-1]})
    worst = max(differences_of(net.segments(config, statistics, manifest.exits), inputs, net.batch, run))
    return name, worst if np.isfinite(worst) else np.inf


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
