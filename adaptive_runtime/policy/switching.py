"""Times of switches: down at once, up after a better variant has fitted with a margin for a while, never too often.

While a variant loads, another variant runs. A request of several runs is checked from run to run for its remaining
time.
"""

from dataclasses import dataclass

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy.decisions import ChoicePolicy, ChoiceState, Decision, DecisionInputs, Step
from adaptive_runtime.policy.inputs import quantile_told
from adaptive_runtime.policy.lookup import FoundVariant, Objective


@dataclass(frozen=True, slots=True)
class WarmFirst:
    """A policy that may decide for a cold variant: the best warm one by the objective runs `meanwhile`.

    The decided variant counts as running, even while it is loaded.
    """

    policy: ChoicePolicy
    objective: Objective

    def decide(self, state: ChoiceState, inputs: DecisionInputs) -> tuple[ChoiceState, Decision]:
        state, decision = self.policy.decide(state, inputs)
        unable = inputs.without | inputs.cold
        if decision.variant not in inputs.cold or len(unable) == len(self.objective.look_up.table):
            return state, decision
        warm = self.objective.find(inputs.limits, inputs.factors, unable)
        return state, decision._replace(meanwhile=warm.variant)


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

    def decide(self, state: ChoiceState, inputs: DecisionInputs) -> tuple[ChoiceState, Decision]:
        """The next state, and the decision with its reason."""
        recent_s = tuple(time_s for time_s in state.switched_s if time_s > inputs.now_s - MINUTE_S)
        if len(recent_s) < len(state.switched_s):
            state = state._replace(switched_s=recent_s)
        best = self.objective.find(inputs.limits, inputs.factors, inputs.without)
        running = state.running
        if running is None:
            return self._switched(state, inputs, best, "start", f"{self._told(best, inputs)}")
        if best.variant == running:
            return self._stays(state, inputs, best, None, "no other variant is better")
        look_up = self.objective.look_up
        now = FoundVariant(
            running,
            look_up.effective_ms(running, inputs.limits, inputs.factors),
            look_up.keeps(running, inputs.limits, inputs.factors),
        )
        if running in inputs.without:
            why = f"{self._name(now)} {inputs.told.get(running, 'does not work')}; {self._told(best, inputs)}"
            blameless = state._replace(went_up_s=None)
            return self._switched(blameless, inputs, best, self._direction(inputs, now, best), why)
        if not now.within:
            return self._away(state, inputs, now, best)
        return self._towards(state, inputs, now, best)

    def _away(
        self, state: ChoiceState, inputs: DecisionInputs, now: FoundVariant, best: FoundVariant
    ) -> tuple[ChoiceState, Decision]:
        """Move away from a variant that breaks a limit."""
        look_up, limits, factors = self.objective.look_up, inputs.limits, inputs.factors
        hardly_faster = not best.within and best.effective_ms > (1 - self.margin) * now.effective_ms
        room, room_now = look_up.room(best.variant, limits, factors), look_up.room(now.variant, limits, factors)
        hardly_surer = room < room_now + HARDLY_SURER
        if hardly_faster and hardly_surer and look_up.keeps_extras(now.variant, limits):
            why = f"the surest, {self._name(best)}, is hardly surer or faster with {best.effective_ms:.3g} ms"
            return self._stays(state, inputs, now, None, why)
        why, switches = f"{self._told(now, inputs)}; {self._told(best, inputs)}", len(state.switched_s)
        if switches >= self.most_per_minute:
            return self._stays(state, inputs, now, None, f"{why}, but {switches} switches were in the last minute")
        spacious = self.objective.find(inputs.limits.tighter(self.margin), inputs.factors, inputs.without)
        if spacious.within:
            best, why = spacious, f"{self._told(now, inputs)}; {self._told(spacious, inputs)}"
        return self._switched(state, inputs, best, self._direction(inputs, now, best), why)

    def _towards(
        self, state: ChoiceState, inputs: DecisionInputs, now: FoundVariant, best: FoundVariant
    ) -> tuple[ChoiceState, Decision]:
        """Move to a better variant, if one has fitted with a margin for long enough."""
        better = self.objective.find(inputs.limits.tighter(self.margin), inputs.factors, inputs.without)
        if not better.within or not self.objective.prefers(better.variant, now.variant, inputs.factors):
            why = f"{self._told(best, inputs)}, less than {self.margin:.0%} below it"
            return self._stays(state, inputs, now, None, why)
        since_s = inputs.now_s if state.better_since_s is None else min(state.better_since_s, inputs.now_s)
        waited_s, dwell_s = inputs.now_s - since_s, self._dwell_s(state)
        why = f"{self._told(better, inputs)}, and a better variant has fitted for {waited_s:.3g} s"
        if waited_s < dwell_s:
            return self._stays(state, inputs, now, since_s, f"{why} of {dwell_s:g} s")
        if len(state.switched_s) >= max(1, self.most_per_minute // 2):
            why = f"{why}, but {len(state.switched_s)} switches were in the last minute"
            return self._stays(state, inputs, now, since_s, why)
        return self._switched(state, inputs, better, "up", why)

    def _switched(
        self, state: ChoiceState, inputs: DecisionInputs, to: FoundVariant, step: Step, why: str
    ) -> tuple[ChoiceState, Decision]:
        times_s = () if step == "start" else (*state.switched_s, inputs.now_s)
        after = state._replace(running=to.variant, better_since_s=None, switched_s=times_s)
        if step == "up":
            after = after._replace(went_up_s=inputs.now_s)
        elif state.went_up_s is not None:
            dwell_s = self._next_dwell_s(state, inputs, inputs.now_s - state.went_up_s)
            after = after._replace(went_up_s=None, dwell_s=dwell_s)
        return after, made(self.objective, inputs, to, step, why)

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

    def _stays(
        self, state: ChoiceState, inputs: DecisionInputs, now: FoundVariant, since_s: float | None, why: str
    ) -> tuple[ChoiceState, Decision]:
        if state.better_since_s != since_s:
            state = state._replace(better_since_s=since_s)
        return state, made(self.objective, inputs, now, "stay", why)

    def _told(self, found: FoundVariant, inputs: DecisionInputs) -> str:
        limits = inputs.limits
        keeps = "keeps the limits with" if found.within else "breaks a limit with"
        known = inputs.told.get(found.variant)
        return (
            f"{self._name(found)} {keeps} {found.effective_ms:.3g} ms at {quantile_told(limits.quantile)}, "
            f"budget {limits.budget_ms:.3g} ms" + ("" if known is None else f" ({known})")
        )

    def _name(self, found: FoundVariant) -> str:
        table = self.objective.look_up.table
        return f"{table.names[found.variant]} ({table.accuracy[found.variant]:.2%})"


def made(objective: Objective, inputs: DecisionInputs, found: FoundVariant, step: Step, reason: str) -> Decision:
    """A decision for a variant."""
    table = objective.look_up.table
    return Decision(
        now_s=inputs.now_s,
        step=step,
        variant=found.variant,
        name=table.names[found.variant],
        within=found.within,
        effective_ms=found.effective_ms,
        accuracy=table.accuracy[found.variant],
        reason=reason,
    )


@dataclass(frozen=True, slots=True)
class RunByRun:
    """A policy decides for a request. Before each of its later runs, the remaining runs share the remaining budget.

    While the decided variant keeps its share, it continues. Else the best loaded variant that does serves the next run, for
    this
    request only: the next request begins with the policy's decision. The same applies to a request with less time than others.
    """

    policy: ChoicePolicy
    objective: Objective

    def decide(self, state: ChoiceState, inputs: DecisionInputs) -> tuple[ChoiceState, Decision]:
        running = state.running
        if not inputs.for_run or running is None:
            return self.policy.decide(state, inputs)
        look_up, limits, factors = self.objective.look_up, inputs.limits, inputs.factors
        unable, keeps = inputs.without | inputs.cold, look_up.keeps(running, limits, factors)
        left = f"{limits.budget_ms:.3g} ms are left for each run of the request"
        if (keeps and running not in unable) or len(unable) == len(look_up.table):
            now = FoundVariant(running, look_up.effective_ms(running, limits, factors), keeps)
            return state, made(self.objective, inputs, now, "stay", left)
        return state, made(self.objective, inputs, self.objective.find(limits, factors, unable), "hurry", left)
