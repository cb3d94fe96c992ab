"""All winners of a device in one folder, to switch between at run time: ONNX files whose common weights are there once.

It runs in onnxruntime alone. Each SubNet computes what its own ONNX file computes.
"""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from tailor_ir import Statistics, SuperNet
from tasks.evaluation.subnets import EvaluationData, statistics_of
from tasks.export.chains import bundle_chain, chain_exits, chain_statistics
from tasks.export.facts import tell
from tasks.export.files import Images, in_batches, references
from tasks.export.settings import Settings
from tasks.progress import Progress
from tasks.schemas.bundle import INDEX_FILE, BundledSubNet, BundleIndex
from tasks.schemas.exports import Bundle, Card

BUNDLE_FOLDER = "bundle"


def write_bundle(
    settings: Settings, net: SuperNet, cards: Sequence[Card], images: EvaluationData, out: Path, progress: Progress
) -> Bundle:
    """Write `out`/bundle with the SubNets of these model cards, each checked against torch, and what it saves.

    `bytes_alone`: of their own ONNX files, where these were exported. The folder is there whole, or not at all.
    """
    final, partial = out / BUNDLE_FOLDER, out / f"{BUNDLE_FOLDER}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    with progress.bar("bundle", len(cards)) as bar:
        statistics = {card.digest: _statistics(net, card, images) for card in cards}
        chains = {card.digest: exits for card in cards if (exits := chain_exits(card))}
        net.export_together({card.digest: (card.config, statistics[card.digest]) for card in cards}, partial, chains)
        rows = []
        for card in cards:
            file = partial / f"{card.digest}.onnx"
            file.write_bytes(tell(file.read_bytes(), card))
            module = net.build(card.config, statistics[card.digest]).eval()
            inputs, expected = references(net, module, card.config, images, settings.check_images)
            got = _run(file, inputs, net.batch)
            row = _row(card, float(np.abs(got - expected).max() / np.abs(expected).max()))
            if card.digest in chains:
                row = _with_chain(row, net, card, statistics[card.digest], out, inputs)
            rows.append(row)
            bar.advance()
    worst = max(rows, key=lambda row: math.inf if row.relative_difference is None else row.relative_difference)
    difference, allowed = worst.relative_difference, settings.tolerance.fp32
    if difference is None or difference > allowed:
        shutil.rmtree(partial)
        reason = f"SubNet {worst.digest}: outputs differ from torch by {difference}; allowed in fp32: {allowed:g}"
        return Bundle(state="failed", reason=reason)
    BundleIndex(batch=net.batch, subnets=tuple(rows)).write(partial / INDEX_FILE)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    alone = [card.files["onnx"].bytes if "onnx" in card.files else None for card in cards]
    return Bundle(
        state="ok",
        folder=BUNDLE_FOLDER,
        bytes=sum(file.stat().st_size for file in final.iterdir()),
        bytes_alone=None if None in alone else sum(size for size in alone if size is not None),
        relative_difference=difference,
        tolerance=allowed,
    )


def _statistics(net: SuperNet, card: Card, images: EvaluationData) -> Statistics:
    """BatchNorm statistics of a SubNet, and of the heads of its chain where it is one, too."""
    own = statistics_of(net, dict(card.config), images)
    return chain_statistics(net, card.config, chain_exits(card), images) | own


def _with_chain(
    row: BundledSubNet, net: SuperNet, card: Card, statistics: Statistics, out: Path, inputs: Images
) -> BundledSubNet:
    """The row of a SubNet whose segments are there, too; its difference is the largest of all of them."""
    manifest, difference = bundle_chain(net, card, statistics, out, out / f"{BUNDLE_FOLDER}.partial", inputs)
    known = row.relative_difference
    worst = None if known is None or not math.isfinite(difference) else max(known, difference)
    return row.model_copy(update={"segments": manifest, "relative_difference": worst})


def _row(card: Card, difference: float) -> BundledSubNet:
    """The row of one SubNet, by which an application chooses. difference: relative, of its outputs from those of torch."""
    return BundledSubNet(
        file=f"{card.digest}.onnx",
        digest=card.digest,
        input_shape=card.input_shape,
        macs=card.macs,
        parameters=card.parameters,
        accuracy=card.accuracy,
        p50_ms=card.latency.p50_ms,
        relative_difference=difference if math.isfinite(difference) else None,
    )


def _run(file: Path, inputs: Images, batch: int) -> Images:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    return in_batches(inputs, batch, lambda x: np.asarray(session.run(None, {taken.name: x})[0]))
