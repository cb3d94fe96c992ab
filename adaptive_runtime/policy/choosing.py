"""The choice of a variant at run time: one pure function of the previous state and the inputs, with hysteresis and warmth.

A switch down is made at once; a switch up after a better variant has fitted with a margin for a while; neither too often.
While a variant loads, another variant runs. A request of several runs is checked from run to run for its remaining time.
"""

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple, Self

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy.decisions import ChoicePolicy, ChoiceState, Decision, DecisionInputs, Step
from adaptive_runtime.policy.inputs import ChoiceLimits
from adaptive_runtime.policy.lookup import FoundVariant, Objective, deviations, quantile_of, quantile_text

LEAST_SHARE = 1e-3
"""Share of the budget for a request that has none left."""


class RequestProgress(NamedTuple):
    """A request before one of its runs.

    runs: their total number. left: number of remaining runs. spent_ms: time spent up to now. expected_ms: most time that the
    finished runs should have taken, by their decisions. budget_ms: of the request, if less than the limits'; None: the limits'.
    """

    runs: int = 1
    left: int = 1
    spent_ms: float = 0.0
    expected_ms: float = 0.0
    budget_ms: float | None = None

    @property
    def pace(self) -> float:
        """The factor by which the request took longer than it should have at most; 1 if it did not."""
        return max(1.0, self.spent_ms / self.expected_ms) if self.expected_ms else 1.0

    @property
    def with_usual_budget(self) -> Self:
        """The same progress without a budget of its own."""
        return self._replace(budget_ms=None)

    def has_less(self, budget_ms: float) -> bool:
        """Whether its own budget is less than this one."""
        return self.budget_ms is not None and self.budget_ms < budget_ms

    def after(self, effective_ms: float, spent_ms: float) -> Self:
        """The progress after one more run, which should have taken at most `effective_ms`; spent_ms: total of the request."""
        expected_ms = self.expected_ms + effective_ms
        return self._replace(left=self.left - 1, spent_ms=spent_ms, expected_ms=expected_ms)

    def limits(self, usual: ChoiceLimits) -> ChoiceLimits:
        """Limits of the next run: the remaining runs share the remaining time. usual: limits of a whole request.

        If the request took longer than it should have at most, the load has risen, and the remaining runs are expected to slow
        down by the same factor. Few runs scatter more than all of them together, so the quantile rises.
        """
        if self.runs == 1 and not self.has_less(usual.budget_ms):
            return usual
        most_ms = usual.budget_ms if self.budget_ms is None else min(usual.budget_ms, self.budget_ms)
        left_ms = max(LEAST_SHARE * usual.budget_ms, most_ms - self.spent_ms) / self.left
        quantile = quantile_of(deviations(usual.quantile) * sqrt(self.runs / self.left))
        return usual.model_copy(update={"budget_ms": left_ms / self.pace, "quantile": quantile})


def choose(state: ChoiceState, inputs: DecisionInputs, objective: Objective, hysteresis: ChoicePolicy) -> Decision:
    """The variant that should run now. Pure: the same state and inputs give the same decision, with the next state in it.

    hysteresis: decides for a request (`Switching`). Before each later run of the request (`inputs.for_run`), the remaining runs
    share the remaining budget: while the decided variant keeps its share, it continues; else the best loaded variant that does
    serves the next run alone (step `hurry`), and the state stays. The same applies to a request with less time than others.
    If the decided variant is cold, the best warm one by the objective runs `meanwhile`; the decided one counts as running.
    """
    running, limits, factors = state.running, inputs.limits, inputs.factors
    look_up, unable = objective.look_up, inputs.without | inputs.cold
    none_able = len(unable) == len(look_up.table.names)
    if inputs.for_run and running is not None:
        keeps = look_up.keeps(running, limits, factors)
        left = f"{limits.budget_ms:.3g} ms are left for each run of the request"
        if (keeps and running not in unable) or none_able:
            now = FoundVariant(running, look_up.effective_ms(running, limits, factors), keeps)
            return decision_for(now, objective, inputs, state, "stay", left)
        return decision_for(objective.find(limits, factors, unable), objective, inputs, state, "hurry", left)
    decision = hysteresis(state, inputs)
    if none_able or decision.variant not in inputs.cold:
        return decision
    return decision._replace(meanwhile=objective.find(limits, factors, unable).variant)


