"""Results of a deployed model: answers, state, decoders of raw outputs, and the interface of weights that follow.

Raw outputs are more than the class of a sample: boxes, classes of pixels or words, images. `adaptive_runtime.weights`
has the class of the weights.

Legend: N samples, C channels, P anchors, K classes, H height, W width; h and w, height and width of a raw output.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Array
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.weight_options import WeightsState
from adaptive_runtime.bundle.bundles import BundledNet, BundledSubNet, BundleFormat
from adaptive_runtime.policy import ChoiceLimits, Decision
from adaptive_runtime.pool import Variant
from adaptive_runtime.pool.variants import BILINEAR, scaling
from adaptive_runtime.samples.boxes import HEADS, DetectionHead, Detections, detect
from adaptive_runtime.state.forecast import Forecast

if TYPE_CHECKING:
    from adaptive_runtime.state.sensing import SensedState


class ModelAnswer(NamedTuple):
    """The answer to a request, and its origin.

    classes (N,): indices; logits (N, K): of the exits that answered. subnets, exits: by sample the digest of the SubNet and the
    name of the exit. confidence (N,): by the measure of the thresholds, else the largest probability.
    For bundles of boxes or pixels, `detections` (N,) or `masks` (N, H, W) are the answer, in pixels of the given images; logits
    are then (N, 0), classes −1 and confidence 0. `images` (N, C, H, W) in [0, 1] are a network's output for the given images,
    larger than these by super-resolution. `tags` (N, T) are the classes of words, −1 for words that the SubNet does not read.
    `values` (N, …) are the network's output as it is, if the device knows no form of answers.
    If samples have several targets, `labels` has the class of each (N,) by target, numbered among all classes of the bundle,
    and logits are those of all. latency_ms: of the whole request, from the call to this answer, with decoding. devices: those
    that ran segments, if the SubNet is split over several. formats: by sample, of the files that answered.
    """

    classes: NDArray[np.int64]
    logits: NDArray[np.float32]
    subnets: tuple[str, ...]
    exits: tuple[str, ...]
    confidence: NDArray[np.float64]
    latency_ms: float
    formats: tuple[BundleFormat, ...]
    devices: tuple[str, ...] = ()
    detections: tuple[Detections, ...] | None = None
    masks: NDArray[np.int64] | None = None
    labels: Mapping[str, NDArray[np.int64]] | None = None
    images: NDArray[np.float32] | None = None
    tags: NDArray[np.int64] | None = None
    values: NDArray[np.float32] | None = None

    @classmethod
    def of(cls, runs: Sequence["ModelAnswer"], latency_ms: float) -> "ModelAnswer":
        """The answer of several runs, one after another."""
        found = {name: _joined([getattr(run, name) for run in runs]) for name in cls._fields if name != "latency_ms"}
        return cls(latency_ms=latency_ms, **{**found, "devices": tuple(dict.fromkeys(found["devices"]))})

    @property
    def subnet(self) -> str:
        """The digest of the SubNet that gave the last answer, usually all answers."""
        return self.subnets[-1]


def _joined(parts: Sequence[Any]) -> Any:
    """The values of several runs as one: arrays, tuples, or arrays by name; None if there are none."""
    if parts[0] is None:
        return None
    if isinstance(parts[0], Mapping):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return tuple(chain.from_iterable(parts)) if isinstance(parts[0], tuple) else np.concatenate(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptingState:
    """State of an adapting model at one moment. None: not sensed, or not yet.

    load: the load index of the last sample. forecast: of the load index, for the next samples. slow_down: mean and deviation of
    the factor by which the decided variant is expected to be slower than predicted. device: the last sample. decision: the last
    decision. mu: weight of accuracy against energy, if it follows the battery. care: factors on the deviations in decisions,
    learned from late requests under this load, for variants on the coordinator and over devices.
    """

    limits: ChoiceLimits
    load: float | None
    forecast: Forecast | None
    slow_down: tuple[float, float]
    device: "SensedState | None"
    decision: Decision | None
    mu: float | None = None
    margins: tuple[float, float] = (1.0, 1.0)

    @property
    def battery(self) -> float | None:
        """Charge, from 0 to 1."""
        return None if self.device is None else self.device.battery

    @property
    def memory_available_mib(self) -> float | None:
        """Free memory of the device."""
        return None if self.device is None else self.device.memory_available_mib

    @property
    def reason(self) -> str | None:
        """The reason of the last decision."""
        return None if self.decision is None else self.decision.reason

    @property
    def rule(self) -> str | None:
        """The rule that made the last decision; None if there are no rules."""
        return None if self.decision is None else self.decision.rule


@dataclass(frozen=True, slots=True)
class ModelState:
    """A deployed model at one moment.

    standby: the variant that is being loaded, to serve next. warm: variants that start without loading, the least recently used
    first. taken_out: quarantined SubNets, each with one line; a SubNet may continue in another format. requests, switches:
    since
    loading. stood_in: runs that a fallback on this device answered, since other devices were not in time. latency_ms: of the
    latest request; None: there was none. used_mib: growth of the process since before the first SubNet, as measured after the
    latest loading. format: of the serving files, also if `serving` does not name it. adapting: load, forecast, slow-down and
    the
    last decision; None: the model does not adapt. budget_ms: of each run; None: the model does not adapt, or has no such limit.
    weights: adaptations of SubNets to their images; None: weights stay fixed.
    """

    serving: Variant
    standby: Variant | None
    warm: tuple[Variant, ...]
    taken_out: Mapping[str, str]
    requests: int
    switches: int
    latency_ms: float | None
    used_mib: float
    budget_mib: float | None
    format: BundleFormat
    adapting: AdaptingState | None = None
    weights: WeightsState | None = None
    stood_in: int = 0
    budget_ms: float | None = None


AS_IT_IS = ("own", "fidelity")
"""Problems whose answers only their owner can read."""
SEGMENTATION, SEVERAL_CLASSES, RESTORATION, TAGGING = "segmentation", "several_classes", "restoration", "tagging"
UNREAD = NO_CLASS = -1
UPSCALES: Mapping[str, int] = MappingProxyType(
    {RESTORATION: 1, **{f"super_resolution_x{upscale}": upscale for upscale in range(2, 9)}}
)
"""Factor of height and width from given to returned images, for each problem that returns images."""


class DecodedAnswers(NamedTuple):
    """Answers for images, in their own pixels: the boxes of each image, or the class of each pixel (N, H, W).

    Or labels: the class of each sample (N,) by target, as its number among all classes of the bundle. Or images (N, C, H, W)
    made of the given ones, with values in [0, 1], and larger by super-resolution. Or tags: the class of each word (N, T),
    `UNREAD` for words that a SubNet does not read. Or values: the output as it is (N, …).
    """

    detections: tuple[Detections, ...] | None = None
    masks: NDArray[np.int64] | None = None
    labels: Mapping[str, NDArray[np.int64]] | None = None
    images: NDArray[np.float32] | None = None
    tags: NDArray[np.int64] | None = None
    values: NDArray[np.float32] | None = None

    def answer(
        self,
        raw_NV: Array,
        subnets: tuple[str, ...],
        exits: tuple[str, ...],
        run_ms: float,
        formats: tuple[BundleFormat, ...],
    ) -> ModelAnswer:
        """The answer to samples with these raw outputs."""
        count = len(raw_NV)
        logits, classes = raw_NV if self.labels else np.empty((count, 0), np.float32), np.full(count, NO_CLASS)
        return ModelAnswer(classes, logits, subnets, exits, np.zeros(count), run_ms, formats, **self._asdict())


RawDecoder = Callable[[Array, BundledSubNet, BundledNet, tuple[int, int]], DecodedAnswers]
"""Decodes a flat raw output (N, numbers) of a SubNet in one format, for images of (height, width)."""


def boxes_of(
    head: DetectionHead, raw_NV: Array, subnet: BundledSubNet, net: BundledNet, size: tuple[int, int]
) -> DecodedAnswers:
    """Boxes by a head; a SubNet with another image size gives them in its own pixels, so they are scaled."""
    height, width = own = (subnet.input_shape[-2], subnet.input_shape[-1])
    scale_4 = np.array([size[1] / width, size[0] / height] * 2, dtype=np.float32)
    found = detect(head, raw_NV.reshape(len(raw_NV), head.positions(own), -1), own)
    return DecodedAnswers(tuple(replace(one, boxes_N4=one.boxes_N4 * scale_4) for one in found))


def masks_of(raw_NV: Array, subnet: BundledSubNet, net: BundledNet, size: tuple[int, int]) -> DecodedAnswers:
    """The class of each pixel, by logits enlarged to the image."""
    return DecodedAnswers(masks=_enlarged(raw_NV, net, size).argmax(1))


def images_of(
    upscale: int, raw_NV: Array, subnet: BundledSubNet, net: BundledNet, size: tuple[int, int]
) -> DecodedAnswers:
    """Images, enlarged by the factor `upscale` from the size of the given ones."""
    height, width = size
    return DecodedAnswers(images=np.clip(_enlarged(raw_NV, net, (upscale * height, upscale * width)), 0, 1))


def tags_of(raw_NV: Array, subnet: BundledSubNet, net: BundledNet, size: tuple[int, int]) -> DecodedAnswers:
    """The class of each word that the SubNet reads. size: its last number is T."""
    read, classes = (int(one or 0) for one in net.output.shape[-2:])
    tags_NT = np.full((len(raw_NV), size[1]), UNREAD, np.int64)
    tags_NT[:, :read] = raw_NV.reshape(-1, read, classes).argmax(2)
    return DecodedAnswers(tags=tags_NT)


def values_of(raw_NV: Array, subnet: BundledSubNet, net: BundledNet, size: tuple[int, int]) -> DecodedAnswers:
    """The output as it is, in the file's shape."""
    return DecodedAnswers(values=raw_NV.reshape(len(raw_NV), *(int(one or -1) for one in net.output.shape[1:])))


