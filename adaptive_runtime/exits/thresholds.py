"""Thresholds for leaving early, as a file, and the promise behind them."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from adaptive_runtime.base.message_files import FileMessage
from adaptive_runtime.exits.measures import MEASURES, MeasureName
from profiling_agents.messages import Message

Share = Annotated[float, Field(gt=0, lt=1)]


class Promise(Message):
    """For images like the tested ones, leaving early answers at most a share `epsilon` fewer correctly than the full answer.

    confidence: least probability, over the draw of the tested images, that this holds. lost, gained: tested images that only
    the
    full answer, or only leaving early, gets right. p_value: of "more than epsilon is lost".
    """

    epsilon: Share
    confidence: Share
    images: int = Field(ge=1)
    lost: int = Field(ge=0)
    gained: int = Field(ge=0)
    p_value: float = Field(ge=0, le=1)

    @model_validator(mode="after")
    def _is_kept(self) -> Self:
        if self.lost + self.gained > self.images:
            raise ValueError(f"{self.lost} lost and {self.gained} gained of {self.images} images")
        if self.p_value > 1 - self.confidence + 1e-12:
            raise ValueError(f"p_value {self.p_value:g} does not bear confidence {self.confidence:g}")
        return self


class Thresholds(FileMessage):
    """A sample leaves at the first exit where its confidence is at least the threshold.

    thresholds: one for each exit before the full answer; null: no sample leaves there. The next exit answers the remaining
    ones.
    """

    WHERE: ClassVar[str] = "thresholds"
    NEXT_STEP: ClassVar[str] = "make the thresholds again"

    version: Literal[1] = 1
    measure: MeasureName
    thresholds: tuple[float | None, ...]
    promise: Promise | None = None

    @property
    def full_exit(self) -> int:
        """The exit that gives the full answer."""
        return len(self.thresholds)

    @property
    def bars(self) -> tuple[float, ...]:
        """Thresholds as numbers: infinity for exits at which no sample leaves."""
        return tuple(float("inf") if bar is None else bar for bar in self.thresholds)

    @property
    def needed(self) -> tuple[int, ...]:
        """The exits whose heads have to run: those at which samples leave, and that of the full answer.

        If the measure remembers earlier exits, these include all exits up to the last one at which samples leave.
        """
        leaving = [place for place, bar in enumerate(self.thresholds) if bar is not None]
        if leaving and MEASURES[self.measure].remembers:
            leaving = list(range(leaving[-1] + 1))
        return (*leaving, self.full_exit)

    def at(self, places: Sequence[int]) -> "Thresholds":
        """Thresholds for a network with only some of the exits, which include all `needed` ones."""
        early = tuple(self.thresholds[place] for place in places if place < self.full_exit)
        return self.model_copy(update={"thresholds": early})
