"""A deployed model: answers requests with one SubNet of a bundle, and changes to another between two requests.

[The run time](docs/runtime.md) shows its use.

Legend: N samples, C channels, H height, W width.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.closing import Closing
from adaptive_runtime.base.errors import AdaptiveError, NotBackError
from adaptive_runtime.bundle.bundles import BundledSubNet, BundleFormat
from adaptive_runtime.bundle.chains import text_of
from adaptive_runtime.model.adapting import Adaptation
from adaptive_runtime.model.answers import FollowingWeights, ModelAnswer, ModelState, decoder_of
from adaptive_runtime.model.estimate import FallbackRow, ServedRun
from adaptive_runtime.model.serving import Fallbacks, ServedVariants
from adaptive_runtime.model.variants import SubNetsOverDevices
from adaptive_runtime.policy import ChoiceLimits, RequestProgress
from adaptive_runtime.pool import Answerer, PlacedRuntime, SubNetPool, Variant, VariantError
from adaptive_runtime.samples.inputs import Vocabulary

NONE: frozenset[int] = frozenset()
Chooser = Callable[[ModelState], Variant | None]
"""Chooses the variant to serve before a request is answered; None: no change. One call at a time."""


class DeployedModel(Closing):
    """A bundle that answers. Several threads may call `infer` while another one calls `use`.

    serving: the first variant. chooser: asked before each request; may be set at any time. adaptation: decides if there is no
    chooser, and is informed of all requests. weights: adapts the serving SubNets to their images. taken_out: quarantined whole
    SubNets, each with one line of reason; the pool need not have them. placed: SubNets over several devices, closed with the
    model. `clock_ns`: clock for latencies; may be set, too. `taken`: the samples that `infer` takes.
    """

    def __init__(
        self,
        pool: SubNetPool,
        serving: Variant,
        chooser: Chooser | None = None,
        adaptation: Adaptation | None = None,
        weights: FollowingWeights | None = None,
        taken_out: Mapping[Variant, str] = MappingProxyType({}),
        placed: SubNetsOverDevices | None = None,
    ) -> None:
        self.pool, self.chooser, self.adaptation, self.weights = pool, chooser, adaptation, weights
        self.placed, self._fallbacks = placed, Fallbacks()
        self.clock_ns: Callable[[], int] = time.perf_counter_ns
        every = () if adaptation is None else adaptation.variants.variants
        self._rows = tuple(pool.answerer(variant) for variant in every)
        self._requests, self._running, self._stood_in = 0, 0, 0
        self._latency_ms: float | None = None
        self._counting, self._choosing = threading.Condition(), threading.Lock()
        self._closed = False
        self.taken = pool.bundle.manifest.subnets[0].taken
        is_images = self.taken.words is None and self.taken.inputs is None
        self._usual = (self.taken.dtype, self.taken.shape) if is_images else None
        self._vocabulary: Vocabulary | None = None
        self._decoder = decoder_of(pool.bundle.manifest.problem, pool.bundle.manifest.classes)
        self._served = ServedVariants(pool, serving, lambda: () if adaptation is None else adaptation.useful, taken_out)
        if adaptation is not None:
            adaptation.start()
        if weights is not None:
            weights.start(self._served.active.variant)

    def infer(
        self,
        samples: NDArray[Any] | Mapping[str, NDArray[Any]],
        budget_ms: float | None = None,
        subnet: str | None = None,
    ) -> ModelAnswer:
        """Answer samples (N, C, H, W), prepared as the manifest says; they are scaled here if a SubNet takes another size.

        Texts are numbers of words (N, T) int64, as `tokens` gives them; a SubNet of a smaller length takes the first ones.
        Several inputs are given as one array each by name, or all packed (`adaptive_runtime.samples.inputs`). budget_ms: of
        this request, if less than the limits' budget and the model adapts. subnet: digest of the SubNet that answers this
        request, whole, and is loaded for it; None: the serving one.
        AdaptiveError for another shape or type, a closed model, an unknown `subnet`, or if no working SubNet is left.
        """
        start_ns = self.clock_ns()
        x_NCHW = samples if isinstance(samples, np.ndarray) else self.taken.packed(samples)
        if (x_NCHW.dtype, x_NCHW.shape[1:]) != self._usual or not len(x_NCHW):
            self.taken.check(x_NCHW)
        with self._counting:
            if self._closed:
                raise AdaptiveError(str(self.pool.bundle.folder), "the model is closed", next_step="load it again")
            self._running += 1
        try:
            if subnet is None:
                answer = self._answer(x_NCHW, budget_ms, start_ns)
            else:
                answer = self._answer_by(subnet, x_NCHW, start_ns)
        finally:
            with self._counting:
                self._running -= 1
                self._counting.notify_all()
        with self._counting:
            self._requests += 1
            self._latency_ms = answer.latency_ms
        return answer

    def tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """The numbers of the words of texts (N, T), as `infer` takes them, also for one of several inputs.

        AdaptiveError if the bundle takes no texts.
        """
        text = text_of(self.pool.bundle.manifest.subnets[0].preparation)
        self._vocabulary = self._vocabulary or self.pool.bundle.vocabulary()
        if self._vocabulary is None or text is None:
            raise AdaptiveError(str(self.pool.bundle.folder), "takes images, not texts")
        return self._vocabulary.tokens(texts, text.length)

    def use(
        self,
        digest: str,
        exit: str | None = None,
        *,
        early: bool = False,
        format: BundleFormat | None = None,
        placed: bool = False,
        wait: bool = True,
    ) -> None:
        """Let a SubNet serve: whole, up to an exit of its chain, or `early`, by thresholds. At once if it is warm.

        Otherwise it is loaded beside the serving one. format: of its files; None: its first format here. placed: over several
        devices. wait: until it serves, or another is wanted. AdaptiveError if the SubNet, exit, format or placement does not
        exist, or the SubNet is quarantined.
        """
        self._served.use(self.pool.answerer(Variant(digest, exit, early, format, placed)), wait=wait)

    @property
    def state(self) -> ModelState:
        """The serving variant, warm variants, quarantined SubNets, and counts."""
        served = self._served
        active, standby = served.active, served.standby
        budget_ms = None if self.adaptation is None else self.adaptation.limits.budget_ms
        return ModelState(
            serving=active.variant,
            standby=None if standby is None else standby.variant,
            warm=self.pool.warm_variants,
            taken_out={variant.files: line for variant, line in list(served.taken_out.items())},
            requests=self._requests,
            stood_in=self._stood_in,
            switches=served.switches,
            latency_ms=self._latency_ms,
            used_mib=served.used_mib,
            budget_mib=self.pool.budget_mib,
            budget_ms=budget_ms if budget_ms is not None and math.isfinite(budget_ms) else None,
            format=active.form,
            adapting=None if self.adaptation is None else self.adaptation.state,
            weights=None if self.weights is None else self.weights.state,
        )

    @property
    def limits(self) -> ChoiceLimits:
        """Limits within which the model adapts. AdaptiveError if it does not adapt."""
        return self._adapting().limits

    def set_limits(self, **changes: float | None) -> None:
        """Set other limits from the next request on, by the names of `ChoiceLimits`: `set_limits(budget_ms=3.0)`.

        AdaptiveError for an impossible limit, or if the model does not adapt.
        """
        self._adapting().set_limits(**changes)

    @property
    def subnets(self) -> tuple[BundledSubNet, ...]:
        """The SubNets that can serve, with all their data from the bundle."""
        out, pool = self._served.taken_out, self.pool
        return tuple(one for one in pool.bundle.manifest.subnets if not out.keys() >= {*pool.whole_of(one)})

    @property
    def taken_out(self) -> Mapping[Variant, str]:
        """Quarantined whole SubNets, each with one line of reason."""
        return dict(self._served.taken_out)

    def take_over(self, before: "DeployedModel") -> None:
        """Continue the counts and the record of decisions of another model, which answers no more requests.

        SubNets that are quarantined there are quarantined here, too.
        """
        self._requests = before._requests
        self._served.take_over(before._served)
        if self.adaptation is not None and before.adaptation is not None:
            self.adaptation.take_over(before.adaptation)

    def load_ahead(self) -> None:
        """Prepare further variants in the background, as far as memory allows; call it again after memory was freed."""
        self._served.load_ahead()

    def close(self) -> None:
        """Free all SubNets after running requests have ended. If ending one component fails, the others are still ended."""

        def wait_for_requests() -> None:
            with self._counting:
                self._counting.wait_for(lambda: not self._running)

        with self._counting:
            self._closed = True
        with ExitStack() as stack:  # an ExitStack ends the last one first
            stack.callback(self.pool.close)
            stack.callback(self._fallbacks.close)
            if self.placed is not None:
                stack.callback(self.placed.close)
            if self.weights is not None:
                stack.callback(self.weights.stop)
            if self.adaptation is not None:
                stack.callback(self.adaptation.stop)
            stack.callback(wait_for_requests)
            stack.callback(self._served.stop)

    def _answer(self, x_NCHW: NDArray[np.float32], budget_ms: float | None, start_ns: int) -> ModelAnswer:
        size = self._run_size(len(x_NCHW))
        starts, parts, served = range(0, len(x_NCHW), size), list[ModelAnswer](), list[ServedRun]()
        request = RequestProgress(len(starts), len(starts), budget_ms=budget_ms)
        for start in starts:
            active, effective_ms = self._chosen(request)
            before_ms = (self.clock_ns() - start_ns) / 1e6 - request.spent_ms
            left_ms = self._left_ms(request, before_ms)
            parts.append(self._run(active, x_NCHW[start : start + size], served, left_ms))
            request = request.after(effective_ms, (self.clock_ns() - start_ns) / 1e6)
        if self.adaptation is not None:
            self.adaptation.served(served, request)
        latency_ms = (self.clock_ns() - start_ns) / 1e6
        return parts[0]._replace(latency_ms=latency_ms) if len(parts) == 1 else ModelAnswer.of(parts, latency_ms)

    def _answer_by(self, subnet: str, x_NCHW: NDArray[np.float32], start_ns: int) -> ModelAnswer:
        """The answer of one SubNet alone, in the first format in which it works.

        AdaptiveError if the bundle lacks it, or if it is quarantined in all formats.
        """
        first, served = self.pool.answerer(Variant(subnet)), list[ServedRun]()
        answerer = self._working(self.pool.whole_of(first.subnet)) or first
        self._served.refuse(answerer)
        try:
            answer = self._run_once(answerer, x_NCHW, served, None)
        except VariantError as error:
            self._served.replace(answerer, error)
            return self._answer_by(subnet, x_NCHW, start_ns)
        if self.adaptation is not None:
            self.adaptation.served(served)
        return answer._replace(latency_ms=(self.clock_ns() - start_ns) / 1e6)

    def _run_size(self, samples: int) -> int:
        """The number of samples that run together before the model adapts again: a batch of the runtime, or all."""
        adapts = self.adaptation is not None and self.chooser is None
        return (self._served.active.chain.runtime.batch if adapts else None) or samples

    def _left_ms(self, request: RequestProgress, before_ms: float) -> float | None:
        """The budget left for the next run, minus the time to decide it; None: no budget."""
        if self.adaptation is None:
            return None
        return max(0.0, request.limits(self.adaptation.limits).budget_ms - before_ms)

    def _run(
        self, active: Answerer, x_NCHW: NDArray[np.float32], served: list[ServedRun], within_ms: float | None
    ) -> ModelAnswer:
        """Answers of one variant, or of its replacement if it fails; runs of loaded variants are appended to `served`."""
        while True:
            if active.variant.placed and not np.isfinite(x_NCHW).all():  # no other device takes such values
                active = self._on_coordinator(active)
            try:
                return self._run_once(active, x_NCHW, served, within_ms)
            except VariantError as error:
                self._served.replace(active, error)
                active = self._served.active

    def _on_coordinator(self, placed: Answerer) -> Answerer:
        """The same SubNet on this device; another one if that is quarantined. AdaptiveError if none is left."""
        working = self._working((Variant(placed.variant.digest), *self.pool.whole_variants))
        if working is None:
            raise AdaptiveError(
                "input", "has NaN or infinite values, and no SubNet works on the coordinator", allowed="finite ones"
            )
        return working

    def _working(self, variants: Sequence[Variant]) -> Answerer | None:
        """The first of these that is not quarantined."""
        found = next((one for one in variants if one not in self._served.taken_out), None)
        return None if found is None else self.pool.answerer(found)

    def _run_once(
        self, active: Answerer, x_NCHW: NDArray[np.float32], served: list[ServedRun], within_ms: float | None
    ) -> ModelAnswer:
        """Answers of one variant. within_ms: time limit over several devices; a fallback begins in time. VariantError."""
        start_ns = self.clock_ns()
        if active.over is None:
            return self._run_by(active, x_NCHW, served, None, start_ns)
        fallback = None if within_ms is None else self._fallback()
        over = active.over(within_ms, len(x_NCHW), None if fallback is None else fallback.takes_ms)
        try:
            return self._run_by(active, x_NCHW, served, over, start_ns)
        except NotBackError:
            assert fallback is not None, "runs wait where there is none"
        runs = list[ServedRun]()
        try:
            run_by = partial(self._run_by, self._rows[fallback.row], x_NCHW, runs, None, self.clock_ns())
            answer = self._fallbacks.beside(over.away, over.until_s, run_by)
        except VariantError as error:
            self._served.replace(self._rows[fallback.row], error)
            answer = None
        if answer is None:
            return self._run_by(active, x_NCHW, served, over, start_ns)
        over.leave()
        served += [*runs, ServedRun(active.variant, answer.exits, (self.clock_ns() - start_ns) / 1e6, away=True)]
        with self._counting:
            self._stood_in += 1
        return answer

    def _fallback(self) -> FallbackRow | None:
        """The fallback that can answer at once on this device when other devices are late."""
        found = None if self.adaptation is None or self.chooser is not None else self.adaptation.fallback()
        return found if found is not None and self._rows[found.row].is_warm else None

    def _run_by(
        self,
        active: Answerer,
        x_NCHW: NDArray[np.float32],
        served: list[ServedRun],
        over: PlacedRuntime | None,
        start_ns: int,
    ) -> ModelAnswer:
        """Answers of one variant; their time counts from `start_ns`. VariantError, NotBackError."""
        is_loaded = active.is_loaded
        found = active.answer(x_NCHW, over) if self._decoder is None else active.outputs(x_NCHW, over)
        run_ms = (self.clock_ns() - start_ns) / 1e6
        if self.weights is not None:
            self.weights.served(active.variant, x_NCHW)
        names = active.chain.exits
        places = [len(names) - 1] * len(x_NCHW) if isinstance(found, np.ndarray) else found.exits.tolist()
        exits = tuple(names[place] for place in places)
        if is_loaded:
            runs = -(-len(x_NCHW) // (active.chain.runtime.batch or len(x_NCHW)))
            served.append(ServedRun(active.variant, exits, run_ms / runs))
        subnets, forms = (active.variant.digest,) * len(x_NCHW), (active.form,) * len(x_NCHW)
        devices = () if over is None else over.devices
        if not isinstance(found, np.ndarray):
            return ModelAnswer(found.answers, found.logits, subnets, exits, found.confidences, run_ms, forms, devices)
        assert self._decoder is not None, "raw outputs are decoded"
        *_, height, width = (0, 0, *self.taken.shape)
        decoded = self._decoder(found, active.subnet, active.subnet.nets[active.form], (height, width))
        return decoded.answer(found, subnets, exits, run_ms, forms)._replace(devices=devices)

    def _adapting(self) -> Adaptation:
        if self.adaptation is None:
            where = str(self.pool.bundle.folder)
            raise AdaptiveError(where, "the model does not adapt", next_step="load it with adapts=True")
        return self.adaptation

    def _chosen(self, request: RequestProgress) -> tuple[Answerer, float]:
        """The variant for the next run of a request, and the most time that the run should take [ms]; 0: unknown.

        The chooser decides, else the adaptation; if there is neither, or another thread is choosing, nothing changes.
        """
        if (self.chooser is None and self.adaptation is None) or not self._choosing.acquire(blocking=False):
            return self._served.active, 0.0
        try:
            if self.chooser is not None:
                return self._asked(self.chooser), 0.0
            assert self.adaptation is not None, "one of them decides"
            return self._adapted(self.adaptation, request)
        finally:
            self._choosing.release()

    def _asked(self, chooser: Chooser) -> Answerer:
        """The serving variant after the chooser was asked for a change."""
        served, chosen = self._served, chooser(self.state)
        wanted = None if chosen is None else self.pool.answerer(chosen)
        is_new = wanted is not None and wanted not in (served.active, served.standby)
        if wanted is not None and is_new and wanted.variant.whole not in served.taken_out:
            served.use(wanted, wait=False)
        return served.active

    def _adapted(self, adaptation: Adaptation, request: RequestProgress) -> tuple[Answerer, float]:
        rows, served, out = self._rows, self._served, self._served.taken_out
        without = frozenset(row for row, one in enumerate(rows) if one.variant.whole in out) if out else NONE
        if len(without) == len(rows):
            return served.active, 0.0
        cold = frozenset(row for row, one in enumerate(rows) if not one.is_warm)
        if request.left == request.runs:
            decision = adaptation.choose(cold, without, request.with_usual_budget)
            if self.weights is not None:
                self.weights.let(adapt=decision.adapts_weights)
            meanwhile = None if decision.meanwhile is None else rows[decision.meanwhile]
            if rows[decision.variant] is not served.active or served.standby is not None:
                served.go_towards(rows[decision.variant], meanwhile)
            limits = adaptation.limits
            in_time = meanwhile is None and decision.effective_ms <= request.limits(limits).budget_ms
            if in_time or not request.has_less(limits.budget_ms):
                return served.active, decision.effective_ms
        decision = adaptation.choose(cold, without, request)
        return (rows[decision.variant] if decision.step == "hurry" else served.active), decision.effective_ms
