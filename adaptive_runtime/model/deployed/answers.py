"""Results of a deployed model: answers, and its state.

Legend: N samples, K classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.weight_state import WeightsState
from adaptive_runtime.bundle.bundles import BundleFormat
from adaptive_runtime.model.adapting import AdaptingState
from adaptive_runtime.pool import Variant
from adaptive_runtime.samples.boxes import Detections


class ModelAnswer(NamedTuple):
    """The answer to a request, and its origin.

    classes (N,): indices; logits (N, K): of the exits that answered. subnets, exits: by sample the digest of the SubNet and the
    name of the exit. confidence (N,): by the measure of the thresholds, else the largest probability.
    For bundles of boxes or pixels, `detections` (N,) or `masks` (N, H, W) are the answer, in pixels of the given images; logits
    are then (N, 0), classes −1 and confidence 0. `images` (N, C, H, W) in [0, 1] are a network's output for the given images,
    larger than these by super-resolution. `tags` (N, T) are the classes of words, −1 for words that the SubNet does not read.
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

    @classmethod
    def of(cls, runs: Sequence["ModelAnswer"], latency_ms: float) -> "ModelAnswer":
        """The answer of several runs, one after another."""
        if len(runs) == 1:
            return runs[0]._replace(latency_ms=latency_ms)
        return cls(
            np.concatenate([run.classes for run in runs]),
            np.concatenate([run.logits for run in runs]),
            tuple(chain.from_iterable(run.subnets for run in runs)),
            tuple(chain.from_iterable(run.exits for run in runs)),
            np.concatenate([run.confidence for run in runs]),
            latency_ms,
            tuple(chain.from_iterable(run.formats for run in runs)),
            tuple(dict.fromkeys(chain.from_iterable(run.devices for run in runs))),
            detections=None
            if runs[0].detections is None
            else tuple(box for run in runs for box in run.detections or ()),
            masks=None
            if runs[0].masks is None
            else np.concatenate([run.masks for run in runs if run.masks is not None]),
            labels=None
            if runs[0].labels is None
            else {name: np.concatenate([(run.labels or {})[name] for run in runs]) for name in runs[0].labels},
            images=None
            if runs[0].images is None
            else np.concatenate([run.images for run in runs if run.images is not None]),
            tags=None if runs[0].tags is None else np.concatenate([run.tags for run in runs if run.tags is not None]),
        )

    @property
    def subnet(self) -> str:
        """The digest of the SubNet that gave the last answer, usually all answers."""
        return self.subnets[-1]


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
