"""Times of a model and of its layers."""

from typing import Literal, Self

from pydantic import Field, model_validator

from profiling_agents.messages.base import Message, Name


class LayerTiming(Message):
    """One layer that the runtime executed inside a model: the runtime's name and kind of the layer, and the blobs it wrote.

    `time_ms`: interquartile mean over the runs; 0 is below the resolution of the runtime's clock.
    """

    name: str = Field(max_length=1024)
    kind: str = Field(max_length=256)
    outputs: tuple[str, ...] = ()
    time_ms: float = Field(ge=0.0)


class Timing(Message):
    """Statistics of one timing: p50, p90 over `n` samples [ms per run], each the mean of `repeats` runs."""

    p50_ms: float = Field(gt=0.0)
    p90_ms: float = Field(gt=0.0)
    spread: float = Field(ge=0.0)
    n: int = Field(ge=1)
    repeats: int = Field(ge=1)
    noisy: bool
    energy_mj: float | None = Field(default=None, gt=0.0)
    layers: tuple[LayerTiming, ...] = ()


class Measurement(Message):
    """Latency of one model, or the reason of a failure. A failure never has a time.

    `spread` = (p90 - p10) / p50. `noisy`: the spread was above the limit in a second measurement, too.
    `energy_mj`: energy of one run, by the device's sensors; None if not requested or unknown.
    """

    key: Name
    state: Literal["ok", "failed"]
    reason: str | None = None
    p50_ms: float | None = Field(default=None, gt=0.0)
    p90_ms: float | None = Field(default=None, gt=0.0)
    spread: float | None = Field(default=None, ge=0.0)
    n: int = 0
    repeats: int = 0
    noisy: bool = False
    energy_mj: float | None = Field(default=None, gt=0.0)
    layers: tuple[LayerTiming, ...] = ()

    @model_validator(mode="after")
    def _state_agrees(self) -> Self:
        times = (self.p50_ms, self.p90_ms, self.spread)
        if self.state == "failed" and self.energy_mj is not None:
            raise ValueError("a failed measurement has no energy")
        if self.state == "ok" and None in times:
            raise ValueError("an ok measurement has times")
        if self.state == "failed" and (self.reason is None or times != (None, None, None)):
            raise ValueError("a failed measurement has a reason and no times")
        return self

    @classmethod
    def ok(cls, key: str, timing: Timing) -> "Measurement":
        """A measured model."""
        return cls(key=key, state="ok", **timing.model_dump())

    @classmethod
    def failed(cls, key: str, reason: str) -> "Measurement":
        """A failure, with its reason."""
        return cls(key=key, state="failed", reason=" ".join(reason.split())[:500])
