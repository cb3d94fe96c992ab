"""Adaptation of a SubNet's weights while it serves, in a separate thread, so that requests do not wait for it.

The adaptation methods have extra dependencies (`EXTRA`).

Legend: N samples, B of them in the SubNet's size, C channels, H height, W width, K classes, D statistics of an image.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.weight_options import (
    SubnetWeights,
    WeightEvent,
    WeightEventKind,
    WeightOptions,
    WeightsState,
)
from adaptive_runtime.bundle.bundles import AdaptableNet, AdaptationSource
from adaptive_runtime.bundle.chains import ExitChain, OnnxChain
from adaptive_runtime.pool import SubNetPool, Variant, VariantError, failure
from adaptive_runtime.weights.aligning import AlignedSession, AlignedView, ImageAlignment
from adaptive_runtime.weights.guard import DriftGuard, GuardEvent
from adaptive_runtime.weights.statistics import (
    Array,
    EntropyNetwork,
    LearnedScales,
    NormStatistics,
    ObservedNetwork,
    UsualFeatures,
    spans,
)
from adaptive_runtime.weights.weights import AdaptedFiles, KeptWeights, LabelledSource, StatisticsWeights

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
        return SubnetWeights(
            adapted=self.is_adapted,
            aligned=self.is_aligned,
            drifting=self.guard.drifting,
            images=self.guard.images,
            steps=self.weights.steps,
            look_ms=self._look_ms,
            renewed_ms=self._renewed_ms,
        )

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


EXTRA = "autotailor_runtime-VERSION-py3-none-any.whl[adapt]"


def load_method(options: WeightOptions) -> WeightOptions:
    """The options, after importing the dependencies of their method.

    The import takes seconds and memory and blocks other threads, so it happens before the first request is answered.
    AdaptiveError: a dependency is not installed.
    """
    if options.method != "statistics":
        try:
            from adaptive_runtime.weights import gradients  # noqa: F401
        except ImportError as error:
            where, got = f"weights '{options.method}'", f"gradients need torch and onnx ({error})"
            raise AdaptiveError(where, got, next_step=f"pip install '{EXTRA}', or adapt by 'statistics'") from error
    return options


MOST_EVENTS = 100


class WeightAdaptation:
    """Observes served images and adapts the SubNet that served them.

    Only whole SubNets adapt, not chains that end early. AdaptiveError: no SubNet of the pool can adapt, or the state folder
    cannot be made.
    """

    def __init__(self, pool: SubNetPool, options: WeightOptions) -> None:
        self._pool, self.options = pool, options
        self._needed = _images_at_once(pool)
        self._files = None if options.state is None else AdaptedFiles(options.state)
        self._subnets: dict[str, AdaptedSubnet] = {}
        self._failed: set[str] = set()
        self._events: deque[WeightEvent] = deque(maxlen=MOST_EVENTS)
        self._waiting: deque[Array] = deque()
        self._serving: str | None = None
        self._count, self._left_out, self._busy, self._closed = 0, 0, False, False
        self._may_adapt, self._is_ending = True, False
        self._changed = threading.Condition()
        self._worker = threading.Thread(target=self._work, name="adaptive-runtime-weights", daemon=True)

    def start(self, serving: Variant) -> None:
        """Observe images from now on; load the saved adaptation of `serving` first."""
        self._serving = serving.digest if serving.digest in self._needed else None
        self._busy = self._serving is not None
        self._worker.start()

    def stop(self) -> None:
        """Stop observing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._worker.join()

    def let(self, *, adapt: bool) -> None:
        """Allow or forbid adaptation from now on. If forbidden, no images are observed, and the source's weights serve.

        The memory for observing is freed and side files are removed. When adaptation is allowed again, it starts from the
        source's weights.
        """
        if adapt == self._may_adapt:
            return
        with self._changed:
            self._may_adapt = adapt
            self._is_ending |= not adapt
            self._waiting.clear()
            self._count = 0
            self._changed.notify_all()

    def served(self, variant: Variant, x_NCHW: Array) -> None:
        """Take over samples that a variant has answered, in the bundle's size. Takes as long as copying them."""
        digest, is_whole = variant.digest, variant == variant.whole and not variant.placed
        if not is_whole or digest not in self._needed or digest in self._failed:
            return
        with self._changed:
            if not self._may_adapt:
                return
            if digest != self._serving:
                self._serving, self._count = digest, 0
                self._waiting.clear()
            if self._count + len(x_NCHW) > max(self.options.waiting_images, self._needed[digest]):
                self._left_out += len(x_NCHW)
                return
            self._waiting.append(x_NCHW.copy())  # its owner may write there again
            self._count += len(x_NCHW)
            if self._is_due:
                self._changed.notify_all()

    def wait(self) -> None:
        """Wait until all images were processed, except a rest too small for a batch."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not (self._busy or self._is_due or self._is_ending))

    @property
    def state(self) -> WeightsState:
        """The current state."""
        subnets = {digest: one.state for digest, one in list(self._subnets.items())}
        return WeightsState(subnets, self._left_out, tuple(self._events))

    @property
    def _is_due(self) -> bool:
        """Whether enough images wait for a batch."""
        return self._serving is not None and self._count >= self._needed[self._serving]

    def _work(self) -> None:
        if self._serving is not None:
            self._look(self._serving, [])
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or self._is_due or self._is_ending)
                if self._closed:
                    return
                self._busy, ends, self._is_ending = True, self._is_ending, False
                digest, found = self._serving or "", list(self._waiting)
                self._waiting.clear()
                self._count = 0
            if ends:
                self._end()
            else:
                self._look(digest, found)

    def _end(self) -> None:
        """Let all SubNets serve with the source's weights, free the observers, and forget earlier adaptation."""
        for digest, subnet in list(self._subnets.items()):
            images = subnet.guard.images
            self._give_up(subnet)
            del self._subnets[digest]
            self._tell(digest, "off", images, "a rule lets no weights adapt now; the bundle's serve")
        if self._files is not None:
            for digest in self._needed:
                self._files.remove(digest)

    def _look(self, digest: str, parts: list[Array]) -> None:
        """Let a SubNet process images; if that fails, it serves with the source's weights from then on."""
        if digest in self._failed:
            return
        try:
            _guarded(partial(self._pool.answerer(Variant(digest)).work, self._observe, digest, parts))
        except VariantError as error:
            self._failed.add(digest)
            self._tell(digest, "failed", 0, str(error))
            if (subnet := self._subnets.pop(digest, None)) is not None:
                self._give_up(subnet)

    def _give_up(self, subnet: AdaptedSubnet) -> None:
        """Return a SubNet to the source's weights, if possible, and free its observers."""
        subnet.release()
        try:
            _guarded(subnet.serve_source)
        except VariantError as error:
            self._tell(subnet.digest, "failed", 0, str(error))

    def _observe(self, digest: str, parts: list[Array]) -> None:
        if digest not in self._subnets:
            for other in self._subnets.values():
                other.release()
            self._subnets[digest] = AdaptedSubnet(self._pool, digest, self.options, self._files)
        subnet, size = self._subnets[digest], self._needed[digest]
        if not parts:
            return
        x_NCHW = np.concatenate(parts)
        for start in range(0, len(x_NCHW), size):
            for event in subnet.observe(x_NCHW[start : start + size]):
                self._tell(digest, event.kind, event.image, event.reason)

    def _tell(self, digest: str, kind: WeightEventKind, image: int, reason: str) -> None:
        self._events.append(WeightEvent(time.monotonic(), digest, kind, image, reason))
        LOG.warning("weights of SubNet %s after %d images: %s: %s", digest, image, kind, reason)


def _images_at_once(pool: SubNetPool) -> dict[str, int]:
    """Batch size by digest, for SubNets that can adapt. AdaptiveError: none can."""
    found, first = dict[str, int](), AdaptiveError("weights", "the bundle has no SubNets")
    for one in pool.bundle.manifest.subnets:
        try:
            found[one.digest] = adaptable(pool, one.digest).images
        except AdaptiveError as error:
            first = error
    if not found:
        raise first
    return found


def _guarded(look: Callable[[], None]) -> None:
    try:
        look()
    except Exception as error:  # runtimes raise many kinds, none of them ours
        raise VariantError(failure(error)) from error
