"""Adaptation of a deployed model: observes requests and the device's load, and decides which variant should serve.

[The run time](docs/runtime.md#adapting) shows how it is used.

State of the adaptation loop: observed requests and samples, and the decision that follows from them.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from adaptive_runtime.model.estimate import Caution, LoadEstimate, Rest
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
    DeviceContext,
    LoadFactors,
    MostAccurate,
    Objective,
    RequestProgress,
    VariantLookUp,
    choose,
)
from adaptive_runtime.policy.decisions import DecisionRecord
from adaptive_runtime.pool import Variant
from adaptive_runtime.state.forecast import Forecast, Forecaster

if TYPE_CHECKING:
    from adaptive_runtime.state.sensing import SensedState


NONE: frozenset[int] = frozenset()
ONE_RUN = RequestProgress()
STANDS_IN = 0.9
"""The fallback starts early enough to be in time with this probability.

Other devices are late far more seldom than not.
"""


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
    care: tuple[float, float] = (1.0, 1.0)

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


class ServedRun(NamedTuple):
    """A run of a variant and its duration without waiting. exits: the exit of each sample.

    away: it was a run over devices, and the fallback on the coordinator answered because the devices had not.
    """

    variant: Variant
    exits: Sequence[str]
    run_ms: float
    away: bool = False

    @property
    def counts_for(self) -> Variant | None:
        """The variant whose latency the run measures.

        For thresholds: the exit at which all samples left; None if they left at several.
        """
        if not self.variant.early:
            return self.variant
        return self.variant.whole._replace(exit=self.exits[0]) if len(set(self.exits)) == 1 else None


class StandInRow(NamedTuple):
    """A row that answers as fallback when other devices have not, and its expected upper duration [ms]."""

    row: int
    takes_ms: float


class Adaptation:
    """Choice of the variant of a bundle that should serve. Several threads may call it.

    `served` and `sensed` report events and update the slow-down factors; `choose` decides. variants: in the
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
        at_home = (row for row, one in enumerate(variants.variants) if not one.placed)
        self._home_rows = sorted(at_home, key=latency_ms.__getitem__)
        self._over_devices = frozenset(range(len(variants.table))).difference(self._home_rows)
        home = variants.home_of
        digests = {row: variants.variants[row].digest for row in home}
        self._placed = None if placed is None else placed.rows(variants.table, digests, home)
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
        self._limits = self._careful = limits
        self._caution, self._caution_over_devices, self._rest = Caution(), Caution(), Rest()
        self._factors = self._estimate.factors(clock(), None, limits.quantile)
        file, most_mib = options.decisions, options.decisions_mib
        text = None if rules is None else rules.text
        self._record = None if file is None else DecisionRecord(Path(file), variants.table, self._state, most_mib, text)

    @property
    def limits(self) -> ChoiceLimits:
        """The limits of the next decision."""
        return self._limits

    def set_limits(self, **changes: float | None) -> None:
        """Change limits, by the names of `ChoiceLimits`, from the next decision on. AdaptiveError: an invalid limit."""
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
        self,
        cold: frozenset[int] = NONE,
        without: frozenset[int] = NONE,
        request: RequestProgress = ONE_RUN,
    ) -> Decision:
        """The row that should serve the next run of a request. cold: rows that are not loaded.

        without: rows that do not work.
        """
        with self._lock:
            inputs = self._inputs(cold, without, request)
            before, self._decision = self._state, self.policy(self._state, inputs)
            self._state = self._decision.after
            self._unable = cold, without
            self._late &= inputs.for_run
            if self._record is not None:
                self._record.append(before, inputs, self._decision)
            return self._decision

    def stand_in(self) -> StandInRow | None:
        """The fallback on the coordinator: the fastest row that was warm and worked at the last decision.

        None: no such row exists, or its average latency exceeds the budget.
        """
        with self._lock:
            cold, without = self._unable
            row = next((row for row in self._home_rows if row not in cold and row not in without), None)
            if row is None:
                return None
            usual_ms, takes_ms = (self._at_quantile_ms(row, quantile) for quantile in (0.5, STANDS_IN))
            return StandInRow(row, takes_ms) if usual_ms <= self._limits.budget_ms else None

    def served(self, runs: Sequence[ServedRun], request: RequestProgress | None = None) -> None:
        """Learn from the runs of a request. request: its progress after the last run; None: unknown whether it was late."""
        rows, run_ms, over_devices, away = list[int](), 0.0, False, False
        for run in runs:
            row = self._row_of.get(run.counts_for) if run.counts_for is not None and run.run_ms > 0 else None
            over_devices |= run.variant.placed
            away |= run.away
            if row is not None and not run.variant.placed:  # other devices do not show the load here
                rows.append(row)
                run_ms += run.run_ms
        if not rows and not over_devices:
            return
        with self._lock:
            now_s = self._clock()
            if rows:
                self._estimate.observe(rows, run_ms, now_s, self._load)
                self._lag, self._has_served = 0.0, True
            if request is not None and not request.has_less(self._limits.budget_ms):
                # a fallback's answer is in time, but the decided row's answer would not have been
                self._learn_caution(math.inf if away else request.spent_ms, over_devices)
            self._renew(now_s)

    def sensed(self, device: "SensedState") -> None:
        """Take over a sample of the device's state."""
        from adaptive_runtime.state.sensing import load_index

        load = load_index(device)
        with self._lock:
            self._forecaster.observe(load)
            known = self._has_served and load is not None and self._load is not None
            # requests since the previous sample already show this load: count only the forecast beyond it
            self._lag = (self._load or 0.0) - (load or 0.0) if known else 0.0
            self._device, self._load, self._has_served = device, load, False
            if self.rules is not None:
                self._context = context_of(device)
            self._renew(self._clock())

    @property
    def state(self) -> AdaptingState:
        """The current state."""
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
                care=(self._caution.factor(self._load), self._caution_over_devices.factor(self._load)),
            )

    def take_over(self, before: "Adaptation") -> None:
        """Continue the record of another instance, which decides no more, in a new file.

        Nothing changes if that instance has no record.
        """
        with self._lock, before._lock:
            if before._record is None:
                return
            if self._record is not None:
                self._record.close()
            self._record, before._record = before._record, None
            self._record.go_on(self.variants.table, self._state, None if self.rules is None else self.rules.text)

    def start(self) -> None:
        """Sample the device's state in the background until `stop`."""
        self.sensing.start()

    def stop(self) -> None:
        """End sampling and close the record."""
        self.sensing.stop()
        if self._record is not None:
            self._record.close()

    def _learn_caution(self, spent_ms: float, over_devices: bool) -> None:
        """Adjust the caution after a request.

        The coordinator and other devices have separate caution, since neither carries information about the other.
        """
        caution, other, rest = self._caution, self._caution_over_devices, self._rest
        if over_devices:
            caution, other = other, caution
        else:
            rest.elsewhere()
        other.unused()
        late = spent_ms > self._limits.budget_ms
        self._late |= late
        within = self._decision is None or self._decision.within
        if late and not within:
            if over_devices and self._home_ms <= self._limits.budget_ms:
                rest.begin()
        elif late:
            if over_devices or self._was_avoidable(spent_ms):
                caution.observe(True, self._limits.quantile, self._load)
        # if no variant keeps the limits, less care than usual would not help
        elif within or caution.factor(self._load) > 1.0:
            caution.observe(False, self._limits.quantile, self._load)
            if over_devices and within:
                rest.over()

    @property
    def _home_ms(self) -> float:
        """Average latency of the fastest working variant on the coordinator."""
        return self._at_quantile_ms(self._fastest_at_home(), 0.5)

    def _at_quantile_ms(self, row: int, quantile: float) -> float:
        limits = self._limits.model_copy(update={"quantile": quantile})
        return self.look_up.effective_ms(row, limits, self._factors)

    def _fastest_at_home(self) -> int:
        _, without = self._unable
        return next((row for row in self._home_rows if row not in without), self._home_rows[0])

    def _was_avoidable(self, spent_ms: float) -> bool:
        """Whether the fastest variant on the coordinator, under the same slow-down, would have kept the limits."""
        decision = self._decision
        if decision is None:
            return True
        fastest_ms = self.look_up.effective_ms(self._fastest_at_home(), self._careful, self._factors)
        return spent_ms * fastest_ms <= self._limits.budget_ms * decision.effective_ms

    def _renew(self, now_s: float) -> None:
        forecast = self._forecaster.forecast
        foreseen = None if forecast is None or self._load is None else float(forecast.values_H[0]) + self._lag
        self._factors = self._estimate.factors(now_s, foreseen, self._limits.quantile)
        self._careful = self._caution.limits(self._limits, self._load)
        if self._placed is not None:
            over_devices = self._caution_over_devices.factor(self._load)
            self._placed.renew(self._factors, over_devices / self._caution.factor(self._load))

    def _inputs(
        self,
        cold: frozenset[int] = NONE,
        without: frozenset[int] = NONE,
        request: RequestProgress = ONE_RUN,
    ) -> DecisionInputs:
        """All inputs of a decision made now."""
        factors: LoadFactors = self._factors
        told: Mapping[int, str] = {}
        if self._placed is not None:
            factors, unable, told = self._placed.now(self._factors)
            if self._rest.left:
                unable, told = self._over_devices, dict.fromkeys(self._over_devices, self._rest.reason)
            without = unable | without if len(unable | without) < len(self.variants.table) else without
        limits, for_run = self._careful, False
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
            told=told,
        )


def _policy(
    rules: ChoiceRules | None, look_up: VariantLookUp, hysteresis: Callable[[Objective], ChoicePolicy]
) -> ChoicePolicy:
    """`choose` by rules, or for the most accurate variant within the limits."""
    if rules is not None:
        return ByRules(rules, look_up, hysteresis)
    best = MostAccurate(look_up)
    return partial(choose, objective=best, hysteresis=hysteresis(best))


def context_of(device: "SensedState") -> DeviceContext:
    """The part of a sample that rules can read."""
    return DeviceContext(
        battery=device.battery,
        charging=device.plugged,
        memory_available_mib=device.memory_available_mib,
        memory_total_mib=device.memory_total_mib,
        temperature_c=device.temperature_c,
    )
