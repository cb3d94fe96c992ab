"""Pictures of answers, for signals and for learning problems whose answers can be drawn over images."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch.nn import functional

from tailor_ir import SuperNet
from tasks.data.batches import only
from tasks.data.images import resize
from tasks.evaluation.subnets import EvaluationData, statistics_of

ANSWERS_FILE = "answers.png"
MOST_IMAGES = 6
GAP = 2
"""Pixels between pictures."""


@torch.no_grad()
def write_answers(net: SuperNet, data: EvaluationData, file: Path) -> None:
    """Draw a row for each of the first images: the image, its target, the largest SubNet's answer, the smallest one's.

    An image is shown in the size of its target, if that is larger. Signals have a spectrogram each, with these three as names
    of classes. No file is written if the problem's answers cannot be drawn.
    """
    form = data.dataset.form
    if form.words is not None or form.names or form.given:
        return
    problem, side = data.problem, data.dataset.settings.resolution
    x, target = next(iter(data.batches((side, side))))
    x_BCHW, target = only(x)[:MOST_IMAGES], target[:MOST_IMAGES]
    low, high = x_BCHW.amin((1, 2, 3), keepdim=True), x_BCHW.amax((1, 2, 3), keepdim=True)
    plain_BCHW = ((x_BCHW - low) / (high - low).clamp_min(1e-9)).float().expand(-1, 3, -1, -1)  # black to white
    classes = data.dataset.classes
    wanted_BCHW = problem.drawn(plain_BCHW, target, classes)
    if wanted_BCHW is not None:
        columns = [functional.interpolate(plain_BCHW, wanted_BCHW.shape[-2:], mode="nearest"), wanted_BCHW]
        for answers in _answers(net, data, x_BCHW):
            drawn_BCHW = problem.drawn(plain_BCHW, answers, classes)
            assert drawn_BCHW is not None
            columns.append(drawn_BCHW)
        from torchvision.utils import save_image  # torchvision takes a second

        rows = torch.stack(columns, 1).flatten(0, 1)
        save_image(rows, str(file), nrow=len(columns), padding=GAP, pad_value=1.0)
    elif data.dataset.scaling.spectrogram is not None:
        _draw_spectrograms(data, plain_BCHW, [target, *_answers(net, data, x_BCHW)], file)


def _answers(net: SuperNet, data: EvaluationData, x_BCHW: torch.Tensor) -> Iterator[torch.Tensor]:
    """Answers of the largest and of the smallest SubNet, in the form of targets."""
    side = data.dataset.settings.resolution
    for config in (net.max_config, net.min_config):
        net.elastic.activate(config, statistics_of(net, config, data))
        yield data.problem.decoded(net.elastic.eval()(resize(x_BCHW, net.input_size(config))), (side, side))


def _draw_spectrograms(
    data: EvaluationData, plain_BCHW: torch.Tensor, described: Sequence[torch.Tensor], file: Path
) -> None:
    """Draw a spectrogram for each signal. described: the classes of all signals, and the answers of the largest and smallest
    SubNet.
    """
    from matplotlib.figure import Figure

    spectrogram, names = data.dataset.scaling.spectrogram, data.dataset.class_names
    assert spectrogram is not None
    edges = (0.0, spectrogram.samples / spectrogram.sampling_rate_hz, 0.0, float(spectrogram.bands))
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots(2, MOST_IMAGES // 2, sharex=True, sharey=True, squeeze=False)
    for axis, image_CHW, labels in zip(axes.flat, plain_BCHW, zip(*described, strict=True), strict=False):
        axis.imshow(image_CHW[0].numpy(), origin="lower", aspect="auto", extent=edges, cmap="magma")
        wanted, largest, smallest = (names[int(label)] for label in labels)
        axis.set_title(f"{wanted}\nlargest: {largest}, smallest: {smallest}", fontsize=9)
    figure.supxlabel("time, s")
    figure.supylabel("mel band")
    figure.savefig(file, dpi=100)
