"""The block segments of a bundle, from which a device assembles SubNets that were never exported."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from adaptive_runtime.bundle.bundles import BLOCKS_FILE, BlocksManifest, BundledSegment
from adaptive_runtime.bundle.chains import ChainTensor, ImagePreparation, session_options
from profiling_agents.messages import Setting
from tailor_ir import BlockSegment, Config, Statistics, SuperNet
from tailor_ir.subnets.shared_weights import WEIGHTS_FILE
from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError
from tasks.evaluation.subnets import Accuracy, EvaluationData
from tasks.export.files import Images, in_batches
from tasks.export.settings import Settings

FILE_NAMES = "blocks.{}.onnx"
WEIGHT_BYTES = 4
CHECKED = 3
"""Random chains that are compared with torch, in addition to the largest SubNet."""


def require_blocks(settings: Settings, net: SuperNet) -> None:
    """UserError if block segments are requested but no block has alternatives."""
    if settings.blocks and not any(one.kind == "block" for one in net.space.variables):
        got, next_step = "true, but no block has alternatives", "compile with +space.alternatives=auto for some"
        raise UserError("export.blocks", got, allowed="false", next_step=next_step)


def block_statistics(net: SuperNet, images: EvaluationData) -> Statistics:
    """BatchNorm statistics of all alternatives, each by itself; the network's own layers keep theirs."""
    return net.recalibrate_alternatives(images.calibration(net.input_size(net.max_config)))


def single_replacements(net: SuperNet) -> dict[tuple[str, str], Config]:
    """The SubNets that differ from the largest one in one alternative, by its variable and choice."""
    found = {}
    for one in net.block_segments():
        if one.variable is not None and one.choice is not None:
            found[one.variable, one.choice] = net.space.canonical({**net.max_config, one.variable: one.choice})
    return found


def write_blocks(
    net: SuperNet,
    statistics: Statistics | None,
    prepared: ImagePreparation,
    folder: Path,
    inputs: Images,
    run_settings: Mapping[str, Setting],
    known: Mapping[str, Mapping[str, Accuracy]],
) -> float:
    """Write `blocks.json` for the segments in `folder`; returns the largest difference from torch.

    inputs: images in the largest SubNet's shape, for the check. known: accuracies by split and digest of SubNet; missing ones
    stay unknown.
    """
    sessions = [
        onnxruntime.InferenceSession(
            folder / FILE_NAMES.format(number), session_options(run_settings), providers=["CPUExecutionProvider"]
        )
        for number in range(len(net.block_segments()))
    ]
    losses = _losses(net, known)
    rows = tuple(
        _row(number, segment, session, losses)
        for number, (segment, session) in enumerate(zip(net.block_segments(), sessions, strict=True))
    )
    largest = net.space.digest(net.max_config)
    manifest = BlocksManifest(
        config=dict(net.space.canonical(net.max_config)),
        preparation=prepared,
        weights=WEIGHTS_FILE,
        accuracy={split: of_split[largest].share for split, of_split in known.items() if largest in of_split},
        segments=rows,
    )
    worst = max(_difference(net, statistics, manifest, path, sessions, inputs) for path in _checked(manifest))
    finite = worst if np.isfinite(worst) else 0.0
    content = manifest.model_copy(update={"relative_difference": finite}).to_json()
    write_bytes(folder / BLOCKS_FILE, content.encode())
    return worst


def _losses(net: SuperNet, known: Mapping[str, Mapping[str, Accuracy]]) -> dict[tuple[str, str], float]:
    """Loss of accuracy on the first split for each alternative alone in the largest SubNet."""
    of_split = next(iter(known.values()), {})
    largest = of_split.get(net.space.digest(net.max_config))
    if largest is None:
        return {}
    found = {place: of_split.get(net.space.digest(config)) for place, config in single_replacements(net).items()}
    return {place: largest.share - one.share for place, one in found.items() if one is not None}


def _row(
    number: int,
    segment: BlockSegment,
    session: onnxruntime.InferenceSession,
    losses: Mapping[tuple[str, str], float],
) -> BundledSegment:
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    place = (str(segment.variable), str(segment.choice))
    return BundledSegment(
        start=segment.start,
        end=segment.end,
        variable=segment.variable,
        choice=segment.choice,
        file=FILE_NAMES.format(number),
        input=ChainTensor(name=taken.name, shape=tuple(taken.shape)),
        output=ChainTensor(name=given.name, shape=tuple(given.shape)),
        bytes=WEIGHT_BYTES * segment.parameters,
        macs=segment.macs,
        accuracy_loss=losses.get(place),
    )


def _checked(manifest: BlocksManifest) -> list[tuple[int, ...]]:
    """The largest SubNet, and a few random chains."""
    rng, found = np.random.default_rng(0), [manifest.largest]
    for _ in range(CHECKED):
        path: list[int] = []
        at = 0
        while at < manifest.boundaries - 1:
            path.append(int(rng.choice([n for n, one in enumerate(manifest.segments) if one.start == at])))
            at = manifest.segments[path[-1]].end
        found.append(tuple(path))
    return found


def _difference(
    net: SuperNet,
    statistics: Statistics | None,
    manifest: BlocksManifest,
    path: Sequence[int],
    sessions: Sequence[onnxruntime.InferenceSession],
    inputs: Images,
) -> float:
    """The largest difference of a chain from the built SubNet, over the largest value."""

    def run(x_BCHW: Images) -> Images:
        value = x_BCHW
        for number in path:
            (value,) = sessions[number].run(None, {manifest.segments[number].input.name: value})
        return np.asarray(value)

    with torch.inference_mode():
        expected = net.build(manifest.config_of(tuple(path)), statistics)(torch.from_numpy(inputs)).numpy()
    got = in_batches(inputs, net.batch, run)
    return float(np.abs(got - expected).max() / np.abs(expected).max())
