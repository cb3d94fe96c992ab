"""Adaptation of a deployed model: observes requests and the device's load, and decides which variant should serve.

[The run time](docs/runtime.md#adapting) shows how it is used.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_runtime.model.answers import AdaptingState
from adaptive_runtime.model.estimate import FallbackRow, LoadEstimate, Margins, ServedRun, WaitedFor, rules_context
from adaptive_runtime.model.options import AdaptingOptions, checked_limits
from adaptive_runtime.model.variants import BundleVariants, SubNetsOverDevices
from adaptive_runtime.policy import (
    ByRules,
    ChoiceLimits,
    ChoicePolicy,
    ChoiceRules,
    ChoiceState,
    Decision,
    DecisionInputs,
    DecisionLog,
    DeviceContext,
    LoadFactors,
    MostAccurate,
    Objective,
    RequestProgress,
    VariantLookUp,
    choose,
)
from adaptive_runtime.pool import Variant
from adaptive_runtime.state.forecast import Forecaster

if TYPE_CHECKING:
    from adaptive_runtime.state.sensing import SensedState


NONE: frozenset[int] = frozenset()
ONE_RUN = RequestProgress()
STANDS_IN = 0.9
"""The fallback starts early enough to be in time with this probability.

Other devices are late far more seldom than not.
"""
AFTERWARDS_S = 0.01
"""Time between a run and learning from it, in which its answer leaves."""
MOST_WAITING = 8


class Afterwards:
    """Work in order, a short time after it has come, in a thread between `start` and `stop`; before, if it is needed."""

    def __init__(self) -> None:
        self._work: deque[Callable[[], None]] = deque()
        self._working, self._news, self._stopped = threading.Lock(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep_working, name="learning", daemon=True)
        self.start = self._thread.start

    def add(self, work: Callable[..., None], *given: Any) -> None:
        """Add work for later."""
        self._work.append(partial(work, *given))
        self._news.set()

    def settle(self, most: int = 0) -> None:
        """Do all work so far now, if more than `most` waits."""
        if most and len(self._work) <= most:
            return
        with self._working:
            for _ in range(len(self._work)):
                self._work.popleft()()

    def stop(self) -> None:
        """Do all work, and end the thread."""
        self._stopped.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()
        self.settle()

    def _keep_working(self) -> None:
        while not self._stopped.is_set():
            self._news.wait()
            self._news.clear()
            self._stopped.wait(AFTERWARDS_S)
            self.settle()


class Adaptation:
    """Choice of the variant of a bundle that should serve. Several threads may call it.

    `served` and `sensed` report events; `choose` decides by all that was reported before. A thread learns from served requests,
    and appends to the record, after their answers, unless the next request comes sooner. variants: in the
    order of the rows of `variants.table`. rules: None: the most accurate variant within the limits is best. running: the
    variant that already runs. placed: SubNets over several devices, which are rows, too. policy: a pure function, so the record
    of decisions can be replayed with it.
    """

    def __init__(
        self,
        variants: BundleVariants,
        limits: ChoiceLimits,
        options: AdaptingOptions,
        clock: Callable[[], float] = time.monotonic,
        running: Variant | None = None,
        placed: SubNetsOverDevices | None = None,
    ) -> None:
        from adaptive_runtime.state.sensing import (  # psutil is needed by models that adapt alone
            Sensing,
            device_sensors,
        )

        self.variants, self._clock = variants, clock
        self.look_up = VariantLookUp(variants.table)
        rules = options.read_rules
        self.rules, self.policy = rules, _policy(rules, self.look_up, options.policy)
        sensors, every_s = device_sensors(options.sensors_root), options.every_s
        self.sensing = Sensing(sensors, every_s=every_s, hit_rate=options.hit_rate, tell=self.sensed)
        self._row_of = {variant: row for row, variant in enumerate(variants.variants)}
        latency_ms = variants.table.latency_ms
        on_coordinator = (row for row, one in enumerate(variants.variants) if not one.placed)
        self._coordinator_rows = sorted(on_coordinator, key=latency_ms.__getitem__)
        self._over_devices = frozenset(range(len(variants.table))).difference(self._coordinator_rows)
        coordinator = variants.coordinator_of
        digests = {row: variants.variants[row].digest for row in coordinator}
        self._placed = None if placed is None else placed.rows(variants.table, digests, coordinator)
        self._estimate, self._forecaster = LoadEstimate(variants.table), Forecaster()
        self._state = ChoiceState(running=None if running is None else self._row_of.get(running))
        self._decision: Decision | None = None
        self._device: SensedState | None = None
        self._load: float | None = None
        self._context: DeviceContext | None = None
        self._lag, self._has_served, self._late = 0.0, False, False
        self._unable = NONE, NONE
        self._lock = threading.Lock()
        self.look_up.extra_limits(limits)
        self._limits = self._limits_with_margin = limits
        self._margins, self._afterwards = Margins(), Afterwards()
        self._factors = self._estimate.factors(clock(), None, limits.quantile)
        file, most_mib = options.decisions, options.decisions_mib
        text = None if rules is None else rules.text
        self._record = None if file is None else DecisionLog(Path(file), variants.table, self._state, text, most_mib)

    @property
    def limits(self) -> ChoiceLimits:
        """The limits of the next decision."""
        return self._limits

    def set_limits(self, **changes: float | None) -> None:
        """Change limits, by the names of `ChoiceLimits`, from the next decision on. AdaptiveError: an invalid limit."""
        self._afterwards.settle()
        with self._lock:  # another thread may change another limit
            limits = checked_limits({**self._limits.model_dump(), **changes})
            self.look_up.extra_limits(limits)
            self._limits = limits
            self._renew(self._clock())

    @property
    def first(self) -> Variant:
        """The variant that should serve before anything is known."""
        inputs = self._inputs()
        if self.rules is not None:
            return self.variants.variants[self.policy(ChoiceState(), inputs).variant]
        return self.variants.variants[self.look_up.under(self._limits, inputs.factors, inputs.without).variant]

    @property
    def useful(self) -> tuple[Variant, ...]:
        """Variants on the coordinator that can be an answer, the fastest first."""
        rows = sorted(self.look_up.kept_rows, key=self.variants.table.latency_ms.__getitem__)
        return tuple(one for row in rows if not (one := self.variants.variants[row]).placed)

    def choose(
        self, cold: frozenset[int] = NONE, without: frozenset[int] = NONE, request: RequestProgress = ONE_RUN
    ) -> Decision:
        """The row that should serve the next run of a request. cold: rows that are not loaded.

        without: rows that do not work.
        """
        self._afterwards.settle()
        with self._lock:
            inputs = self._inputs(cold, without, request)
            self._decision = self.policy(self._state, inputs)
            self._state = self._decision.after
            self._unable = cold, without
            self._late &= inputs.for_run
            if self._record is not None:
                self._afterwards.add(self._record.append, inputs, self._decision)
            return self._decision

    def fallback(self) -> FallbackRow | None:
        """The fallback on the coordinator: the fastest row that was warm and worked at the last decision.

        None: no such row exists, or its average latency exceeds the budget.
        """
        with self._lock:
            cold, without = self._unable
            row = next((row for row in self._coordinator_rows if row not in cold and row not in without), None)
            if row is None:
                return None
            usual_ms, takes_ms = (self._at_quantile_ms(row, quantile) for quantile in (0.5, STANDS_IN))
            return FallbackRow(row, takes_ms) if usual_ms <= self._limits.budget_ms else None

    def served(self, runs: Sequence[ServedRun], request: RequestProgress | None = None) -> None:
        """Learn from the runs of a request. request: its progress after the last run; None: unknown whether it was late."""
        self._afterwards.add(self._learn, tuple(runs), request, self._clock())
        self._afterwards.settle(MOST_WAITING)  # several threads may answer faster than one learns

    def _learn(self, runs: Sequence[ServedRun], request: RequestProgress | None, now_s: float) -> None:
        measured = [(self._row_of.get(run.counts_for), run) for run in runs if run.counts_for and run.run_ms > 0]
        on_coordinator = [(row, run.run_ms) for row, run in measured if row is not None and not run.variant.placed]
        over_devices = any(run.variant.placed for run in runs)  # other devices do not show the load here
        if not on_coordinator and not over_devices:
            return
        with self._lock:
            if on_coordinator:
                rows, run_ms = zip(*on_coordinator, strict=True)
                self._estimate.observe(rows, sum(run_ms), now_s, self._load)
                self._lag, self._has_served = 0.0, True
            if request is not None and not request.has_less(self._limits.budget_ms):
                # a fallback's answer is in time, but the decided row's answer would not have been
                spent_ms = math.inf if any(run.away for run in runs) else request.spent_ms
                self._late |= spent_ms > self._limits.budget_ms
                self._margins.learn(self._described(spent_ms, over_devices), self._limits.quantile, self._load)
            self._renew(now_s)

    def _described(self, spent_ms: float, over_devices: bool) -> WaitedFor:
        """A request as the margins see it."""
        decision, budget_ms = self._decision, self._limits.budget_ms
        fastest = next((row for row in self._coordinator_rows if row not in self._unable[1]), self._coordinator_rows[0])
        # whether the fastest variant on the coordinator, under the same slow-down, would have kept the limits
        fastest_ms = self.look_up.effective_ms(fastest, self._limits_with_margin, self._factors)
        avoidable = decision is None or spent_ms * fastest_ms <= budget_ms * decision.effective_ms
        return WaitedFor(
            late=spent_ms > budget_ms,
            over_devices=over_devices,
            within=decision is None or decision.within,
            avoidable=over_devices or avoidable,
            in_time_on_coordinator=self._at_quantile_ms(fastest, 0.5) <= budget_ms,
        )

    def sensed(self, device: "SensedState") -> None:
        """Take over a sample of the device's state."""
        from adaptive_runtime.state.sensing import load_index

        load = load_index(device)
        self._afterwards.settle()
        with self._lock:
            self._forecaster.observe(load)
            known = self._has_served and load is not None and self._load is not None
            # requests since the previous sample already show this load: count only the forecast beyond it
            self._lag = (self._load or 0.0) - (load or 0.0) if known else 0.0
            self._device, self._load, self._has_served = device, load, False
            if self.rules is not None:
                self._context = rules_context(device)
            self._renew(self._clock())

    @property
    def state(self) -> AdaptingState:
        """The current state."""
        self._afterwards.settle()
        with self._lock:
            factors, running = self._inputs().factors, self._state.running
            load_class = 0 if running is None else int(self.variants.table.load_class_V[running])
            slow_down = factors.mean[load_class], factors.deviation[load_class]
            return AdaptingState(
                limits=self._limits,
                load=self._load,
                forecast=self._forecaster.forecast,
                slow_down=slow_down if running is None else factors.own.get(running, slow_down),
                device=self._device,
                decision=self._decision,
                mu=self._state.mu,
                margins=(
                    self._margins.on_coordinator.factor(self._load),
                    self._margins.over_devices.factor(self._load),
                ),
            )

    def take_over(self, before: "Adaptation") -> None:
        """Continue the record of another instance, which decides no more, in a new file.

        Nothing changes if that instance has no record.
        """
        self._afterwards.settle()
        before._afterwards.settle()
        with self._lock, before._lock:
            if before._record is None:
                return
            if self._record is not None:
                self._record.close()
            self._record, before._record = before._record, None
            self._record.go_on(self.variants.table, self._state, None if self.rules is None else self.rules.text)

    def start(self) -> None:
        """Sample the device's state, and learn from served requests, in the background until `stop`."""
        self.sensing.start()
        self._afterwards.start()

    def stop(self) -> None:
        """End sampling and close the record."""
        self.sensing.stop()
        self._afterwards.stop()
        if self._record is not None:
            self._record.close()

    def _at_quantile_ms(self, row: int, quantile: float) -> float:
        limits = self._limits.model_copy(update={"quantile": quantile})
        return self.look_up.effective_ms(row, limits, self._factors)

    def _fastest_on_coordinator(self) -> int:
        _, without = self._unable
        return next((row for row in self._coordinator_rows if row not in without), self._coordinator_rows[0])

    def _renew(self, now_s: float) -> None:
        forecast = self._forecaster.forecast
        foreseen = None if forecast is None or self._load is None else float(forecast.values_H[0]) + self._lag
        self._factors = self._estimate.factors(now_s, foreseen, self._limits.quantile)
        on_coordinator = self._margins.on_coordinator
        self._limits_with_margin = on_coordinator.limits(self._limits, self._load)
        if self._placed is not None:
            over_devices = self._margins.over_devices.factor(self._load)
            self._placed.renew(self._factors, over_devices / on_coordinator.factor(self._load))

    def _inputs(
        self, cold: frozenset[int] = NONE, without: frozenset[int] = NONE, request: RequestProgress = ONE_RUN
    ) -> DecisionInputs:
        """All inputs of a decision made now."""
        factors: LoadFactors = self._factors
        described: Mapping[int, str] = {}
        if self._placed is not None:
            factors, unable, described = self._placed.now(self._factors)
            if self._margins.backoff.left:
                unable, described = self._over_devices, dict.fromkeys(self._over_devices, self._margins.backoff.reason)
            without = unable | without if len(unable | without) < len(self.variants.table) else without
        limits, for_run = self._limits_with_margin, False
        if request != ONE_RUN:
            limits = request.limits(limits)
            for_run = request.left < request.runs or request.has_less(self._limits.budget_ms)
        return DecisionInputs(
            now_s=self._clock(),
            limits=limits,
            for_run=for_run,
            late=self._late,
            factors=factors,
            ratio=self._estimate.ratio,
            load=self._load,
            without=without,
            cold=cold,
            device=self._context,
            described=described,
        )


def _policy(
    rules: ChoiceRules | None, look_up: VariantLookUp, hysteresis: Callable[[Objective], ChoicePolicy]
) -> ChoicePolicy:
    """`choose` by rules, or for the most accurate variant within the limits."""
    if rules is not None:
        return ByRules(rules, look_up, hysteresis)
    best = MostAccurate(look_up)
    return partial(choose, objective=best, hysteresis=hysteresis(best))
