"""Settings of a night: the latencies that are timed anew, the tolerances, and the actions that follow."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Promotion = Literal["unless regressed", "always", "never"]


class Settings(BaseModel):
    """How a night is compared with the one before. Latencies and fronts in shares of themselves: 0.05 is 5 %."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    operators: int = Field(
        40, ge=0, le=1000, description="of the largest SubNet, the slowest; timed alone on each device every night"
    )
    rounds: int = Field(5, ge=3, le=50, description="times that each operator and SubNet is loaded and timed anew")
    slower: float = Field(0.05, ge=0, le=1, description="share that a latency may rise by from one night to the next")
    smaller_front: float = Field(0.05, ge=0, le=1, description="share that the area under a front may shrink by")
    error_points: float = Field(
        2.0, ge=0, le=100, description="points that errors of predictors may rise by on held-out SubNets"
    )
    false_alarms: float = Field(
        0.01, gt=0, lt=1, description="probability that a night without any change is found worse, over all tests"
    )
    promote: Promotion = Field(
        "unless regressed", description="when the night's candidate becomes the champion in MLflow's model registry"
    )
    webhook_file: Path | None = Field(
        None, description="file with the URL that the message of a regression is posted to; null: none"
    )
