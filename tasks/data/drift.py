"""Drift for experiments: corruptions of small images, and streams of labelled images that drift.

Corruptions have severities 1 to 5 and need no image files. Levels are from CIFAR-10-C for images of 32 pixels
(Hendrycks and Dietterich, ICLR 2019). Larger images look less corrupted by the same blur. The random numbers of an
image follow only from a seed and its place, so they do not depend on the batch size. A stream's plan has the order of
images, and the corruption of each.

Legend: N images of the stream, M images, B batch, C channels (1 or 3), H height, W width, K classes, or side of a
kernel in filters, S side of the square of plasma noise, a power of two; pixels in [0, 1].
"""

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn import functional

from adaptive_runtime.base.arrays import Integers
from tasks.data.batches import only
from tasks.data.dataset import Dataset, scale_of_images
from tasks.data.settings import CorruptionName, DriftSettings

TRUNCATION = 4
"""Number of standard deviations at which the kernel of a Gaussian blur ends."""


def _gaussian(deviation: float, radius: int) -> torch.Tensor:
    """A kernel (2 · radius + 1,) with sum 1."""
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float32)
    weights = torch.exp(-0.5 * (offsets / deviation) ** 2)
    return weights / weights.sum()


def _filtered(x_BCHW: torch.Tensor, kernel_KK: torch.Tensor, padding: str) -> torch.Tensor:
    channels, margins = x_BCHW.shape[1], [side // 2 for side in kernel_KK.shape]
    padded = functional.pad(x_BCHW, (margins[1], margins[1], margins[0], margins[0]), mode=padding)
    weight = kernel_KK.expand(channels, 1, *kernel_KK.shape).contiguous()
    return functional.conv2d(padded, weight, groups=channels)


def gaussian_blurred(x_BCHW: torch.Tensor, deviation: float) -> torch.Tensor:
    """Images convolved with a Gaussian of this standard deviation [pixels]; the rim is repeated."""
    along = _gaussian(deviation, int(TRUNCATION * deviation + 0.5))
    return _filtered(_filtered(x_BCHW, along[None, :], "replicate"), along[:, None], "replicate")


def defocused(x_BCHW: torch.Tensor, radius: float, smoothing: float) -> torch.Tensor:
    """Images convolved with a disc of this radius [pixels], smoothed by a 3 × 3 Gaussian of a deviation [pixels]; the rim is
    mirrored.
    """
    reach = math.ceil(radius) + 1
    offsets = torch.arange(-reach, reach + 1, dtype=torch.float32)
    disc_KK = ((offsets[:, None] ** 2 + offsets[None, :] ** 2) <= radius**2).float()
    along = _gaussian(smoothing, 1)
    smoothed = functional.conv2d(disc_KK[None, None], torch.outer(along, along)[None, None], padding=1)[0, 0]
    return _filtered(x_BCHW, smoothed / smoothed.sum(), "reflect")


def box_resized(x_BCHW: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Images scaled to (height, width); a new pixel is the mean of the old ones whose centres it covers, as Pillow's BOX."""
    rows, columns = (_box_weights(old, new) for old, new in zip(x_BCHW.shape[-2:], size, strict=True))
    return rows @ x_BCHW @ columns.T


def _box_weights(old: int, new: int) -> torch.Tensor:
    """Weights (new, old); each row sums to 1."""
    scale = old / new
    centre = (torch.arange(new, dtype=torch.float64) + 0.5) * scale
    distance = (torch.arange(old, dtype=torch.float64) + 0.5 - centre[:, None]) / max(scale, 1.0)
    covered = ((distance > -0.5) & (distance <= 0.5)).float()
    return covered / covered.sum(1, keepdim=True)


def compressed(x_BCHW: torch.Tensor, quality: int) -> torch.Tensor:
    """Images after JPEG compression with a quality from 1 to 100."""
    pixels = (x_BCHW.movedim(1, -1) * 255).round().to(torch.uint8).numpy()
    found = np.stack([_through_jpeg(each, quality) for each in pixels])
    return torch.from_numpy(found).movedim(-1, 1).float() / 255


def _through_jpeg(pixels_HWC: np.ndarray, quality: int) -> np.ndarray:
    stream = io.BytesIO()
    grey = pixels_HWC.shape[-1] == 1
    Image.fromarray(pixels_HWC[..., 0] if grey else pixels_HWC).save(stream, "JPEG", quality=quality)
    read = np.array(Image.open(stream))
    return read[..., None] if grey else read


def plasma(uniform: Callable[[int], torch.Tensor], side: int, decay: float) -> torch.Tensor:
    """Noise (B, S, S) in [0, 1] by the diamond-square algorithm on a torus; S is the least power of two not below `side`.

    uniform: from a side to (B, side, side) uniform in [0, 1). decay: the amplitude of the noise is divided by its square at
    each step, as the levels of CIFAR-10-C require; the smaller, the rougher. Source: Fournier, Fussell and Carpenter,
    Communications of the ACM 25(6), 1982.
    """
    size = 1 << max(1, (side - 1).bit_length())
    first = uniform(1)
    height_BSS = torch.zeros(len(first), size, size)
    step, amplitude = size, 1.0
    while step > 1:
        half = step // 2
        count = size // step
        corners = height_BSS[:, ::step, ::step]
        squares = (corners + corners.roll(-1, 1) + corners.roll(-1, 2) + corners.roll((-1, -1), (1, 2))) / 4
        squares = squares + amplitude * (2 * uniform(count) - 1)
        across = squares + squares.roll(1, 1) + corners + corners.roll(-1, 2)
        down = squares + squares.roll(1, 2) + corners + corners.roll(-1, 1)
        height_BSS[:, half::step, half::step] = squares
        height_BSS[:, ::step, half::step] = across / 4 + amplitude * (2 * uniform(count) - 1)
        height_BSS[:, half::step, ::step] = down / 4 + amplitude * (2 * uniform(count) - 1)
        step, amplitude = half, amplitude / decay**2
    lowest, highest = height_BSS.amin((1, 2), keepdim=True), height_BSS.amax((1, 2), keepdim=True)
    return (height_BSS - lowest) / (highest - lowest)


Level = tuple[float, ...]
SEVERITIES = 5
CLEAN = 0
"""The severity of an unchanged image."""


class Draws:
    """Random numbers of a batch of images: one generator for each image, from the seed and its place."""

    def __init__(self, seed: int, places: Sequence[int]) -> None:
        self._generators = [np.random.default_rng((seed, int(place))) for place in places]

    def normal(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Numbers (B, *shape), standard normal."""
        return self._stacked(lambda rng, _: rng.standard_normal(shape, dtype=np.float32))

    def uniform(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Numbers (B, *shape), uniform in [0, 1)."""
        return self._stacked(lambda rng, _: rng.random(shape, dtype=np.float32))

    def poisson(self, rate_BCHW: torch.Tensor) -> torch.Tensor:
        """Numbers (B, C, H, W), Poisson with these rates."""
        rates = rate_BCHW.double().numpy()
        return self._stacked(lambda rng, row: rng.poisson(rates[row]).astype(np.float32))

    def _stacked(self, draw: Callable[[np.random.Generator, int], np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.stack([draw(rng, row) for row, rng in enumerate(self._generators)]))


def gaussian_noise(x_BCHW: torch.Tensor, level: Level, draws: Draws) -> torch.Tensor:
    """Add normal noise. level: (standard deviation,)."""
    return x_BCHW + level[0] * draws.normal(tuple(x_BCHW.shape[1:]))


def shot_noise(x_BCHW: torch.Tensor, level: Level, draws: Draws) -> torch.Tensor:
    """Apply Poisson noise. level: (photons of a white pixel,)."""
    return draws.poisson(x_BCHW * level[0]) / level[0]


def impulse_noise(x_BCHW: torch.Tensor, level: Level, draws: Draws) -> torch.Tensor:
    """Apply salt and pepper in equal parts. level: (share of the values,)."""
    u_BCHW = draws.uniform(tuple(x_BCHW.shape[1:]))
    peppered = torch.where(u_BCHW < level[0] / 2, 0.0, x_BCHW)
    return torch.where(u_BCHW >= 1 - level[0] / 2, 1.0, peppered)


def fog(x_BCHW: torch.Tensor, level: Level, draws: Draws) -> torch.Tensor:
    """Add plasma noise, and scale the image so that its brightest value stays. level: (amount, decay of the noise)."""
    amount, decay = level
    haze_BHW = plasma(lambda side: draws.uniform((side, side)), max(x_BCHW.shape[-2:]), decay)
    height, width = x_BCHW.shape[-2:]
    brightest = x_BCHW.amax((1, 2, 3), keepdim=True)
    return (x_BCHW + amount * haze_BHW[:, None, :height, :width]) * brightest / (brightest + amount)


def brightness(x_BCHW: torch.Tensor, level: Level, draws: Draws) -> torch.Tensor:
    """Raise the value of HSV; hue and saturation stay. level: (amount,)."""
    value_B1HW = x_BCHW.amax(1, keepdim=True)
    raised = (value_B1HW + level[0]).clamp(max=1)
    return torch.where(value_B1HW > 0, x_BCHW * raised / value_B1HW.clamp(min=1e-12), raised)


def contrast(x_BCHW: torch.Tensor, level: Level, draws: Draws) -> torch.Tensor:
    """Pull each channel towards its mean. level: (remaining share of the contrast,)."""
    mean = x_BCHW.mean((2, 3), keepdim=True)
    return mean + level[0] * (x_BCHW - mean)


def pixelate(x_BCHW: torch.Tensor, level: Level, draws: Draws) -> torch.Tensor:
    """Reduce and restore the resolution. level: (remaining share of the pixels along each axis,)."""
    height, width = x_BCHW.shape[-2:]
    return box_resized(box_resized(x_BCHW, (int(height * level[0]), int(width * level[0]))), (height, width))


@dataclass(frozen=True, slots=True)
class Corruption:
    """A corruption. levels: for severities 1 to 5; `apply` has their meaning."""

    apply: Callable[[torch.Tensor, Level, Draws], torch.Tensor]
    levels: tuple[Level, ...]


def _each(*levels: float) -> tuple[Level, ...]:
    return tuple((level,) for level in levels)


CORRUPTIONS: dict[CorruptionName, Corruption] = {
    "gaussian_noise": Corruption(gaussian_noise, _each(0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": Corruption(shot_noise, _each(500, 250, 100, 75, 50)),
    "impulse_noise": Corruption(impulse_noise, _each(0.01, 0.02, 0.03, 0.05, 0.07)),
    "gaussian_blur": Corruption(
        lambda x_BCHW, level, draws: gaussian_blurred(x_BCHW, *level), _each(0.4, 0.6, 0.7, 0.8, 1)
    ),
    "defocus_blur": Corruption(
        lambda x_BCHW, level, draws: defocused(x_BCHW, *level),
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    ),
    "fog": Corruption(fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": Corruption(brightness, _each(0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": Corruption(contrast, _each(0.75, 0.5, 0.4, 0.3, 0.15)),
    "pixelate": Corruption(pixelate, _each(0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg": Corruption(lambda x_BCHW, level, draws: compressed(x_BCHW, int(level[0])), _each(80, 65, 58, 50, 40)),
}


def corrupt(
    x_BCHW: torch.Tensor, name: CorruptionName, severity: int, *, seed: int, places: Sequence[int]
) -> torch.Tensor:
    """The corrupted images, in [0, 1]; unchanged at severity 0. places: of each image in its stream (B,)."""
    if severity == CLEAN:
        return x_BCHW
    found = CORRUPTIONS[name]
    return found.apply(x_BCHW, found.levels[severity - 1], Draws(seed, places)).clamp(0, 1)


class StreamPlan(NamedTuple):
    """The columns of a plan, (N,) each. image: index of the image. corruption: index into `DriftSettings.corruptions`.
    severity: 0: clean.
    """

    image: Integers
    corruption: Integers
    severity: Integers


def plan_stream(settings: DriftSettings, labels: NDArray[np.int64]) -> StreamPlan:
    """The plan of a stream over images with these labels (M,); depends only on settings and labels."""
    rng = np.random.default_rng(settings.seed)
    if settings.stream == "clean":
        return _phase(drawn(settings.images * settings.phases, len(labels), rng), 0, CLEAN)
    if settings.stream == "shares":
        return _shares(settings, labels, rng)
    parts = []
    for number in range(len(settings.corruptions)):
        for severity in (settings.severity, CLEAN) if settings.stream == "returning" else (settings.severity,):
            image = drawn(settings.images, len(labels), rng)
            if settings.stream == "correlated":
                image = image[correlated_order(labels[image], settings.concentration, rng)]
            parts.append(_phase(image, number, severity))
    plan = _joined(parts)
    if settings.stream == "mixed":
        order = rng.permutation(len(plan.image))
        return StreamPlan(*(column[order] for column in plan))
    if settings.stream == "gradual":  # severities 1 … s … 1, each for equally many images of a corruption
        assert settings.severity <= SEVERITIES
        steps = [*range(1, settings.severity + 1), *range(settings.severity - 1, 0, -1)]
        severities = np.array(steps)[np.arange(settings.images) * len(steps) // settings.images]
        return plan._replace(severity=np.tile(severities, len(settings.corruptions)))
    return plan


def drawn(count: int, available: int, rng: np.random.Generator) -> Integers:
    """Image indices (count,) in random order; numbers of occurrences differ by at most one."""
    rounds = [rng.permutation(available) for _ in range(-(-count // available))]
    return np.concatenate(rounds)[:count]


def _joined(parts: list[StreamPlan]) -> StreamPlan:
    return StreamPlan(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _phase(image: Integers, corruption: int, severity: int) -> StreamPlan:
    return StreamPlan(image, np.full(len(image), corruption), np.full(len(image), severity))


def correlated_order(labels: Integers, concentration: float, rng: np.random.Generator) -> Integers:
    """An order (N,) in which classes come in runs.

    There are K slots. Dirichlet shares decide which part of each class is in each slot; within a slot the classes follow one
    another in random order. Source: RoTTA (Yuan et al., CVPR 2023), §4, after NOTE (Gong et al., NeurIPS 2022).
    """
    classes = np.unique(labels)
    slots: list[list[Integers]] = [[] for _ in classes]
    for name in classes:
        own = rng.permutation(np.flatnonzero(labels == name))
        shares = rng.dirichlet(np.full(len(slots), concentration))
        ends = np.round(np.cumsum(shares)[:-1] * len(own)).astype(np.int64)
        for slot, part in zip(slots, np.split(own, ends), strict=True):
            slot.append(part)
    return np.concatenate([slot[place] for slot in slots for place in rng.permutation(len(slot))])


def _shares(settings: DriftSettings, labels: Integers, rng: np.random.Generator) -> StreamPlan:
    """Draw images of each phase with replacement, by the phase's own class shares."""
    by_class = [np.flatnonzero(labels == name) for name in np.unique(labels)]
    parts = []
    for _ in range(settings.phases):
        shares = rng.dirichlet(np.full(len(by_class), settings.concentration))
        chosen = rng.choice(len(by_class), size=settings.images, p=shares)
        image = np.array([rng.choice(by_class[name]) for name in chosen], dtype=np.int64)
        parts.append(_phase(image, 0, CLEAN))
    return _joined(parts)


READ = 256
"""Images that are read from a data set at once."""


class LabelledImages(NamedTuple):
    """x_MCHW: pixels in [0, 1]; label_M; mean and deviation (C, 1, 1), for normalising them."""

    x_MCHW: torch.Tensor
    label_M: NDArray[np.int64]
    mean: torch.Tensor
    deviation: torch.Tensor

    @classmethod
    def of(cls, dataset: Dataset, most: int | None = None) -> "LabelledImages":
        """Images of a split in their order, at its resolution; at most `most`, None: all."""
        mean, deviation = scale_of_images(dataset.settings, dataset.channels)
        pixels: list[torch.Tensor] = []
        labels: list[NDArray[np.int64]] = []
        left = len(dataset) if most is None else most
        for x, y_B in dataset.batches(READ):
            pixels.append((only(x)[:left] * deviation + mean).clamp(0, 1))
            labels.append(y_B[:left].numpy())
            left -= len(labels[-1])
            if left <= 0:
                break
        return cls(torch.cat(pixels), np.concatenate(labels), mean, deviation)

    def normalised(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Normalised pixels, the input of networks."""
        return (x_BCHW - self.mean) / self.deviation


class StreamBatch(NamedTuple):
    """x_BCHW: normalised; y_B: labels; plan: of these images; place: of the first image in the stream."""

    x_BCHW: torch.Tensor
    y_B: torch.Tensor
    plan: StreamPlan
    place: int


def stream(settings: DriftSettings, images: LabelledImages) -> Iterator[StreamBatch]:
    """All batches of a stream, in order. The pixels at a place do not depend on the batch size."""
    plan = plan_stream(settings, images.label_M)
    for start in range(0, len(plan.image), settings.batch_size):
        part = StreamPlan(*(column[start : start + settings.batch_size] for column in plan))
        x_BCHW = _corrupted(images.x_MCHW[part.image], part, settings, start)
        yield StreamBatch(images.normalised(x_BCHW), torch.from_numpy(images.label_M[part.image]), part, start)


def _corrupted(x_BCHW: torch.Tensor, plan: StreamPlan, settings: DriftSettings, start: int) -> torch.Tensor:
    """The corrupted images; images of the same corruption and severity are processed together."""
    found = x_BCHW.clone()
    for number, severity in sorted(set(zip(plan.corruption.tolist(), plan.severity.tolist(), strict=True))):
        if severity == CLEAN:
            continue
        rows = np.flatnonzero((plan.corruption == number) & (plan.severity == severity))
        name = settings.corruptions[number]
        found[rows] = corrupt(x_BCHW[rows], name, severity, seed=settings.seed, places=(start + rows).tolist())
    return found
