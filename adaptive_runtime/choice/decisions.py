"""Decisions: from what they follow, what they are and why; and the policies that make them.

They are plain tuples, since a request waits while they are made; the log checks their values.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, Protocol

from pydantic import Field

from adaptive_runtime.choice.inputs import ChoiceLimits, LoadFactors
from profiling_agents.messages import Message

Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]
Step = Literal["start", "stay", "down", "up", "hurry"]


class DeviceContext(Message):
    """The device besides its load, as rules see it. charging: whether it has a supply; memory: of all; None: not sensed."""

    battery: Share | None = None
    charging: bool | None = None
    memory_available_mib: NotNegative | None = None
    memory_total_mib: NotNegative | None = None
    temperature_c: float | None = None

    @property
    def memory_share(self) -> float | None:
        """Share of the memory that is free."""
        if self.memory_available_mib is None or not self.memory_total_mib:
            return None
        return min(1.0, self.memory_available_mib / self.memory_total_mib)


class DecisionInputs(NamedTuple):
    """All that a policy may see at one time.

    now_s: of a clock that never goes back. factors: forecast for the time until the next decision. ratio: measured over
    predicted latency of the running variant since the last decision; None: it did not run. load: index; None: not sensed.
    without: variants that do not work, which are not chosen. cold: variants that would have to be loaded first. for_run:
    the limits are those of a request's next run, for which alone something else may be chosen. device: where rules decide.
    late: whether a request since the last decision has taken longer than its budget. told: what is known of variants over
    several devices now, in words, which reasons take over; it decides nothing.
    """

    now_s: float
    limits: ChoiceLimits
    factors: LoadFactors = LoadFactors()
    ratio: Annotated[float, Field(gt=0)] | None = None
    load: float | None = None
    without: frozenset[int] = frozenset()
    cold: frozenset[int] = frozenset()
    for_run: bool = False
    late: bool = False
    device: DeviceContext | None = None
    told: Mapping[int, str] = {}


class ChoiceState(NamedTuple):
    """What a policy remembers. running: None before the start. better_since_s: since when a better variant would have fitted.

    switched_s: times of the switches in the last minute. went_up_s: time of the last switch up, until a switch down.
    dwell_s: how long a better variant has to fit now; None: as long as the policy begins with. Where rules decide: holding,
    which of their conditions hold; mu, by the battery; rule, what is best in words.
    """

    running: int | None = None
    better_since_s: float | None = None
    switched_s: tuple[float, ...] = ()
    went_up_s: float | None = None
    dwell_s: float | None = None
    holding: tuple[bool, ...] = ()
    mu: float | None = None
    rule: str | None = None


class Decision(NamedTuple):
    """Which variant runs from now on; with step `hurry` for one run. within: whether it keeps all limits, as far as is known.

    effective_ms: the latency that the policy expects of it at its quantile. reason: in words and numbers. meanwhile: the
    variant that runs until this one is loaded; None: it runs at once. rule: what is best, in words, where rules decide.
    adapts_weights: whether weights may follow their images.
    """

    now_s: float
    step: Step
    variant: int
    name: str
    within: bool
    effective_ms: float
    accuracy: float
    reason: str
    meanwhile: int | None = None
    rule: str | None = None
    adapts_weights: bool = True


class ChoicePolicy(Protocol):
    """A pure function of state and inputs: the same ones give the same decision."""

    def decide(self, state: ChoiceState, inputs: DecisionInputs) -> tuple[ChoiceState, Decision]: ...
