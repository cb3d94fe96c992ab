"""Further files of a bundle: samples for BatchNorm adaptation, block segments, and the calibration sample.

With the block segments, a device assembles SubNets that were never exported. The calibration sample has images in the
shapes of the bundle's SubNets, with torch's answers.

Legend: N samples or images, A labelled images, C channels, H height, W width, K classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import nn

from adaptive_runtime.base.arrays import FLOAT_BYTES
from adaptive_runtime.bundle import bundles
from adaptive_runtime.bundle.chains import ChainTensor, ImagePreparation, session_options
from adaptive_runtime.samples.inputs import sample_sizes, unpacked
from adaptive_runtime.weights import ImageAlignment, NormStatistics, ObservedNetwork, UsualFeatures
from adaptive_runtime.weights.guard import FEWEST_LABELLED
from profiling_agents.messages import Setting
from tailor_ir import BlockSegment, Config, Statistics, SuperNet
from tailor_ir.subnets.batch_norms import statistics_names
from tailor_ir.subnets.shared_weights import WEIGHTS_FILE
from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError
from tasks.base.schemas.exports import Card
from tasks.evaluation.subnets import Accuracy, EvaluationData
from tasks.export.files import Images, in_batches
from tasks.export.settings import Settings

SOURCE_IMAGES_FILE = "source_images.npz"
LABELLED, USUAL = 64, 256
"""The most images with labels in the bundle, and the most further images that represent usual input."""
FEWEST_USUAL = 64
DRAWING = 0
"""Seed for drawing the images."""
NORMS = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def require_adaptable(settings: Settings, net: SuperNet) -> None:
    """UserError if SubNets shall adapt but have no BatchNorm."""
    if settings.adaptable and not any(isinstance(layer, NORMS) for layer in net.build(net.max_config).modules()):
        got = "true, but the network has no BatchNorm: there is nothing to adapt by statistics"
        raise UserError("export.adaptable", got, allowed="false", next_step="export without it")


def labelled_images(images: EvaluationData, size: tuple[int, int], count: int) -> tuple[Images, NDArray[np.int64]]:
    """Images (N, C, H, W) in a size, drawn at random but always the same in the same order, and their labels.

    Data sets are often sorted by class: their first images would represent one class only.
    """
    chosen = np.random.default_rng(DRAWING).permutation(images.counts["images"])[:count]
    found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    first = 0
    for x_BCHW, y_B in images.batches(size):
        for place in np.flatnonzero((chosen >= first) & (chosen < first + len(y_B))).tolist():
            row = int(chosen[place]) - first
            found[place] = x_BCHW[row], y_B[row]
        first += len(y_B)
    x_parts, y_parts = zip(*(found[place] for place in range(len(chosen))), strict=True)
    return torch.stack(x_parts).cpu().numpy(), torch.stack(y_parts).cpu().numpy()


def write_source_images(images: EvaluationData, prepared: ImagePreparation, folder: Path) -> None:
    """Write labelled images for all SubNets. UserError if there are too few."""
    size = (prepared.resolution, prepared.resolution)
    x_ACHW, label_A = labelled_images(images, size, LABELLED)
    if len(x_ACHW) < FEWEST_LABELLED:
        _refuse(len(x_ACHW), FEWEST_LABELLED)
    write_bytes(folder / SOURCE_IMAGES_FILE, bundles.SourceImages.of(x_ACHW, label_A, prepared).to_bytes())


def usual_images(images: EvaluationData, size: tuple[int, int]) -> Images:
    """Images (N, C, H, W) that represent usual input of a SubNet; labelled images are excluded if there are enough others.

    UserError if there are too few.
    """
    x_NCHW, _ = labelled_images(images, size, LABELLED + USUAL)
    found = x_NCHW[LABELLED:] if len(x_NCHW) >= LABELLED + FEWEST_USUAL else x_NCHW
    if len(found) < FEWEST_USUAL:
        _refuse(len(found), FEWEST_USUAL)
    return found


def _refuse(count: int, fewest: int) -> None:
    where, next_step = "export.adaptable", "take a larger split, or export without it"
    raise UserError(where, f"{count} images to tell what is usual", allowed=f"{fewest} or more", next_step=next_step)


def adaptable_net(
    digest: str, images: int, folder: Path, x_NCHW: Images, run_settings: Mapping[str, Setting]
) -> bundles.AdaptableNet | None:
    """Write the usual features of a SubNet, from images in its size; None if it has no BatchNorm.

    Its ONNX files are in the folder. images: batch size of its file with statistics.
    """
    file = folder / f"{digest}.statistics.onnx"
    if not file.exists():
        return None
    norms, source = _norms(folder / f"{digest}.onnx")
    found = bundles.AdaptableNet(file=file.name, images=images, norms=norms, source=f"{digest}.source.npz")
    network = observed(found, folder, run_settings)
    seen = network.look(x_NCHW, source)
    layers, middle = network.features(seen), len(x_NCHW) // 2
    usual = UsualFeatures.of([layer[:middle] for layer in layers])
    alignment = ImageAlignment.of(x_NCHW)
    *others_N, distances_N = usual.scores(layers, seen.logits_BK)[middle:].T
    content = bundles.AdaptationSource(
        mean=source.mean_F,
        variance=source.variance_F,
        usual_mean=np.concatenate(usual.means),
        usual_deviation=np.concatenate(usual.deviations),
        calibration=np.stack(others_N, 1),
        directions=usual.directions_PF,
        distances=distances_N,
        usual_light=alignment.usual_UC,
        light_deviations=np.array(alignment.deviations),
    )
    write_bytes(folder / found.source, content.to_bytes())
    return found


def observed(net: bundles.AdaptableNet, folder: Path, run_settings: Mapping[str, Setting]) -> ObservedNetwork:
    """The SubNet that also returns the statistics of its BatchNorms' inputs."""
    options = session_options(run_settings)
    return ObservedNetwork(
        lambda: onnxruntime.InferenceSession(folder / net.file, options, providers=["CPUExecutionProvider"]), net
    )


