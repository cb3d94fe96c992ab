"""A SubNet of a bundle whose weights adapt while it serves.

Legend: N samples, B of them in the SubNet's size, C channels, H height, W width, K classes, D statistics of an image.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.weight_options import WeightOptions
from adaptive_runtime.base.weight_state import SubnetWeights
from adaptive_runtime.bundle.bundles import AdaptableNet, AdaptationSource
from adaptive_runtime.bundle.chains import ExitChain, OnnxChain
from adaptive_runtime.pool import SubNetPool, Variant
from adaptive_runtime.weights.aligning import AlignedSession, AlignedView, ImageAlignment
from adaptive_runtime.weights.guard import DriftGuard, GuardEvent
from adaptive_runtime.weights.network import ObservedNetwork
from adaptive_runtime.weights.profile import UsualFeatures
from adaptive_runtime.weights.scales import EntropyNetwork, LearnedScales
from adaptive_runtime.weights.side_file import AdaptedFiles, KeptWeights
from adaptive_runtime.weights.statistics import Array, NormStatistics, spans
from adaptive_runtime.weights.weights import LabelledSource, StatisticsWeights

LOG = logging.getLogger("adaptive_runtime")


class AdaptedSubnet:
    """Observes images of a SubNet, and puts adapted weights or the source's weights in its place in the pool.

    Both get aligned images while the guard asks for it. Weights and alignment go into the pool as one value. Only one thread
    calls it. AdaptiveError: the SubNet cannot adapt. files: None: the adaptation is lost when the process ends.
    """

    def __init__(self, pool: SubNetPool, digest: str, options: WeightOptions, files: AdaptedFiles | None) -> None:
        self._pool, self.digest, self._files = pool, digest, files
        self._answerer = pool.answerer(Variant(digest))
        self._net = adaptable(pool, digest)
        source = pool.bundle.adaptation_source(self._net)
        self._belongs = pool.bundle.manifest.files[self._net.source].sha256
        self._usual = usual_features(source, self._net)
        network = ObservedNetwork(self._observed_session, self._net)
        statistics = NormStatistics(source.mean, source.variance)
        learned = None if options.method == "statistics" else LearnedScales(self._entropy_network, options)
        alignment = image_alignment(source) if options.align else None
        self.weights = StatisticsWeights(network, statistics, self._anchor, options, learned, alignment)
        view = AlignedView(self._look_aligned, self.weights.lost_by_alignment)
        self.guard = DriftGuard(self.weights, source.calibration_ND, options.guard, None if alignment is None else view)
        self.is_adapted = self.is_aligned = False
        self._look_ms: float | None = None
        self._renewed_ms: float | None = None
        self._resume()

    def observe(self, x_NCHW: Array) -> list[GuardEvent]:
        """Observe served images (N, C, H, W) in the bundle's size. Returns the events."""
        scale, guard = self._answerer.scale, self.guard
        x_BCHW = x_NCHW if scale is None else scale(x_NCHW)
        start_s = time.perf_counter()
        logits_BK, scores_BD = self._look(x_BCHW)
        self._look_ms = 1e3 * (time.perf_counter() - start_s) / len(x_BCHW)
        guard.events.clear()
        guard.observe(x_BCHW, scores_BD, logits_BK)
        events = list(guard.events)
        if guard.kept and events and events[-1].kind == "kept":
            self.serve_adapted()
        elif not guard.kept and (self.is_adapted or self.is_aligned != guard.aligns):
            self.serve_source(aligns=guard.aligns)
        return events

    def _look(self, x_BCHW: Array) -> tuple[Array, NDArray[np.float64]]:
        """The source's logits (B, K) and statistics (B, D) of images."""
        seen = self.weights.network.look(x_BCHW, self.weights.source)
        return seen.logits_BK, self._usual.scores(self.weights.network.features(seen), seen.logits_BK)

    def _look_aligned(self, x_BCHW: Array) -> tuple[Array, NDArray[np.float64]]:
        assert self.weights.alignment is not None
        return self._look(self.weights.alignment(x_BCHW))

    @property
    def state(self) -> SubnetWeights:
        """The current state."""
        guard, steps = self.guard, self.weights.steps
        serves = self.is_adapted, self.is_aligned
        return SubnetWeights(*serves, guard.drifting, guard.images, steps, self._look_ms, self._renewed_ms)

    def release(self) -> None:
        """Free the memory for observing until the next images come."""
        self.weights.release()

    def serve_source(self, *, aligns: bool = False) -> None:
        """Let the bundle's own weights answer from the next run on, and forget the adaptation.

        aligns: whether their images are aligned, which the side file records.
        """
        if self.is_adapted or self.is_aligned != aligns:
            start_s = time.perf_counter()
            own = self._answerer.parts[0].own
            self._pool.renew(self._answerer, self._loads(own, aligns=True) if aligns else None)
            self.is_adapted, self.is_aligned = False, aligns
            self._renewed_ms = 1e3 * (time.perf_counter() - start_s)
        if self._files is not None and aligns:
            self._files.write(self.digest, self._belongs, KeptWeights(self.weights.source, 0, aligns=True))
        elif self._files is not None:
            self._files.remove(self.digest)

    def serve_adapted(self) -> None:
        """Let the adapted weights answer from the next run on, and save them in the side file.

        AdaptiveError, and nothing is changed: the new session does not compute the answers that were judged.
        """
        start_s = time.perf_counter()
        weights, aligns = self.weights, self.guard.aligns
        load = partial(self._adapted_session, weights.folded)
        session = load()
        self._check(session)
        value = self._loads(lambda: session, aligns=aligns)()
        self._pool.renew(self._answerer, self._loads(load, aligns=aligns), value)
        self.is_adapted, self.is_aligned = True, aligns
        self._renewed_ms = 1e3 * (time.perf_counter() - start_s)
        if self._files is not None:
            kept = KeptWeights(weights.statistics, weights.steps, weights.scales, aligns)
            self._files.write(self.digest, self._belongs, kept)

    def _loads(self, load: Callable[[], Any], *, aligns: bool) -> Callable[[], Any]:
        """A function that loads a session with or without alignment."""
        alignment = self.weights.alignment
        return load if not aligns or alignment is None else lambda: AlignedSession(load(), alignment)

    def _check(self, session: Any) -> None:
        manifest = self._answerer.chain.manifest
        x_BCHW, expected_BK = self.weights.example
        logits_BK = ExitChain(manifest, OnnxChain(manifest, lambda _: session)).infer(x_BCHW).logits
        difference = float(np.abs(logits_BK - expected_BK).max() / np.abs(expected_BK).max())
        allowed = self._pool.bundle.manifest.runs[self._pool.form].tolerance
        if not difference <= allowed:
            where, got = f"SubNet {self.digest}, adapted", f"answers differ from the judged ones by {difference:.3g}"
            raise AdaptiveError(where, got, allowed=f"{allowed:g}", next_step="export the bundle again on this device")

    def _resume(self) -> None:
        """Continue the adaptation that an earlier process has saved."""
        if self._files is None:
            return
        found, weights = self._files.read(self.digest, self._belongs, len(self.weights.source.mean_F)), self.weights
        if found is None:
            return
        if found.aligns and weights.alignment is None:
            LOG.warning("'%s' is of aligned images; the SubNet is as the bundle has it", self._files.file(self.digest))
            return
        weights.restore(found.statistics, found.steps, found.scales, aligns=found.aligns)
        self.guard.resume(kept=found.steps > 0, aligns=found.aligns)
        if self.guard.kept:
            x_BCHW = weights.given(weights.example[0])
            weights.example = x_BCHW, weights.network.look(x_BCHW, weights.folded).logits_BK
            self.serve_adapted()
        else:
            self.serve_source(aligns=found.aligns)

    @property
    def _observed_files(self) -> tuple[str, ...]:
        return self._net.file, *self._answerer.subnet.nets["onnx"].weights_files

    def _observed_session(self) -> Any:
        return self._pool.files["onnx"].plain_session(self._answerer.chain.manifest, self._observed_files)

    def _entropy_network(self) -> EntropyNetwork:
        from adaptive_runtime.weights.gradients import DifferentiableNetwork  # imports torch

        file = self._pool.bundle.verified(*self._observed_files)[0]
        return DifferentiableNetwork(file, self._net, self._pool.bundle.manifest.runs[self._pool.form].threads)

    def _adapted_session(self, statistics: NormStatistics) -> Any:
        net = self._answerer.subnet.nets["onnx"]
        constants = statistics.by_name(self._net.norms)
        return self._pool.files["onnx"].plain_session(self._answerer.chain.manifest, net.files, constants)

    def _anchor(self) -> LabelledSource:
        images = self._pool.bundle.source_images()
        assert images is not None, "a bundle with SubNets that adapt has them"
        x_ACHW = images.normalised(self._answerer.subnet.of_images)
        scale = self._answerer.scale
        return LabelledSource(x_ACHW if scale is None else scale(x_ACHW), images.labels)