def decision_for(
    found: FoundVariant, objective: Objective, inputs: DecisionInputs, after: ChoiceState, step: Step, reason: str
) -> Decision:
    """A decision for a variant, with the next state."""
    table = objective.look_up.table
    name, accuracy = table.names[found.variant], table.accuracy[found.variant]
    variant, effective_ms, within = found
    return Decision(inputs.now_s, step, variant, name, within, effective_ms, accuracy, reason, after=after)


MINUTE_S = 60.0
HARDLY_SURER = 5
"""Tenths of a deviation by which another variant's room in the budget has to be larger, if none keeps the limits."""
HELD_DWELLS = 4.0
"""A switch up was worth it if it lasted this many times the wait for it."""


@dataclass(frozen=True, slots=True)
class Switching:
    """Hysteresis around an objective.

    margin: share of the budget that a variant leaves free when it is switched to, if one does. A better variant has to do this
    for `dwell_s` without interruption. If none keeps the limits, the surest has to be faster by this share, or surer by
    `HARDLY_SURER`. The wait doubles, up to `most_dwell_s`, with each late request that ends a switch up within `HELD_DWELLS`
    waits, and halves with each other switch down. most_per_minute: of all switches; half of them are reserved for switches
    down.
    """

    objective: Objective
    margin: float = 0.05
    dwell_s: float = 1.0
    most_dwell_s: float = 8.0
    most_per_minute: int = 60

    def __post_init__(self) -> None:
        times = self.dwell_s >= 0 and self.most_dwell_s >= 0
        if not (0 <= self.margin < 1 and times and self.most_per_minute >= 1):
            dwell = f"dwell {self.dwell_s:g} s, at most {self.most_dwell_s:g} s"
            got = f"margin {self.margin:g}, {dwell}, {self.most_per_minute} a minute"
            raise AdaptiveError(
                "switching", got, allowed="a margin from 0 to below 1, 0 s and more, 1 a minute and more"
            )

    def __call__(self, state: ChoiceState, inputs: DecisionInputs) -> Decision:
        """The decision with its reason and the next state."""
        recent_s = tuple(time_s for time_s in state.switched_s if time_s > inputs.now_s - MINUTE_S)
        if len(recent_s) < len(state.switched_s):
            state = state._replace(switched_s=recent_s)
        limits, factors, running, look_up = inputs.limits, inputs.factors, state.running, self.objective.look_up
        best = self.objective.find(limits, factors, inputs.without)
        if running is None:
            return self._switched(state, inputs, best, "start", f"{self._described(best, inputs)}")
        if best.variant == running:
            return self._stays(state, inputs, best, None, "no other variant is better")
        now_ms, keeps = look_up.effective_ms(running, limits, factors), look_up.keeps(running, limits, factors)
        now = FoundVariant(running, now_ms, keeps)
        if running in inputs.without:
            why = f"{self._name(now)} {inputs.described.get(running, 'does not work')}; {self._described(best, inputs)}"
            return self._switched(state._replace(went_up_s=None), inputs, best, self._direction(inputs, now, best), why)
        return self._towards(state, inputs, now, best) if now.within else self._away(state, inputs, now, best)

    def _away(self, state: ChoiceState, inputs: DecisionInputs, now: FoundVariant, best: FoundVariant) -> Decision:
        """Move away from a variant that breaks a limit."""
        look_up, limits, factors = self.objective.look_up, inputs.limits, inputs.factors
        hardly_faster = not best.within and best.effective_ms > (1 - self.margin) * now.effective_ms
        room, room_now = look_up.room(best.variant, limits, factors), look_up.room(now.variant, limits, factors)
        hardly_surer = room < room_now + HARDLY_SURER
        if hardly_faster and hardly_surer and look_up.keeps_extras(now.variant, limits):
            why = f"the surest, {self._name(best)}, is hardly surer or faster with {best.effective_ms:.3g} ms"
            return self._stays(state, inputs, now, None, why)
        switches = len(state.switched_s)
        if switches >= self.most_per_minute:
            why = f"{self._described(now, inputs)}; {self._described(best, inputs)}"
            return self._stays(state, inputs, now, None, f"{why}, but {switches} switches were in the last minute")
        spacious = self.objective.find(limits.tighter(self.margin), factors, inputs.without)
        best = spacious if spacious.within else best
        why = f"{self._described(now, inputs)}; {self._described(best, inputs)}"
        return self._switched(state, inputs, best, self._direction(inputs, now, best), why)

    def _towards(self, state: ChoiceState, inputs: DecisionInputs, now: FoundVariant, best: FoundVariant) -> Decision:
        """Move to a better variant, if one has fitted with a margin for long enough."""
        better = self.objective.find(inputs.limits.tighter(self.margin), inputs.factors, inputs.without)
        if not better.within or not self.objective.prefers(better.variant, now.variant, inputs.factors):
            why = f"{self._described(best, inputs)}, less than {self.margin:.0%} below it"
            return self._stays(state, inputs, now, None, why)
        since_s = inputs.now_s if state.better_since_s is None else min(state.better_since_s, inputs.now_s)
        waited_s, dwell_s = inputs.now_s - since_s, self._dwell_s(state)
        why = f"{self._described(better, inputs)}, and a better variant has fitted for {waited_s:.3g} s"
        if waited_s < dwell_s:
            return self._stays(state, inputs, now, since_s, f"{why} of {dwell_s:g} s")
        if len(state.switched_s) >= max(1, self.most_per_minute // 2):
            why = f"{why}, but {len(state.switched_s)} switches were in the last minute"
            return self._stays(state, inputs, now, since_s, why)
        return self._switched(state, inputs, better, "up", why)

    def _switched(self, state: ChoiceState, inputs: DecisionInputs, to: FoundVariant, step: Step, why: str) -> Decision:
        times_s = () if step == "start" else (*state.switched_s, inputs.now_s)
        after = state._replace(running=to.variant, better_since_s=None, switched_s=times_s)
        if step == "up":
            after = after._replace(went_up_s=inputs.now_s)
        elif state.went_up_s is not None:
            dwell_s = self._next_dwell_s(state, inputs, inputs.now_s - state.went_up_s)
            after = after._replace(went_up_s=None, dwell_s=dwell_s)
        return decision_for(to, self.objective, inputs, after, step, why)

    def _stays(
        self, state: ChoiceState, inputs: DecisionInputs, now: FoundVariant, since_s: float | None, why: str
    ) -> Decision:
        if state.better_since_s != since_s:
            state = state._replace(better_since_s=since_s)
        return decision_for(now, self.objective, inputs, state, "stay", why)

    def _dwell_s(self, state: ChoiceState) -> float:
        return self.dwell_s if state.dwell_s is None else state.dwell_s

    def _next_dwell_s(self, state: ChoiceState, inputs: DecisionInputs, held_s: float) -> float:
        """The next wait for a switch up, after one that lasted for `held_s`."""
        now_s = self._dwell_s(state)
        if inputs.late and held_s < HELD_DWELLS * now_s:
            return min(2 * now_s, max(self.dwell_s, self.most_dwell_s))
        return max(self.dwell_s, now_s / 2)

    def _direction(self, inputs: DecisionInputs, now: FoundVariant, to: FoundVariant) -> Step:
        return "up" if self.objective.prefers(to.variant, now.variant, inputs.factors) else "down"

    def _described(self, found: FoundVariant, inputs: DecisionInputs) -> str:
        limits, known = inputs.limits, inputs.described.get(found.variant)
        keeps = "keeps the limits with" if found.within else "breaks a limit with"
        return (
            f"{self._name(found)} {keeps} {found.effective_ms:.3g} ms at {quantile_text(limits.quantile)}, "
            f"budget {limits.budget_ms:.3g} ms" + ("" if known is None else f" ({known})")
        )

    def _name(self, found: FoundVariant) -> str:
        table = self.objective.look_up.table
        return f"{table.names[found.variant]} ({table.accuracy[found.variant]:.2%})"
