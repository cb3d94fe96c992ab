"""Decisions: their inputs, their content with reasons, and the policies that make them.

They are plain tuples, since a request waits for them; the log checks their values.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, Protocol

from pydantic import Field

from adaptive_runtime.policy.inputs import ChoiceLimits, LoadFactors
from profiling_agents.messages import Message

Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]
Step = Literal["start", "stay", "down", "up", "hurry"]


class DeviceContext(Message):
    """The device apart from its load, as rules see it. charging: it has a power supply; memory: of all; None: not sensed."""

    battery: Share | None = None
    charging: bool | None = None
    memory_available_mib: NotNegative | None = None
    memory_total_mib: NotNegative | None = None
    temperature_c: float | None = None

    @property
    def memory_share(self) -> float | None:
        """Free share of the memory."""
        if self.memory_available_mib is None or not self.memory_total_mib:
            return None
        return min(1.0, self.memory_available_mib / self.memory_total_mib)


class DecisionInputs(NamedTuple):
    """All inputs of a policy at one time.

    now_s: of a monotonic clock. factors: forecast for the time until the next decision. ratio: measured over predicted latency
    of the running variant since the last decision; None: it did not run. load: index; None: not sensed. without: variants that
    do not work and cannot be chosen. cold: variants that would have to be loaded first. for_run: the limits apply to a
    request's
    next run only, for which another variant may be chosen. device: set if rules decide. late: whether a request since the last
    decision exceeded its budget. told: notes on variants split over several devices, which reasons quote; they decide nothing.
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
    """The memory of a policy. running: None before the start. better_since_s: time since which a better variant would fit.

    switched_s: times of the switches in the last minute. went_up_s: time of the last switch up, until a switch down. dwell_s:
    time for which a better variant now has to fit; None: the policy's initial value. If rules decide: holding: which of their
    conditions hold; mu: by the battery; rule: the current objective in words.
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
    """The variant to run from now on; for step `hurry`, for one run. within: it keeps all limits, as far as is known.

    effective_ms: its expected latency at the policy's quantile. reason: in words and numbers. meanwhile: the variant that runs
    until this one is loaded; None: it runs at once. rule: the objective in words, if rules decide. adapts_weights: whether
    weights may adapt to images.
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
