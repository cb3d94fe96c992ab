"""The calibration sample of a bundle: images in the shapes of its SubNets, with torch's answers.

Legend: N samples, C channels, H height, W width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from adaptive_runtime.bundle.bundles import MOST_BYTES, CalibrationSample, half
from adaptive_runtime.samples.several import sample_sizes, unpacked
from tailor_ir import Statistics, SuperNet
from tasks.base.schemas.exports import Card
from tasks.export.files import Images


@dataclass(frozen=True, slots=True)
class SampledSubNet:
    """A SubNet, samples in its shapes, as images (N, C, H, W), and the exits of its chain."""

    card: Card
    statistics: Statistics
    inputs: Images
    exits: tuple[str, ...]


def calibration_sample(net: SuperNet, subnets: Sequence[SampledSubNet]) -> CalibrationSample:
    """The most images that fit into `MOST_BYTES`; if even one does not fit, the largest shapes are left out."""
    own = {subnet.card.digest: sample_sizes(subnet.inputs) for subnet in subnets}
    shapes = {own[subnet.card.digest]: half(subnet.inputs) for subnet in subnets}
    answers = {
        key: y for subnet in subnets for key, y in _answers(net, subnet, shapes[own[subnet.card.digest]]).items()
    }
    most = max(map(len, shapes.values()))
    kept = sorted(shapes, key=lambda shape: torch.Size(shape).numel())
    while True:
        for count in range(most if len(kept) == len(shapes) else 1, 0, -1):
            found = CalibrationSample(
                inputs={shape: shapes[shape][:count] for shape in kept},
                answers={key: y[:count] for key, y in answers.items() if own[key[0]] in kept},
            )
            if len(found.to_bytes()) <= MOST_BYTES:
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
