"""The choice of an engine by greedy descent: in each step, the choice that gains most changes the engine.

Every choice of every open option is timed beside the current engine. Clearly slower choices are not timed to the end. The
best choice is kept if it gains enough; its option is settled, and the other options are tried again with the new engine, since
the gain of one option may depend on another. The descent ends when no choice gains enough.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from profiling_agents.messages import Engine, EngineOption
from tasks.measuring.runtime_options.chosen import Gain, LeftOut, TriedChoice
from tasks.measuring.runtime_options.settings import Settings
from tasks.measuring.runtime_options.statistics import LEAST_ROUNDS, Comparison, compare
from tasks.measuring.runtime_options.timing import EngineTimer, step_of

SLOWER = 0.1
"""A choice that costs more than this share of the time in the first round is not timed again."""

Choice = tuple[str, str]
"""An option and one of its choices."""
WHOLE: Choice = ("", "")
"""Placeholder instead of a choice, for an engine that differs in more than one choice."""


def gain_of(comparison: Comparison) -> Gain:
    """The stored form of a comparison."""
    return Gain(ratio=comparison.ratio, low=comparison.low, high=comparison.high, pairs=comparison.pairs)


@dataclass(slots=True)
class Descent:
    """The search for an engine. difference: reason why an engine's outputs differ from those of the defaults, or None.

    by_operator: leave out options that can be chosen for single operators. tried, left_out: results so far.
    """

    settings: Settings
    options: Sequence[EngineOption]
    timer: EngineTimer
    difference: Callable[[Engine], str | None]
    by_operator: bool = False
    tried: list[TriedChoice] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def tuned(self, start: Engine) -> Engine:
        """An engine that no further choice improves. Options for which `start` has choices stay unchanged."""
        engine, open_options = start, self._open(start)
        while open_options:
            present = engine.settled(self.options)
            others = {
                (option.name, choice): engine.changed(option.name, choice)
                for option in open_options
                for choice in option.choices
                if choice != present[option.name]
            }
            kept = self._best(engine, others)
            if kept is None:
                break
            engine = others[kept]
            open_options = [option for option in open_options if option.name != kept[0]]
        return engine if engine == start else self._confirmed(start, engine)

    def _open(self, start: Engine) -> list[EngineOption]:
        """The options to be tried; the left-out ones are recorded."""
        free = [one for one in self.options if one.name not in start.choices]
        for option in free:
            if self.by_operator and option.by_operator:
                reason = "chosen for each operator while operators are measured"
                choices = (choice for choice in option.choices if choice != option.default)
                self.left_out += [LeftOut(option=option.name, choice=choice, reason=reason) for choice in choices]
        return [one for one in free if not (self.by_operator and one.by_operator)]

    def beside(self, base: Engine, engine: Engine) -> Comparison | None:
        """Compare an engine with another, timed anew in as many rounds as the settings have; None if it cannot be timed."""
        found = self._screened(step_of(base, engine), base, {WHOLE: engine}, whole=True)
        self.left_out = [one for one in self.left_out if one.option]
        return found.get(WHOLE)

    def _confirmed(self, start: Engine, engine: Engine) -> Engine:
        """The engine if new times confirm its gain, else `start`: the best of many choices looks better than it is."""
        found = self.beside(start, engine)
        reason = "it has no time" if found is None else found.rejection(self.settings.minimal_gain)
        if reason is None:
            return engine
        not_confirmed = {"reason": f"not confirmed: {reason}"}
        self.tried = [one if one.reason else one.model_copy(update=not_confirmed) for one in self.tried]
        return start

    def _best(self, base: Engine, others: Mapping[Choice, Engine]) -> Choice | None:
        """The choice that is kept, if any; records all tried choices."""
        found = self._screened(step_of(base), base, others)
        reasons = {choice: one.rejection(self.settings.minimal_gain) for choice, one in found.items()}
        kept: Choice | None = None
        for choice in sorted(found, key=lambda one: found[one].ratio):
            if kept is not None:
                reasons[choice] = reasons[choice] or f"{'='.join(kept)} gains more"
            elif reasons[choice] is None:
                reasons[choice] = self.difference(others[choice])
                kept = choice if reasons[choice] is None else None
        for (option, name), comparison in found.items():
            self.tried.append(
                TriedChoice(
                    option=option,
                    choice=name,
                    beside=base.choices,
                    gain=gain_of(comparison),
                    reason=reasons[option, name],
                )
            )
        return kept

    def _screened(
        self, step: str, base: Engine, others: Mapping[Choice, Engine], *, whole: bool = False
    ) -> dict[Choice, Comparison]:
        """Comparisons with `base` of the engines that could be timed. whole: all rounds, whatever their results and times."""
        log_ratios: dict[Choice, dict[str, list[float]]] = {choice: {} for choice in others}
        found: dict[Choice, Comparison] = {}
        left = dict(others)
        for number in range(self.settings.rounds):
            if not left or (not whole and self.timer.spent_s >= self.settings.limit_s):
                break
            pairs = self.timer.pairs(step, number, base, list(left.values()))
            for choice, engine in tuple(left.items()):
                for digest, value in pairs.log_ratios[engine.text].items():
                    log_ratios[choice].setdefault(digest, []).append(value)
                if reason := self._failure(pairs.failures.get(engine.text), log_ratios[choice]):
                    self.left_out.append(LeftOut(option=choice[0], choice=choice[1], reason=reason))
                    found.pop(choice, None)
                    del left[choice]
                    continue
                found[choice] = compare([np.array(one) for one in log_ratios[choice].values()], self.settings.seed)
                if not whole and self._decided(found[choice], number):
                    del left[choice]
        for option, name in set(left) - set(found):
            reason = f"{self.settings.limit_s:g} s were over"
            self.left_out.append(LeftOut(option=option, choice=name, reason=reason))
        return found

    def _failure(self, reason: str | None, log_ratios: Mapping[str, Sequence[float]]) -> str | None:
        if reason is None and not log_ratios:
            return "the engine beside it has no time"
        return reason

    def _decided(self, comparison: Comparison, number: int) -> bool:
        """Whether further rounds could not change the decision."""
        share = self.settings.minimal_gain
        if number + 1 < LEAST_ROUNDS:
            return comparison.slower(SLOWER)
        return comparison.gains_at_most(share) or (comparison.high is not None and comparison.high < 1 - share)
