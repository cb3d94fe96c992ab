"""All winners of a device in one folder, to switch between at run time: ONNX files whose common weights are there once.

It runs in onnxruntime alone. Each SubNet computes what its own ONNX file computes.
"""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from tailor_ir import SuperNet
from tasks.artifacts import write_json
from tasks.evaluate import EvaluationData, statistics_of
from tasks.export.files import Images, in_batches, references
from tasks.export.settings import Settings
from tasks.progress import Progress

BUNDLE_FOLDER = "bundle"
INDEX_FILE = "bundle.json"

Row = dict[str, Any]


def write_bundle(
    settings: Settings, net: SuperNet, cards: Sequence[Row], images: EvaluationData, out: Path, progress: Progress
) -> Row:
    """Write `out`/bundle with the SubNets of these model cards, each checked against torch, and what it saves.

    `bytes_alone`: of their own ONNX files, where these were exported. The folder is there whole, or not at all.
    """
    final, partial = out / BUNDLE_FOLDER, out / f"{BUNDLE_FOLDER}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    with progress.bar("bundle", len(cards)) as bar:
        statistics = {card["digest"]: statistics_of(net, card["config"], images) for card in cards}
        net.export_together({card["digest"]: (card["config"], statistics[card["digest"]]) for card in cards}, partial)
        rows = []
        for card in cards:
            module = net.build(card["config"], statistics[card["digest"]]).eval()
            inputs, expected = references(net, module, card["config"], images, settings.check_images)
            got = _run(partial / f"{card['digest']}.onnx", inputs, net.batch)
            rows.append(_row(card, float(np.abs(got - expected).max() / np.abs(expected).max())))
            bar.advance()
    worst = max(rows, key=lambda row: math.inf if row["relative_difference"] is None else row["relative_difference"])
    difference, allowed = worst["relative_difference"], settings.tolerance.fp32
    if difference is None or difference > allowed:
        shutil.rmtree(partial)
        reason = f"SubNet {worst['digest']}: outputs differ from torch by {difference}; allowed in fp32: {allowed:g}"
        return {"state": "failed", "reason": reason}
    write_json(partial / INDEX_FILE, {"batch": net.batch, "subnets": rows})
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    alone = [card["files"].get("onnx", {}).get("bytes") for card in cards]
    return {
        "state": "ok",
        "folder": BUNDLE_FOLDER,
        "bytes": sum(file.stat().st_size for file in final.iterdir()),
        "bytes_alone": None if None in alone else sum(alone),
        "relative_difference": difference,
        "tolerance": allowed,
    }


def _row(card: Row, difference: float) -> Row:
    """What an application needs to choose among the SubNets."""
    return {
        "file": f"{card['digest']}.onnx",
        **{key: card[key] for key in ("digest", "input_shape", "macs", "parameters", "accuracy")},
        "p50_ms": card["latency"]["p50_ms"],
        "relative_difference": difference if math.isfinite(difference) else None,
    }


def _run(file: Path, inputs: Images, batch: int) -> Images:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    return in_batches(inputs, batch, lambda x: np.asarray(session.run(None, {taken.name: x})[0]))
