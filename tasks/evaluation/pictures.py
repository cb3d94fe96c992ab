"""Pictures of answers, for learning problems whose answers can be drawn over images."""

from pathlib import Path

import torch

from tailor_ir import SuperNet
from tasks.data.images import resize
from tasks.evaluation.subnets import EvaluationData, statistics_of

ANSWERS_FILE = "answers.png"
MOST_IMAGES = 6
GAP = 2
"""Pixels between pictures."""


@torch.no_grad()
def write_answers(net: SuperNet, data: EvaluationData, file: Path) -> None:
    """One row for each of the first images: the image, its target, the largest SubNet's answer, the smallest one's.

    No file where the problem's answers cannot be drawn.
    """
    problem, side = data.problem, data.dataset.settings.resolution
    x_BCHW, target = (part[:MOST_IMAGES] for part in next(iter(data.batches((side, side)))))
    classes, plain_BCHW = data.dataset.classes, _brightened(x_BCHW)
    if (wanted_BCHW := problem.drawn(plain_BCHW, target, classes)) is None:
        return
    from torchvision.utils import save_image  # torchvision takes a second

    columns = [plain_BCHW, wanted_BCHW]
    for config in (net.max_config, net.min_config):
        height, width = net.input_shape(config)[-2:]
        net.elastic.activate(config, statistics_of(net, config, data))
        outputs = net.elastic.eval()(resize(x_BCHW, (height, width)))
        answers_BCHW = problem.drawn(plain_BCHW, problem.decoded(outputs, (side, side)), classes)
        assert answers_BCHW is not None
        columns.append(answers_BCHW)
    rows = torch.stack(columns, 1).flatten(0, 1)
    save_image(rows, str(file), nrow=len(columns), padding=GAP, pad_value=1.0)


def _brightened(x_BCHW: torch.Tensor) -> torch.Tensor:
    """(B, 3, H, W) in [0, 1]: the darkest value of each image is black, the brightest white."""
    low, high = x_BCHW.amin((1, 2, 3), keepdim=True), x_BCHW.amax((1, 2, 3), keepdim=True)
    values = (x_BCHW - low) / (high - low).clamp_min(1e-9)
    return values.float().expand(-1, 3, -1, -1)