def _norms(file: Path) -> tuple[tuple[bundles.AdaptableNorm, ...], NormStatistics]:
    """The BatchNorms of a SubNet's file, and their statistics."""
    model = onnx.load(file, load_external_data=False)
    stored = {one.name: one for one in model.graph.initializer}
    names = statistics_names(model)
    mean, variance = (
        [numpy_helper.to_array(stored[name], str(file.parent)) for name in each] for each in zip(*names, strict=True)
    )
    norms = (
        bundles.AdaptableNorm(mean=pair[0], variance=pair[1], channels=len(own))
        for pair, own in zip(names, mean, strict=True)
    )
    return tuple(norms), NormStatistics(np.concatenate(mean), np.concatenate(variance))


FILE_NAMES = "blocks.{}.onnx"
CHECKED = 3
"""Random chains that are compared with torch, in addition to the largest SubNet."""


def require_blocks(settings: Settings, net: SuperNet) -> None:
    """UserError if block segments are requested but no block has alternatives."""
    if settings.blocks and not any(one.kind == "block" for one in net.space.variables):
        got, next_step = "true, but no block has alternatives", "compile with +space.alternatives=auto for some"
        raise UserError("export.blocks", got, allowed="false", next_step=next_step)


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
    manifest = bundles.BlocksManifest(
        config=dict(net.space.canonical(net.max_config)),
        preparation=prepared,
        weights=WEIGHTS_FILE,
        accuracy={split: of_split[largest].share for split, of_split in known.items() if largest in of_split},
        segments=rows,
    )
    worst = max(_difference(net, statistics, manifest, path, sessions, inputs) for path in _checked(manifest))
    finite = worst if np.isfinite(worst) else 0.0
    content = manifest.model_copy(update={"relative_difference": finite}).to_json()
    write_bytes(folder / bundles.BLOCKS_FILE, content.encode())
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
    number: int, segment: BlockSegment, session: onnxruntime.InferenceSession, losses: Mapping[tuple[str, str], float]
) -> bundles.BundledSegment:
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    place = (str(segment.variable), str(segment.choice))
    return bundles.BundledSegment(
        start=segment.start,
        end=segment.end,
        variable=segment.variable,
        choice=segment.choice,
        file=FILE_NAMES.format(number),
        input=ChainTensor(name=taken.name, shape=tuple(taken.shape)),
        output=ChainTensor(name=given.name, shape=tuple(given.shape)),
        bytes=FLOAT_BYTES * segment.parameters,
        macs=segment.macs,
        accuracy_loss=losses.get(place),
    )


def _checked(manifest: bundles.BlocksManifest) -> list[tuple[int, ...]]:
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
    manifest: bundles.BlocksManifest,
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


@dataclass(frozen=True, slots=True)
class SampledSubNet:
    """A SubNet, samples in its shapes, as images (N, C, H, W), and the exits of its chain."""

    card: Card
    statistics: Statistics
    inputs: Images
    exits: tuple[str, ...]


def calibration_sample(net: SuperNet, subnets: Sequence[SampledSubNet]) -> bundles.CalibrationSample:
    """The most images that fit into `MOST_BYTES`; if even one does not fit, the largest shapes are left out."""
    own = {subnet.card.digest: sample_sizes(subnet.inputs) for subnet in subnets}
    shapes = {own[subnet.card.digest]: bundles.half(subnet.inputs) for subnet in subnets}
    answers = {
        key: y for subnet in subnets for key, y in _answers(net, subnet, shapes[own[subnet.card.digest]]).items()
    }
    most = max(map(len, shapes.values()))
    kept = sorted(shapes, key=lambda shape: torch.Size(shape).numel())
    while True:
        for count in range(most if len(kept) == len(shapes) else 1, 0, -1):
            found = bundles.CalibrationSample(
                inputs={shape: shapes[shape][:count] for shape in kept},
                answers={key: y[:count] for key, y in answers.items() if own[key[0]] in kept},
            )
            if len(found.to_bytes()) <= bundles.MOST_BYTES:
                return found
        kept.pop()


def _answers(net: SuperNet, subnet: SampledSubNet, x_NCHW: Images) -> dict[tuple[str, str | None], Images]:
    card, x = subnet.card, [torch.from_numpy(one) for one in unpacked(x_NCHW)]
    with torch.inference_mode():
        module = net.build(card.config, subnet.statistics).eval()
        found: dict[tuple[str, str | None], Images] = {(card.digest, None): module(*x).numpy()}
        if subnet.exits:
            config = net.space.canonical({**card.config, "exit": subnet.exits[-1]})
            segments = net.segments(config, subnet.statistics, subnet.exits)
            values = {segments[0].inputs[0]: x[0]}
            found |= {(card.digest, segment.exit): segment(values).numpy() for segment in segments}
    return found
