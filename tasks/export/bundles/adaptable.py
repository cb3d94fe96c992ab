"""Files by which SubNets of a bundle adapt their BatchNorm statistics on the device.

Legend: N images, A labelled images, C channels, H height, W width, K classes.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import nn

from adaptive_runtime.bundle.bundles import AdaptableNet, AdaptableNorm, AdaptationSource, SourceImages
from adaptive_runtime.bundle.chains import ImagePreparation, session_options
from adaptive_runtime.weights import ImageAlignment, NormStatistics, ObservedNetwork, UsualFeatures
from adaptive_runtime.weights.judging import FEWEST_LABELLED
from profiling_agents.messages import Setting
from tailor_ir import SuperNet
from tailor_ir.subnets.batch_statistics import statistics_names
from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError
from tasks.evaluation.subnets import EvaluationData
from tasks.export.files import Images
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
    write_bytes(folder / SOURCE_IMAGES_FILE, SourceImages.of(x_ACHW, label_A, prepared).to_bytes())


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
) -> AdaptableNet | None:
    """Write the usual features of a SubNet, from images in its size; None if it has no BatchNorm.

    Its ONNX files are in the folder. images: batch size of its file with statistics.
    """
    file = folder / f"{digest}.statistics.onnx"
    if not file.exists():
        return None
    norms, source = _norms(folder / f"{digest}.onnx")
    found = AdaptableNet(file=file.name, images=images, norms=norms, source=f"{digest}.source.npz")
    network = observed(found, folder, run_settings)
    seen = network.look(x_NCHW, source)
    layers, half = network.features(seen), len(x_NCHW) // 2
    usual = UsualFeatures.of([layer[:half] for layer in layers])
    alignment = ImageAlignment.of(x_NCHW)
    *others_N, distances_N = usual.scores(layers, seen.logits_BK)[half:].T
    content = AdaptationSource(
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


def observed(net: AdaptableNet, folder: Path, run_settings: Mapping[str, Setting]) -> ObservedNetwork:
    """The SubNet that also returns the statistics of its BatchNorms' inputs."""
    options = session_options(run_settings)
    return ObservedNetwork(
        lambda: onnxruntime.InferenceSession(folder / net.file, options, providers=["CPUExecutionProvider"]), net
    )


def _norms(file: Path) -> tuple[tuple[AdaptableNorm, ...], NormStatistics]:
    """The BatchNorms of a SubNet's file, and their statistics."""
    model = onnx.load(file, load_external_data=False)
    stored = {one.name: one for one in model.graph.initializer}
    names = statistics_names(model)
    mean, variance = (
        [numpy_helper.to_array(stored[name], str(file.parent)) for name in each] for each in zip(*names, strict=True)
    )
    norms = (
        AdaptableNorm(mean=pair[0], variance=pair[1], channels=len(own)) for pair, own in zip(names, mean, strict=True)
    )
    return tuple(norms), NormStatistics(np.concatenate(mean), np.concatenate(variance))