def adaptable(pool: SubNetPool, digest: str) -> AdaptableNet:
    """The adaptable files of a SubNet. AdaptiveError: it cannot adapt."""
    where = f"SubNet {digest}"
    if pool.form != "onnx":
        raise AdaptiveError(where, f"adapts in onnxruntime alone, not in {pool.form}", next_step="load it as 'onnx'")
    net = pool.bundle.manifest.by_digest[digest].nets["onnx"]
    if net.adaptable is None:
        raise AdaptiveError(
            where,
            "has nothing to adapt by statistics",
            next_step="export SubNets with BatchNorm by export.adaptable=true",
        )
    return net.adaptable


def usual_features(source: AdaptationSource, net: AdaptableNet) -> UsualFeatures:
    """The usual features of each BatchNorm, split from one row with all of them."""
    own = [slice(2 * one.start, 2 * one.stop) for one in spans(net.norms)]
    means, deviations = (tuple(values[one] for one in own) for values in (source.usual_mean, source.usual_deviation))
    return UsualFeatures(means, deviations, source.directions)


def image_alignment(source: AdaptationSource) -> ImageAlignment | None:
    """The alignment to usual images; None: the bundle is of an earlier version without the usual values."""
    if source.usual_light is None or source.light_deviations is None:
        return None
    return ImageAlignment(source.usual_light, float(source.light_deviations))
