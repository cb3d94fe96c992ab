"""Thresholds as a file: what a device needs to leave early, and the promise that stands behind it."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from adaptive_runtime.exits.measures import MEASURES, MeasureName
from adaptive_runtime.message_files import FileMessage
from profiling_agents.messages import Message

Share = Annotated[float, Field(gt=0, lt=1)]


class Promise(Message):
    """Of images like those that were tested, at most a share `epsilon` less is answered rightly than by the full answer.

    confidence: the least probability, over the draw of the tested images, that this holds. lost, gained: tested images that
    the full answer has right and leaving early has not, and the other way around. p_value: of "more than epsilon is lost".
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
    """When a sample leaves: at the first exit where its confidence is at least the threshold.

    thresholds: one for each exit before the full answer; null: nobody leaves there. The exit behind them answers what is left.
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
        """Thresholds as numbers: infinity where nobody leaves."""
        return tuple(float("inf") if bar is None else bar for bar in self.thresholds)

    @property
    def needed(self) -> tuple[int, ...]:
        """The exits whose heads have to run: where samples leave, and that of the full answer.

        All up to the last of these where the measure remembers earlier exits.
        """
        leaving = [place for place, bar in enumerate(self.thresholds) if bar is not None]
        if leaving and MEASURES[self.measure].remembers:
            leaving = list(range(leaving[-1] + 1))
        return (*leaving, self.full_exit)

    def at(self, places: Sequence[int]) -> "Thresholds":
        """For a network with some of the exits alone, all that are `needed` among them."""
        early = tuple(self.thresholds[place] for place in places if place < self.full_exit)
        return self.model_copy(update={"thresholds": early})
