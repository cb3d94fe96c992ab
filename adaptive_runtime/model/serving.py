"""The serving variant of a bundle, the variant that is loaded to serve next, and the quarantined SubNets.

A fallback on the coordinator beside a run over several devices, whose answer counts if it comes in time.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, TypeVar

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.pool import Answerer, SubNetPool, Variant, VariantError, failure
from adaptive_runtime.pool.variants import PoolPart

LOG = logging.getLogger("adaptive_runtime")


class ServedVariants:
    """The serving variant is read before each request and changed by one assignment; a thread loads the next one.

    useful: variants worth loading ahead, the most useful first. active: the serving variant. standby: the next one. taken_out:
    quarantined whole SubNets, each with one line of reason; the pool need not have the given ones.
    """

    def __init__(
        self,
        pool: SubNetPool,
        first: Variant,
        useful: Callable[[], Sequence[Variant]],
        taken_out: Mapping[Variant, str],
    ) -> None:
        self.pool = pool
        self.taken_out: dict[Variant, str] = {}
        self.standby: Answerer | None = None
        self.switches = 0
        self.used_mib = 0.0
        self._useful = useful
        self._changed = threading.Condition(threading.RLock())
        self._closed, self._warned_waiting = False, False
        self._take_out_all(taken_out)
        self.active = pool.answerer(first)
        pool.serving = self._parts_in_use
        self._start()
        self._looks_ahead = True
        self._worker = threading.Thread(target=self._work, name="adaptive-runtime-pool", daemon=True)
        self._worker.start()

    def use(self, answerer: Answerer, *, wait: bool) -> None:
        """Let a variant serve, at once if it is warm, otherwise when it is loaded. AdaptiveError if it is quarantined.

        wait: until it serves, or another is wanted.
        """
        with self._changed:
            self.refuse(answerer)
            if self._go_over(answerer):
                return
            self.standby = answerer
            self._changed.notify_all()
            if wait:
                self._changed.wait_for(lambda: self._closed or self.standby is not answerer)
                self.refuse(answerer)

    def go_towards(self, wanted: Answerer, meanwhile: Answerer | None) -> None:
        """Let a variant serve; if it has to be loaded first, another one serves meanwhile."""
        with self._changed:
            if wanted.variant.whole in self.taken_out or self._go_over(wanted) or self.standby is wanted:
                return
            if meanwhile is not None and meanwhile.is_warm and meanwhile is not self.active:
                self.active = meanwhile
                self.switches += 1
            self.standby = wanted
            self._changed.notify_all()

    def refuse(self, answerer: Answerer) -> None:
        """Raise AdaptiveError if the variant is quarantined."""
        if (line := self.taken_out.get(answerer.variant.whole)) is not None:
            raise AdaptiveError(f"SubNet {answerer.variant.files}", f"was taken out: {line}")

    def replace(self, failed: Answerer, error: Exception) -> None:
        """Quarantine a SubNet that failed while it served, and let another one serve. AdaptiveError if none is left."""
        with self._changed:
            self._take_out(failed, error)
            if self.active is not failed:  # another thread has replaced it, or it was chosen for one run only
                return
            for answerer in self._others(failed):
                try:
                    if not answerer.is_warm:
                        self.pool.warm(answerer)
                except VariantError as again:
                    self._take_out(answerer, again)
                    continue
                self.active = answerer
                self.switches += 1
                return
            line = f"no SubNet works; the last one: {failure(error)}"
            raise AdaptiveError(str(self.pool.bundle.folder), line, next_step="export the bundle again") from error

    def take_over(self, before: "ServedVariants") -> None:
        """Continue the counts of another instance, which serves no more. Its quarantined SubNets are quarantined here, too."""
        self.switches = before.switches
        for variant, line in dict(before.taken_out).items():
            if variant not in self.taken_out:
                with suppress(AdaptiveError):  # unknown here, or the last one: the next request reports it
                    self.replace(self.pool.answerer(variant), VariantError(line))

    def load_ahead(self) -> None:
        """Prepare further variants in the background, as far as memory allows; call it again after memory was freed."""
        with self._changed:
            self._looks_ahead = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Load nothing any more; callers that wait for a variant continue."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._worker.join()

    def _take_out_all(self, lines: Mapping[Variant, str]) -> None:
        for variant, line in lines.items():
            with suppress(AdaptiveError):
                self._take_out(self.pool.answerer(variant), VariantError(line))

    def _start(self) -> None:
        """Load the first variant; if it fails or is quarantined, another SubNet."""
        line = self.taken_out.get(self.active.variant.whole)
        try:
            if line is not None:
                raise VariantError(line)
            self.pool.warm(self.active)
        except VariantError as error:
            self.replace(self.active, error)
        self.used_mib = self.pool.used_mib

    def _go_over(self, answerer: Answerer) -> bool:
        """Let a variant serve if it is warm: one assignment, which the next request reads."""
        if not answerer.is_warm:
            return False
        if answerer is not self.active:
            self.active = answerer
            self.switches += 1
        self.standby = None
        return True

    def _parts_in_use(self) -> set[PoolPart]:
        standby = self.standby
        return {*self.active.parts, *(() if standby is None else standby.parts)}

    def _take_out(self, answerer: Answerer, error: Exception) -> None:
        self.pool.free(answerer)
        if answerer.variant.whole in self.taken_out:
            return
        line = failure(error)
        self.taken_out[answerer.variant.whole] = line
        LOG.warning("SubNet %s is taken out: %s", answerer.variant.files, line)

    def _others(self, failed: Answerer) -> list[Answerer]:
        """Whole SubNets in the order in which they replace a failed variant.

        Warm ones come first. Within warm ones and within the others, those that are no slower come first, by accuracy.
        """
        most_ms = failed.figures.latency_ms

        def order(one: Answerer) -> tuple[bool, bool, float, float]:
            known = one.figures
            slower = known.latency_ms > most_ms
            return not one.is_warm, slower, -known.first_accuracy if not slower else 0.0, known.latency_ms

        return sorted(self._working(), key=order)

    def _working(self) -> list[Answerer]:
        """Whole SubNets in the formats that are not quarantined."""
        return [self.pool.answerer(one) for one in self.pool.whole_variants if one not in self.taken_out]

    def _make_way(self, wanted: Answerer) -> None:
        """Let a small SubNet serve that fits beside each of standby and serving variant, if the budget cannot hold both.

        If none fits, requests wait for the standby.
        """
        serving = self.active
        if self.pool.holds(serving, wanted):
            return
        for bridge in sorted(self._working(), key=lambda one: one.need_mib):
            if bridge not in (serving, wanted) and self.pool.holds(serving, bridge) and self.pool.holds(bridge, wanted):
                self.pool.prepare(bridge)
                self.pool.warm(bridge)
                self._go_over_from(serving, wanted, bridge)
                return
        self._go_over_from(serving, wanted, wanted)
        if not self._warned_waiting:
            self._warned_waiting = True
            LOG.warning("%g MiB do not hold two SubNets: requests wait while one is loaded", self.pool.budget_mib)

    def _go_over_from(self, serving: Answerer, wanted: Answerer, now: Answerer) -> None:
        """Let `now` serve, unless another variant serves or is wanted meanwhile."""
        with self._changed:
            if self.active is serving and self.standby is wanted:
                self.active = now
                self.switches += 1

    def _work(self) -> None:
        """Load standbys, and in between prepare variants ahead, until stopped."""
        ahead = list[tuple[Answerer, bool]]()
        while True:
            with self._changed:
                while not (ahead or self._closed or self._looks_ahead or self.standby is not None):
                    self._changed.wait()
                if self._closed:
                    return
                wanted, looks_ahead, self._looks_ahead = self.standby, self._looks_ahead, False
            if looks_ahead:
                ahead = self._useful_ahead()
            if wanted is not None:
                self._bring(wanted)
            elif ahead:
                answerer, loads = ahead.pop()
                self._prepare(answerer, loads)

    def _useful_ahead(self) -> list[tuple[Answerer, bool]]:
        """The variants to prepare, with whether to load them, too; the last one first."""
        prepared = [(self.pool.answerer(variant), False) for variant in self.pool.variants()]
        return prepared + [(self.pool.answerer(variant), True) for variant in reversed(self._useful())]

    def _prepare(self, answerer: Answerer, loads: bool) -> None:
        """Prepare the files of a variant, and load it as far as memory allows."""
        try:
            self.pool.prepare(answerer)
            if loads and answerer.variant.whole not in self.taken_out:
                self.pool.warm_ahead(answerer)
                self.used_mib = self.pool.used_mib
        except VariantError as error:
            if not answerer.is_warm:  # a loaded variant continues without its file
                with self._changed:
                    self._take_out(answerer, error)

    def _bring(self, wanted: Answerer) -> None:
        """Load a standby and let it serve, unless another one is wanted meanwhile."""
        try:
            self.pool.prepare(wanted)
            self._make_way(wanted)
            self.pool.warm(wanted)
        except VariantError as error:
            with self._changed:
                self._take_out(wanted, error)
                self.standby = None if self.standby is wanted else self.standby
                self._changed.notify_all()
            return  # if it serves, the next request finds another one
        with self._changed:
            if self.standby is wanted and not self._go_over(wanted):
                return  # freed meanwhile: it is loaded again
        self.pool.keep_within_budget()
        self.used_mib = self.pool.used_mib
        with self._changed:
            self._changed.notify_all()
        try:
            self.pool.warm_ahead(wanted)
        except VariantError as error:
            self.replace(wanted, error)


Answer = TypeVar("Answer")


class Fallbacks:
    """Runs fallbacks in its own threads, which idle otherwise. Several threads may call it. Close it after use."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(thread_name_prefix="fallback")

    def beside(self, away: Future[Any], until_s: float, fallback: Callable[[], Answer]) -> Answer | None:
        """The answer of a fallback; None: the answer over devices came in time, and the fallback's result is discarded.

        away: the future answer over devices. until_s: of `time.monotonic`; the fallback's answer is held back until then.
        Raises the fallback's error if it failed and `away` is not done.
        """
        own: Future[Any] = self._threads.submit(fallback)
        wait((own, away), return_when=FIRST_COMPLETED)
        wait((away,), max(0.0, until_s - time.monotonic()))
        if away.done():
            return None
        found: Answer = own.result()
        return found

    def close(self) -> None:
        """Wait for the running fallbacks."""
        self._threads.shutdown()