def _enlarged(raw_NV: Array, net: BundledNet, size: tuple[int, int]) -> Array:
    """Enlarged maps (N, K, H, W)."""
    *_, channels, height, width = (int(one or 0) for one in net.output.shape)
    maps_NKhw = raw_NV.reshape(-1, channels, height, width)
    enlarged = scaling((height, width), size, BILINEAR)
    return maps_NKhw if enlarged is None else enlarged(maps_NKhw)


def targets_of(classes: Sequence[str]) -> dict[str, slice]:
    """The slice of each target's classes, whose names are `TARGET: CLASS`, one target after the other."""
    found: dict[str, slice] = {}
    for number, name in enumerate(classes):
        target = name.partition(": ")[0]
        found[target] = slice(found[target].start if target in found else number, number + 1)
    return found


def labels_of(
    classes: Sequence[str], raw_NK: Array, subnet: BundledSubNet, net: BundledNet, size: tuple[int, int]
) -> DecodedAnswers:
    """The class of each target, by the largest of its logits."""
    places = targets_of(classes).items()
    return DecodedAnswers(labels={name: place.start + raw_NK[:, place].argmax(1) for name, place in places})


DECODERS: Mapping[str, RawDecoder] = MappingProxyType(
    {
        SEGMENTATION: masks_of,
        **{name: partial(images_of, upscale) for name, upscale in UPSCALES.items()},
        TAGGING: tags_of,
        **dict.fromkeys(AS_IT_IS, values_of),
        **{f"detection_{name}": partial(boxes_of, head) for name, head in HEADS.items()},
    }
)


def decoder_of(problem: str | None, classes: Sequence[str] = ()) -> RawDecoder | None:
    """The decoder of a learning problem; None if it classifies whole images. AdaptiveError for an unknown problem."""
    if problem is None:
        return None
    if problem == SEVERAL_CLASSES:
        return partial(labels_of, classes)
    if problem not in DECODERS:
        allowed, next_step = ", ".join((SEVERAL_CLASSES, *DECODERS)), "install a newer adaptive_runtime"
        raise AdaptiveError("bundle", f"problem '{problem}'", allowed=allowed, next_step=next_step)
    return DECODERS[problem]


class FollowingWeights(Protocol):
    """Weights of the serving SubNets, which adapt in a thread of their own."""

    @property
    def state(self) -> WeightsState: ...

    def start(self, serving: Variant) -> None:
        """Observe images from now on."""
        ...

    def served(self, variant: Variant, x_NCHW: NDArray[np.float32]) -> None:
        """Take over samples that a variant has answered."""
        ...

    def let(self, *, adapt: bool) -> None:
        """Allow or forbid adaptation from now on; if forbidden, the source's weights serve."""
        ...

    def wait(self) -> None:
        """Until all samples so far have been observed."""
        ...

    def stop(self) -> None: ...
